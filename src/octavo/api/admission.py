"""May this request come in? Bounds of the queue, draining, a dead engine; before anything is spent on it."""

from __future__ import annotations

import math

from octavo.api.client import EngineClient
from octavo.api.health import HealthWatch
from octavo.api.metrics import Metrics
from octavo.config.plan import ServerPlan
from octavo.errors import InvalidRequest

_KIND = "ServiceUnavailableError"


class Admission:
    """`max_queued_requests` counts running ones too; `max_queued_tokens` prompt tokens before their first output."""

    def __init__(
        self, client: EngineClient, health: HealthWatch, metrics: Metrics, server: ServerPlan
    ) -> None:
        self._client = client
        self._health = health
        self._metrics = metrics
        self.num_searches = 0  # beam searches that run: between two rounds the engine has nothing of them
        self._max_requests = server.max_queued_requests
        self._max_tokens = server.max_queued_tokens

    def check(self, num_choices: int = 1) -> None:
        """Raises InvalidRequest with status 503 and a Retry-After."""
        if self._client.is_closed:
            raise InvalidRequest("the engine is gone and was not restarted", status=503, kind=_KIND)
        if self._health.is_draining:
            raise InvalidRequest(
                "the server is shutting down and takes no new requests",
                status=503,
                kind=_KIND,
                retry_after_s=self._wait_s(),
            )
        running = self._client.num_unfinished
        if 0 <= self._max_requests < running + num_choices:
            self._reject(
                "max_num_queued_reqs",
                f"{running} requests are in the server and {num_choices} more were sent; "
                f"allowed are {self._max_requests} (--max-num-queued-reqs)",
            )
        tokens = self._client.num_prefill_tokens
        if 0 <= self._max_tokens <= tokens:
            self._reject(
                "max_num_queued_tokens",
                f"{tokens} prompt tokens wait; allowed are {self._max_tokens} (--max-num-queued-tokens)",
            )

    def _reject(self, reason: str, message: str) -> None:
        self._metrics.on_rejection(reason)
        raise InvalidRequest(message, status=503, kind=_KIND, retry_after_s=self._wait_s())

    def _wait_s(self) -> int:
        return max(1, min(60, math.ceil(self._metrics.mean_e2e_s)))
