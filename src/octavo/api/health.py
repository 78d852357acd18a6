"""Is the engine making progress? Answers from what a sampler has seen, so asking never blocks.

A busy engine moves its step counter; a stalled one has work and does not. States:
starting, idle, progressing, paused, stalled, down (being restarted), dead, draining.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from octavo.api.client import EngineClient

SAMPLE_S = 0.25
SLOWEST_PREFILL = 100.0  # tokens a second; a step of many prompt tokens may take that much longer


class HealthWatch:
    """`stall_limit_s`: how long pending work may see no step, beside what its prompt tokens need.

    `max_step_tokens` bounds the prompt tokens of one step.
    """

    def __init__(
        self,
        client: EngineClient,
        *,
        stall_limit_s: float = 8.0,
        max_step_tokens: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_draining = False
        self._client = client
        self._stall_limit_s = stall_limit_s
        self._max_step_tokens = max_step_tokens
        self._clock = clock
        self._steps = -1
        self._moved = clock()

    def sample(self) -> None:
        """Looks at the counters once; called every SAMPLE_S seconds."""
        steps, is_pending = self._client.progress()
        if steps != self._steps or not is_pending or not self._client.is_up:
            self._steps = steps
            self._moved = self._clock()

    @property
    def state(self) -> str:
        if self._client.is_closed:
            return "dead"
        if self.is_draining:
            return "draining"
        if not self._client.is_up:
            return "down" if self._client.restarts else "starting"
        steps, is_pending = self._client.progress()
        if self._client.stats.paused:
            return "paused"
        if not is_pending:
            return "idle"
        if steps == self._steps and self._clock() - self._moved > self._limit_s():
            return "stalled"
        return "progressing"

    def _limit_s(self) -> float:
        tokens = min(self._client.num_prefill_tokens, self._max_step_tokens)
        return self._stall_limit_s + tokens / SLOWEST_PREFILL

    @property
    def is_healthy(self) -> bool:
        return self.state in ("idle", "progressing", "paused")

    async def run(self) -> None:
        """Samples until cancelled."""
        while True:
            self.sample()
            await asyncio.sleep(SAMPLE_S)
