"""The worker of a single-rank engine: a thread that executes plans in order, beside the scheduler.

Owns the thread and the wake-up descriptor; the executor releases the GIL while it computes, so the
engine plans the next step meanwhile. A result is handed over when the next step has begun to compute, if
one waits: else the engine would wake up and hold the GIL just when this thread needs it. A failing step
never raises into the engine: it comes back as `StepResult.fault`, and every later plan is refused in the
same words.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading

from octavo.config.plan import EnginePlan
from octavo.errors import OctavoError
from octavo.executors.base import Runs
from octavo.grammar.store import GrammarStore
from octavo.wire.layout import KVLayout
from octavo.wire.messages import StepPlan, StepResult
from octavo.worker.sampling import SamplingSlots
from octavo.worker.slots import Slots
from octavo.worker.step import StepRunner

log = logging.getLogger(__name__)


class Worker:
    """Implements wire.worker.WorkerPort."""

    def __init__(
        self,
        executor: Runs,
        plan: EnginePlan,
        layout: KVLayout,
        grammars: GrammarStore | None = None,
    ) -> None:
        s = plan.scheduler
        self.runner = StepRunner(
            executor,
            Slots(s.max_num_seqs, s.max_model_len, layout),
            SamplingSlots(s.max_num_seqs, plan.vocab_size, logprobs_mode=plan.logprobs_mode),
            grammars,
        )
        self.wake_fd, self._wake = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._wake, False)
        self._plans: queue.SimpleQueue[StepPlan | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[StepResult] = queue.SimpleQueue()
        self._held: StepResult | None = None  # of the last step, until the next one computes
        self._fault: str | None = None
        self._thread = threading.Thread(target=self._work, name="octavo-worker", daemon=True)
        self._thread.start()

    def submit(self, plan: StepPlan) -> None:
        self._plans.put(plan)

    def collect(self, timeout_s: float | None = None) -> StepResult | None:
        result: StepResult | None = None
        with contextlib.suppress(queue.Empty):
            result = self._results.get_nowait() if timeout_s == 0 else self._results.get(timeout=timeout_s)
        if self._results.empty():
            self._quiet()
            if not self._results.empty():  # one arrived between the look and the read: wake again
                self._signal()
        return result

    def wake(self) -> None:
        """Makes `wake_fd` readable: something that a waiting request needs is there. From any thread."""
        self._signal()

    def close(self) -> None:
        self._plans.put(None)
        self._thread.join(timeout=30)
        os.close(self.wake_fd)
        os.close(self._wake)

    def _signal(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe is readable already
            os.write(self._wake, b"\0")

    def _quiet(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 65536)

    def _work(self) -> None:
        while (plan := self._plans.get()) is not None:
            if self._fault is None:
                result = self._execute(plan)
            else:
                result = StepResult(step=plan.step, fault=self._fault)
            self._hand_over()
            self._held = result
            if self._plans.empty():
                self._hand_over()
        self._hand_over()

    def _hand_over(self) -> None:
        result, self._held = self._held, None
        if result is not None:
            self._results.put(result)
            self._signal()

    def _execute(self, plan: StepPlan) -> StepResult:
        try:
            return self.runner.execute(plan, self._hand_over)
        except OctavoError as error:
            self._fault = str(error)
        except Exception as error:  # whatever it was, the engine must hear of it: nothing is lost silently
            log.exception("step %d failed", plan.step)
            self._fault = f"{type(error).__name__}: {error}"
        return StepResult(step=plan.step, fault=self._fault)
