"""The worker as the engine sees it: plans in, results out, strictly in order."""

from __future__ import annotations

from typing import Protocol

from octavo.wire.messages import StepPlan, StepResult


class WorkerPort(Protocol):
    """A worker. `submit` never blocks on arithmetic; results come back in the order of the plans.

    `wake_fd` becomes readable when a result waits (an event loop polls it beside its sockets).
    """

    wake_fd: int

    def submit(self, plan: StepPlan) -> None: ...

    def collect(self, timeout_s: float | None = None) -> StepResult | None:
        """The next result, waiting up to `timeout_s` (None = for ever, 0 = only look)."""
        ...

    def close(self) -> None: ...
