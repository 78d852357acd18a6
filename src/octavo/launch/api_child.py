"""An API process beside the first one: `python -m octavo.launch.api_child ORDERS_FD REPORTS_FD PARENT_PID`.

Its order says where to listen; news of engines come through the same pipe. Ends when it is told to drain, or
with its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from typing import Any, NoReturn

import msgspec

from octavo.launch.engine import die_with_parent, one_blas_thread
from octavo.launch.orders import ApiNews, ApiOrder, Report, read_line, write_line


def main(argv: list[str]) -> int:
    orders_fd, reports_fd, parent_pid = (int(word) for word in argv[:3])
    die_with_parent(parent_pid)
    for number in (signal.SIGINT, signal.SIGTERM):  # the first process's to handle
        signal.signal(number, signal.SIG_IGN)
    from octavo.errors import OctavoError, UserError
    from octavo.launch import logs

    logs.set_up()
    line = read_line(orders_fd)
    if not line:  # the parent refused to start and is gone
        return 0
    order = msgspec.json.decode(line, type=ApiOrder)
    import uvloop

    with one_blas_thread():
        import numpy  # noqa: F401
    try:
        return uvloop.run(_Process(order, orders_fd, reports_fd).run())
    except UserError as error:
        report = Report(cause=error.message, fix=error.fix or "")
    except OctavoError as error:
        report = Report(cause=str(error), fix="OCTAVO_LOG_LEVEL=debug shows more")
    with contextlib.suppress(BrokenPipeError):
        write_line(reports_fd, report)
    return 1


class _Process:
    def __init__(self, order: ApiOrder, orders_fd: int, reports_fd: int) -> None:
        from octavo.api.client import EngineClient
        from octavo.launch.front import Front
        from octavo.wire.heartbeat import Heartbeat
        from octavo.wire.sockets import ClientEndpoint

        self._order = order
        self._orders_fd = orders_fd
        self._reports_fd = reports_fd
        heartbeat = Heartbeat.open(order.heartbeat)

        def progress() -> tuple[int, bool]:
            pulse = heartbeat.read()
            return pulse.steps, pulse.has_work

        self._client = EngineClient(progress=progress)
        self._front = Front(
            self._client, order.asked, order.server, order.engine, folder=order.folder, index=order.index
        )
        self._endpoint: ClientEndpoint | None = None
        self._has_engine = asyncio.Event()
        self._drain_s: asyncio.Future[float] | None = None

    async def run(self) -> int:
        self._drain_s = asyncio.get_running_loop().create_future()
        hearing = asyncio.create_task(self._hear())
        try:
            await asyncio.to_thread(self._build)
            await self._has_engine.wait()
            serving = await self._front.open(socket.socket(fileno=self._order.listener))
            write_line(self._reports_fd, Report(is_serving=True))
            drained: asyncio.Future[Any] = self._drain_s
            await asyncio.wait([serving, drained], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                return 1
            await self._front.drain(self._drain_s.result())
            await self._front.close()
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
        return 0

    def _build(self) -> None:
        from octavo.launch.facts import open_checked

        write_line(self._reports_fd, Report(phase="read the tokenizer"))
        self._front.build(open_checked(self._order.engine.model, self._order.asked.model.load_format))

    async def _hear(self) -> None:
        """News from the first process, in order. When it is gone there is nothing left to do."""
        reader = asyncio.StreamReader(limit=2**24)
        pipe = os.fdopen(self._orders_fd, "rb", buffering=0)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        while line := await reader.readline():
            self._act(msgspec.json.decode(line, type=ApiNews))
        _gone()

    def _act(self, news: ApiNews) -> None:
        from octavo.wire.sockets import ClientEndpoint

        if news.up is not None:
            self._drop()
            self._endpoint = ClientEndpoint(news.up)
            self._client.on_engine_up(self._endpoint)
            self._client.ready = news.ready
            self._has_engine.set()
        elif news.closed is not None:
            self._client.close(news.closed)
        elif news.drain_s is not None:
            assert self._drain_s is not None
            if not self._drain_s.done():
                self._drain_s.set_result(news.drain_s)
        else:
            self._drop()

    def _drop(self) -> None:
        self._client.on_engine_down()
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None


def _gone() -> NoReturn:
    os._exit(1)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
