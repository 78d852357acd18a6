"""Keeps one engine child alive for the life of the API process, and tells the client when it comes and goes.

A dead engine is replaced with the same plan; the client adds its requests again (law 4). Gives up only
when an engine cannot be *started* several times in a row: what kills a running engine is one request
more often than not, and the client quarantines those.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator

from octavo.api.client import EngineClient
from octavo.config.plan import EnginePlan
from octavo.errors import EngineDead
from octavo.launch.orders import Order
from octavo.launch.spawn import STOP_TIMEOUT_S, EngineProcess, Spawner, StartFailed
from octavo.wire.messages import Ready
from octavo.wire.sockets import ClientEndpoint, new_addresses

log = logging.getLogger("octavo.launch")

MAX_FAILED_STARTS = 3
PAUSE_S = 0.5  # before a second attempt; doubles with each


class EngineWatch:
    """`child` is the process that runs, or starts. `run` ends only by cancelling or by EngineDead."""

    def __init__(
        self,
        spawner: Spawner,
        child: EngineProcess,
        plan: EnginePlan,
        client: EngineClient,
        *,
        folder: str,
        heartbeat_path: str,
    ) -> None:
        self.child = child
        self._spawner = spawner
        self._plan = plan
        self._client = client
        self._folder = folder
        self._heartbeat_path = heartbeat_path
        self._names: Iterator[str] = (f"engine{i}" for i in itertools.count())
        self._endpoint: ClientEndpoint | None = None

    async def start(self) -> Ready:
        """Brings the child up and connects the client. Raises StartFailed."""
        addresses = new_addresses(self._folder, next(self._names))
        order = Order(
            plan=self._plan,
            address_in=addresses.to_engine,
            address_out=addresses.from_engine,
            heartbeat=self._heartbeat_path,
        )
        endpoint = ClientEndpoint(addresses)
        try:
            await asyncio.to_thread(self.child.give, order)
            ready = await self.child.wait_ready()
        except BaseException:
            endpoint.close()
            self.child.kill()
            raise
        self._endpoint = endpoint
        self._client.on_engine_up(endpoint)
        self._client.ready = ready  # the child's pipe carried it, before there was a socket
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
            await self._restart()

    async def _restart(self) -> None:
        for attempt in range(MAX_FAILED_STARTS):
            try:
                self.child = self._spawner.start(self._plan.model)
                await self.start()
            except StartFailed as error:
                log.error("the engine did not start again: %s", error)
                if attempt == MAX_FAILED_STARTS - 1:
                    self._client.close()
                    raise EngineDead(
                        f"the engine did not start {MAX_FAILED_STARTS} times in a row: {error}"
                    ) from None
                await asyncio.sleep(PAUSE_S * 2**attempt)
            else:
                log.warning("the engine is back (pid %d)", self.child.pid)
                return

    def _drop(self) -> None:
        self._client.on_engine_down()
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
