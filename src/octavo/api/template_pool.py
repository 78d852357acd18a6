"""A few template worker processes: jobs in, answers out, each under a time limit.

Owns the processes. Blocking `run` may be called from any thread; `run_async` from an event loop.
Knows the frames of `template_worker`, not what is rendered.
"""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from octavo.api.limits import Limits
from octavo.errors import InvalidRequest
from octavo.util.framed_child import FramedChild

_SCRIPT = Path(__file__).with_name("template_worker.py")
_START_TIMEOUT_S = 30.0
#: Of a render by the wall; the limit is one of CPU time, and a busy machine may take its time.
_WALL_S = 120.0
_KEPT_ENV = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "TZ", "SYSTEMROOT", "HOME")


class _Worker(FramedChild):
    """One process. `run` raises TimeoutError when it is too slow and EOFError when it died; then drop it."""

    def __init__(self, max_bytes: int, max_seconds: float) -> None:
        super().__init__([str(_SCRIPT), str(max_bytes), str(max_seconds), str(_WALL_S)], keeps=_KEPT_ENV)
        self.receive(_START_TIMEOUT_S)

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.ask(json.dumps(job).encode(), _WALL_S))
        return answer


class TemplateFailure(InvalidRequest):
    """A chat template refused the messages, or failed at them."""


class TemplatePool:
    """At most `limits.template_workers` processes, started when needed and restarted when one is lost."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_warm = False
        self._threads = ThreadPoolExecutor(
            self._limits.template_workers, thread_name_prefix="octavo-template"
        )

    def run(self, job: dict[str, Any]) -> Any:
        """The answer's value. Raises InvalidRequest when the template fails or passes a limit."""
        job = {**job, "max_chars": self._limits.max_template_chars}
        worker = self._take()
        try:
            answer = worker.run(job)
        except TimeoutError:
            worker.close()
            raise InvalidRequest(
                f"the chat template took longer than {self._limits.max_template_seconds:g} s of CPU time",
                param="messages",
            ) from None
        except EOFError:
            worker.close()
            raise InvalidRequest(
                "the chat template needs more memory than it may have", param="messages"
            ) from None
        self._give(worker)
        if "error" in answer:
            raise TemplateFailure(f"chat template: {answer['error']}", param="messages")
        return answer["ok"]

    async def run_async(self, job: dict[str, Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.run, job)

    def warm(self) -> None:
        """Starts the first worker beside what the caller does next; later calls do nothing."""
        if not self._is_warm:
            self._is_warm = True
            self._threads.submit(lambda: self._give(self._take()))

    def _take(self) -> _Worker:
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.is_alive:
                    return worker
                worker.close()  # killed while it had nothing to do: no template's fault
        return _Worker(self._limits.max_template_bytes, self._limits.max_template_seconds)

    def _give(self, worker: _Worker) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(worker)
                return
        worker.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
