"""Keeps one engine child alive for the life of the API process, and tells the client when it comes and goes.

A dead engine is replaced with the same plan; the client adds its requests again (law 4). Gives up when an engine
cannot be *started* several times in a row, and when too many in a row end soon without a single step: what kills a
running engine is one request more often than not, and the client quarantines those, but a machine on which no step
ends will not get better by one more start.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from octavo.api.client import EngineClient
from octavo.config.plan import EnginePlan
from octavo.errors import EngineDead
from octavo.launch.orders import Order
from octavo.launch.spawn import STOP_TIMEOUT_S, Child, Spawner, StartFailed
from octavo.wire.addresses import Addresses, new_addresses
from octavo.wire.heartbeat import Heartbeat
from octavo.wire.messages import Ready
from octavo.wire.sockets import ClientEndpoint

log = logging.getLogger("octavo.launch")

MAX_FAILED_STARTS = 3
DEATHS_WITHIN_S = 600.0  # only engines that ended so recently are counted
PAUSE_S = 0.5  # before a second attempt; doubles with each


class Follower(Protocol):
    """Other API processes, which hear of every engine that comes or goes."""

    def on_up(self, lines: Sequence[Addresses], ready: Ready, /) -> None: ...

    def on_down(self) -> None: ...

    def on_closed(self, reason: str, /) -> None: ...


class EngineWatch:
    """`child` is the process that runs, or starts. `run` ends only by cancelling or by EngineDead.

    `max_idle_deaths`: so many engines in a row may end without a finished step and be replaced; 0 = any number.
    """

    def __init__(
        self,
        spawner: Spawner,
        child: Child,
        plan: EnginePlan,
        client: EngineClient,
        *,
        folder: str,
        heartbeat_path: str,
        heartbeat: Heartbeat,
        max_idle_deaths: int = 0,
        followers: tuple[int, Follower] | None = None,  # how many processes, and who tells them
    ) -> None:
        self.child = child
        self._spawner = spawner
        self._plan = plan
        self._client = client
        self._folder = folder
        self._heartbeat_path = heartbeat_path
        self._heartbeat = heartbeat
        self._max_idle_deaths = max_idle_deaths
        self._idle_deaths: list[float] = []  # when, since an engine last finished a step
        self._num_others = followers[0] if followers else 0
        self._others = followers[1] if followers else None
        self._names: Iterator[str] = (f"engine{i}" for i in itertools.count())
        self._endpoint: ClientEndpoint | None = None

    async def start(self) -> Ready:
        """Brings the child up and connects the client. Raises StartFailed."""
        name = next(self._names)
        lines = [new_addresses(self._folder, f"{name}-{i}") for i in range(1 + self._num_others)]
        order = Order(plan=self._plan, lines=lines, heartbeat=self._heartbeat_path)
        endpoint = ClientEndpoint(lines[0])
        self._heartbeat.beat(0, has_work=False)  # the engine before may have left another count
        try:
            await asyncio.to_thread(self.child.give, order)
            ready = (await self.child.wait_ready()).ready
            assert ready is not None, "an engine reports what it is ready for"
        except BaseException:
            endpoint.close()
            self.child.kill()
            raise
        self._endpoint = endpoint
        self._client.on_engine_up(endpoint)
        self._client.ready = ready  # the child's pipe carried it, before there was a socket
        if self._others is not None:
            self._others.on_up(lines[1:], ready)
        return ready

    async def run(self) -> None:
        """Replaces the engine whenever it ends. Raises EngineDead when it cannot be started again."""
        while True:
            await self.child.wait_ended()
            log.error(
                "the engine (pid %d) %s; %d requests wait for the next one",
                self.child.pid,
                self.child.how_it_ended(),
                self._client.num_unfinished,
            )
            self._drop()
            self._count_death()
            await self._restart()

    def _count_death(self) -> None:
        """Raises EngineDead when engines end again and again before they have finished a step."""
        now = time.monotonic()
        recent = [t for t in self._idle_deaths if now - t < DEATHS_WITHIN_S]
        self._idle_deaths = [] if self._heartbeat.read().steps else [*recent, now]
        if 0 < self._max_idle_deaths < len(self._idle_deaths):
            raise self._given_up(
                f"the engine ended {len(self._idle_deaths)} times in a row without a finished step "
                f"({self.child.how_it_ended()} at last); --max-engine-restarts allows {self._max_idle_deaths}"
            )

    def _given_up(self, why: str) -> EngineDead:
        self._client.close()
        if self._others is not None:
            self._others.on_closed("the engine is gone and was not restarted")
        return EngineDead(why)

    async def _restart(self) -> None:
        for attempt in range(MAX_FAILED_STARTS):
            try:
                self.child = self._spawner.start(self._plan.model)
                await self.start()
            except StartFailed as error:
                log.error("the engine did not start again: %s", error)
                if attempt == MAX_FAILED_STARTS - 1:
                    raise self._given_up(
                        f"the engine did not start {MAX_FAILED_STARTS} times in a row: {error}"
                    ) from None
                await asyncio.sleep(PAUSE_S * 2**attempt)
            else:
                log.warning("the engine is back (pid %d)", self.child.pid)
                return

    def _drop(self) -> None:
        self._client.on_engine_down()
        if self._others is not None:
            self._others.on_down()
        self.child.kill()
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Ends the child, politely first for so long."""
        self.child.stop(timeout_s)
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None
