"""A few template worker processes: jobs in, answers out, each under a time limit.

Owns the processes. Blocking `run` may be called from any thread; `run_async` from an event loop.
Knows the frames of `template_worker`, not what is rendered.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import signal
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from octavo.api.limits import Limits
from octavo.errors import InvalidRequest

_SCRIPT = Path(__file__).with_name("template_worker.py")
_START_TIMEOUT_S = 30.0
#: Of a render by the wall; the limit is one of CPU time, and a busy machine may take its time.
_WALL_S = 120.0
_KEPT_ENV = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "TZ", "SYSTEMROOT", "HOME")


class _Worker:
    """One process. `ask` raises TimeoutError when it is too slow and EOFError when it died; then drop it."""

    def __init__(self, max_bytes: int, max_seconds: float) -> None:
        env = {k: os.environ[k] for k in _KEPT_ENV if k in os.environ}  # no keys and tokens for templates
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_SCRIPT), str(max_bytes), str(max_seconds), str(_WALL_S)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            bufsize=0,
        )
        self._receive(time.monotonic() + _START_TIMEOUT_S)

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._ask(job)
        except EOFError:
            if self._process.wait(_START_TIMEOUT_S) in (-signal.SIGPROF, -signal.SIGALRM):
                raise TimeoutError from None
            raise

    def _ask(self, job: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(job).encode()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(struct.pack(">I", len(data)))
            view = memoryview(data)
            while view:
                view = view[self._process.stdin.write(view) or 0 :]
        except BrokenPipeError:
            raise EOFError from None
        return self._receive(time.monotonic() + _WALL_S)

    def _receive(self, deadline_s: float) -> dict[str, Any]:
        (size,) = struct.unpack(">I", self._read(4, deadline_s))
        answer: dict[str, Any] = json.loads(self._read(size, deadline_s))
        return answer

    def _read(self, size: int, deadline_s: float) -> bytes:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        data = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while len(data) < size:
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    raise TimeoutError
                part = os.read(fd, min(1 << 20, size - len(data)))
                if not part:
                    raise EOFError
                data += part
        return bytes(data)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()


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
            answer = worker.ask(job)
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
            raise InvalidRequest(f"chat template: {answer['error']}", param="messages")
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
