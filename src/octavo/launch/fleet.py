"""The API processes beside the first one: started with it, told of every engine, replaced when they die.

A request belongs to the API process that took it. When that process dies its connections end, the engine is told
to forget its requests, and another process takes its place; requests of the others do not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence

from octavo.api.client import EngineClient
from octavo.errors import EngineDead, OctavoError
from octavo.launch.orders import ApiNews, ApiOrder
from octavo.launch.spawn import Child, Spawner, StartFailed
from octavo.wire.addresses import FORGET_LINE, Addresses
from octavo.wire.messages import Ready

log = logging.getLogger("octavo.launch")

MAX_FAILED_STARTS = 3
PAUSE_S = 0.5  # before a second attempt; doubles with each


class Fleet:
    """API processes 1, 2, ... `order(i)` is what the i-th needs to start; `client` is the first process's own."""

    def __init__(
        self,
        spawner: Spawner,
        listeners: Sequence[socket.socket],
        client: EngineClient,
        order: Callable[[int, int], ApiOrder],
    ) -> None:
        self._spawner = spawner
        self._listeners = listeners
        self._client = client
        self._order = order
        self._children: list[Child] = []
        self._news: list[ApiNews] = [ApiNews(down=True)] * len(
            listeners
        )  # the last that holds, for a new one
        self._is_ending = False

    def start(self) -> None:
        self._children = [self._start(i) for i in range(len(self._listeners))]

    def _start(self, i: int) -> Child:
        fd = self._listeners[i].fileno()
        child = self._spawner.start_api(fd)
        child.give(self._order(1 + i, fd))
        return child

    async def wait_ready(self) -> None:
        """Returns when all serve, which takes an engine. Raises StartFailed."""
        await asyncio.gather(*(child.wait_ready() for child in self._children))

    # ---- engines come and go (launch.watch.Follower) ----------------------------------------------

    def on_up(self, lines: Sequence[Addresses], ready: Ready) -> None:
        for i, line in enumerate(lines):
            self._tell(i, ApiNews(up=line, ready=ready))

    def on_down(self) -> None:
        for i in range(len(self._children)):
            self._tell(i, ApiNews(down=True))

    def on_closed(self, reason: str) -> None:
        for i in range(len(self._children)):
            self._tell(i, ApiNews(closed=reason))

    def _tell(self, i: int, news: ApiNews) -> None:
        self._news[i] = news
        if i < len(self._children):
            self._children[i].give(news)

    # ---- processes come and go --------------------------------------------------------------------

    async def run(self) -> None:
        """Replaces those that end. Raises OctavoError when one cannot be started again."""
        await asyncio.gather(*(self._keep(i) for i in range(len(self._children))))

    async def _keep(self, i: int) -> None:
        while True:
            child = self._children[i]
            await child.wait_ended()
            if self._is_ending:
                return
            log.error(
                "API process %d (pid %d) %s; its connections are lost", 1 + i, child.pid, child.how_it_ended()
            )
            child.kill()
            with contextlib.suppress(EngineDead, TimeoutError, RuntimeError):
                await self._client.call(FORGET_LINE, 1 + i)
            await self._restart(i)

    async def _restart(self, i: int) -> None:
        for attempt in range(MAX_FAILED_STARTS):
            child = self._children[i] = self._start(i)
            child.give(self._news[i])
            try:
                await child.wait_ready()
            except StartFailed as error:
                if self._is_ending:
                    return
                child.kill()
                log.error("API process %d did not start again: %s", 1 + i, error)
                if attempt == MAX_FAILED_STARTS - 1:
                    raise OctavoError(
                        f"API process {1 + i} did not start {MAX_FAILED_STARTS} times in a row: {error}"
                    ) from None
                await asyncio.sleep(PAUSE_S * 2**attempt)
            else:
                log.warning("API process %d is back (pid %d)", 1 + i, child.pid)
                return

    def drain(self, timeout_s: float) -> None:
        """All end when their requests have, or after `timeout_s`."""
        self._is_ending = True
        for child in self._children:
            child.give(ApiNews(drain_s=timeout_s))

    async def wait_ended(self) -> None:
        await asyncio.gather(*(child.wait_ended() for child in self._children))

    def kill(self) -> None:
        self._is_ending = True
        for child in self._children:
            child.kill()
