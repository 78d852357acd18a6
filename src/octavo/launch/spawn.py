"""A child process, engine or API: start it, give it its order, follow its start, end it.

A child dies with its parent in two ways: the kernel's parent-death signal, and the end of the order
pipe. The first is tied to the *thread* that forked, and niceness is a thread's too, so all children
are forked by one thread that lives as long as the process and keeps its priority (see launch.serve).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from octavo import env
from octavo.errors import OctavoError, UserError

# What is imported before the engine child is forked delays it: the rest is imported where it is used.
if TYPE_CHECKING:
    import msgspec

    from octavo.launch.orders import Report

STOP_TIMEOUT_S = 5.0
PHASE_S = 60.0  # of a phase that launch.orders.PHASES does not name


class StartFailed(UserError):
    """A child did not become ready: one cause, one fix."""


class Child:
    """A child, from its fork to its end. `name` is what it is called in messages."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], orders_fd: int, reports_fd: int) -> None:
        self.name = name
        self.process = process
        self._orders_fd = orders_fd
        self._reports_fd = reports_fd
        self.phase = "start python"

    @property
    def pid(self) -> int:
        return self.process.pid

    def give(self, order: msgspec.Struct) -> None:
        """Sends an order. A child that is gone already says why through `wait_ready`."""
        from octavo.launch.orders import write_line

        with contextlib.suppress(BrokenPipeError):
            if self._orders_fd >= 0:
                write_line(self._orders_fd, order)

    async def wait_ready(self) -> Report:
        """Follows the start, phase by phase, to its end. Raises StartFailed with the child's own cause."""
        import asyncio

        import msgspec

        from octavo.launch.orders import PHASES, Report

        reader = asyncio.StreamReader(limit=2**24)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self._reports_fd, "rb", buffering=0)
        )
        self._reports_fd = -1  # the transport closes it
        try:
            while True:
                try:
                    line = await asyncio.wait_for(reader.readline(), PHASES.get(self.phase, PHASE_S))
                except TimeoutError:
                    raise self._hung(PHASES.get(self.phase, PHASE_S)) from None
                if not line:
                    raise self._died()
                report = msgspec.json.decode(line, type=Report)
                if report.ready is not None or report.is_serving:
                    return report
                if report.cause is not None:
                    raise StartFailed(report.cause, fix=report.fix or None)
                self.phase = report.phase or self.phase
        finally:
            transport.close()

    def _hung(self, limit_s: float) -> StartFailed:
        return StartFailed(
            f"the {self.name} did not finish the phase {self.phase!r} in {limit_s:.0f} s",
            fix="is the disk or the machine overloaded? OCTAVO_LOG_LEVEL=debug shows more",
        )

    def _died(self) -> StartFailed:
        return StartFailed(
            f"the {self.name} process {self.how_it_ended()} in the phase {self.phase!r}", fix=self._advice()
        )

    def how_it_ended(self) -> str:
        """Words for the exit status: "was killed by SIGKILL", "ended with code 3"."""
        code = self.process.wait()
        if code >= 0:
            return f"ended with code {code}"
        return f"was killed by {signal.Signals(-code).name}"

    def _advice(self) -> str:
        if self.process.returncode == -signal.SIGKILL:
            return "memory may have run out: try a smaller --max-model-len or --kv-cache-memory-bytes"
        return f"OCTAVO_LOG_LEVEL=debug shows more; `{env.command('collect-env')}` says what to report"

    async def wait_ended(self) -> None:
        """Returns when the process has ended (polled: a child is watched by exactly one task)."""
        import asyncio

        while self.process.poll() is None:
            await asyncio.sleep(0.05)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Asks by closing the order pipe, then kills."""
        self._close_pipes()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._close_pipes()
        self.process.kill()
        self.process.wait()

    def _close_pipes(self) -> None:
        for fd in (self._orders_fd, self._reports_fd):
            if fd >= 0:
                os.close(fd)
        self._orders_fd = self._reports_fd = -1


class Spawner:
    """Forks children, all from one thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-spawn")
        self._thread.submit(lambda: None).result()  # the thread exists now, before any change of priority

    def start(self, model_path: str) -> Child:
        """An engine, which reads the model's headers at once."""
        return self._thread.submit(self._fork, "engine", "octavo.launch.engine", [model_path], ()).result()

    def start_api(self, listener: int) -> Child:
        """An API process, which inherits the descriptor of a socket."""
        return self._thread.submit(self._fork, "API", "octavo.launch.api_child", [], (listener,)).result()

    def _fork(self, name: str, module: str, words: list[str], inherited: tuple[int, ...]) -> Child:
        order_read, order_write = os.pipe()
        report_read, report_write = os.pipe()
        fds = (order_read, report_write)
        command = [sys.executable, "-m", module, *map(str, fds), str(os.getpid()), *words]
        try:
            process = subprocess.Popen(
                command, pass_fds=(*fds, *inherited), stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise OctavoError(f"the {name} process cannot be started: {error}") from error
        finally:
            os.close(order_read)
            os.close(report_write)
        return Child(name, process, order_write, report_read)
