"""The first process of a server: it watches the engine and the other API processes, and serves HTTP itself.

Owns the order of a start and of an end. What HTTP is, launch.front knows; how processes begin, launch.spawn.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from octavo.api.client import EngineClient
from octavo.config.asked import Asked
from octavo.config.plan import ServerPlan
from octavo.launch import logs
from octavo.launch.fleet import Fleet
from octavo.launch.front import Front
from octavo.launch.orders import ApiOrder
from octavo.launch.plan import Planned
from octavo.launch.signals import EXIT_CODE, Signals
from octavo.launch.spawn import STOP_TIMEOUT_S, Child, Spawner
from octavo.launch.table import render
from octavo.launch.watch import EngineWatch
from octavo.util.lines import one_line
from octavo.wire.heartbeat import Heartbeat

if TYPE_CHECKING:
    from octavo.api.state import ApiState

log = logging.getLogger("octavo.launch")

STATS_EVERY_S = 10.0
LAST_ANSWERS_S = 3.0  # for API processes to end, after their time to drain


def is_local(server: ServerPlan) -> bool:
    """Whether only this machine can reach the address."""
    if server.uds or server.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(server.host).is_loopback
    except ValueError:
        return False


class Server:
    """One run. Everything here happens in one event loop. `listeners`: one socket for each API process."""

    def __init__(
        self,
        asked: Asked,
        planned: Planned,
        listeners: Sequence[socket.socket],
        spawner: Spawner,
        child: Child,
        folder: str,
        signals: Signals,
        started: float,
    ) -> None:
        self._planned = planned
        self._plan: ServerPlan = planned.resolved.server
        self._listener = listeners[0]
        self._signals = signals
        self._started = started
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []
        path = os.path.join(folder, "heartbeat")
        heartbeat = Heartbeat.create(path)

        def progress() -> tuple[int, bool]:
            pulse = heartbeat.read()
            return pulse.steps, pulse.has_work

        engine = planned.resolved.engine
        self._client = client = EngineClient(progress=progress)
        self._front = Front(client, asked, self._plan, engine, folder=folder)

        def order(index: int, listener: int) -> ApiOrder:
            return ApiOrder(
                asked=asked,
                engine=engine,
                server=self._plan,
                index=index,
                listener=listener,
                folder=folder,
                heartbeat=path,
            )

        self._fleet = Fleet(spawner, listeners[1:], client, order) if len(listeners) > 1 else None
        self._watch = EngineWatch(
            spawner,
            child,
            engine,
            client,
            folder=folder,
            heartbeat_path=path,
            heartbeat=heartbeat,
            max_idle_deaths=self._plan.max_engine_restarts,
            followers=None if self._fleet is None else (len(listeners) - 1, self._fleet),
        )
        signals.own_engine(self._kill)

    def _kill(self) -> None:
        if self._fleet is not None:
            with contextlib.suppress(OSError):
                self._fleet.kill()
        self._watch.child.process.kill()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        self._signals.tell(lambda: loop.call_soon_threadsafe(self._stop))
        starting = asyncio.create_task(self._watch.start())
        stopped = asyncio.create_task(self._stopping.wait())
        self._tasks += [starting, stopped]
        try:
            await asyncio.sleep(0)  # the order goes out before this process imports anything more
            if self._fleet is not None:
                self._fleet.start()
            state = await asyncio.to_thread(self._front.build, self._planned.source)
            await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():  # a signal during the start
                return self._code()
            table = [*(await starting).table, *state.table, *self._address_rows()]
            logs.say(render(table))
            if not is_local(self._plan) and not self._plan.api_keys:
                log.warning(
                    "anyone who reaches %s may use this server: --api-key KEY guards it", self._where()
                )
            return await self._serve_http(state, stopped)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._fleet is not None:
                self._fleet.kill()
            patience_s = 0.0 if self._signals.is_hurried else STOP_TIMEOUT_S
            await asyncio.to_thread(self._watch.stop, patience_s)

    async def _serve_http(self, state: ApiState, stopped: asyncio.Task[Literal[True]]) -> int:
        watching: list[asyncio.Task[None]] = [asyncio.create_task(self._watch.run())]
        self._tasks += watching
        serving = await self._front.open(self._listener)
        if self._fleet is not None:
            readying = asyncio.create_task(self._fleet.wait_ready())
            self._tasks.append(readying)
            await asyncio.wait({readying, stopped, *watching}, return_when=asyncio.FIRST_COMPLETED)
            if readying.done():
                readying.result()  # raises StartFailed
                watching.append(asyncio.create_task(self._fleet.run()))
                self._tasks.append(watching[-1])
        if not self._stopping.is_set():
            self._announce()
        if self._plan.log_stats:
            self._tasks.append(asyncio.create_task(log_stats(state)))
        await asyncio.wait({serving, stopped, *watching}, return_when=asyncio.FIRST_COMPLETED)
        if self._stopping.is_set():
            await self._drain()
        await self._front.close()
        for task in watching:
            if task.done() and not self._stopping.is_set():
                task.result()  # raises what kept a process from being started again
        return self._code()

    def _announce(self) -> None:
        elapsed_s = time.monotonic() - self._started
        names = one_line(", ".join(self._plan.served_names))
        where, page = self._where(), ""
        if not self._plan.uds:
            where, page = f"{where}/v1", f"; a page to try it: {self._where(for_people=True)}/"
        logs.say(f"octavo: ready: {names} at {where} ({elapsed_s:.2f} s){page}")

    def _where(self, *, for_people: bool = False) -> str:
        """The address that was bound. A browser cannot go to "all interfaces": it gets this machine's."""
        if self._plan.uds:
            return f"unix socket {self._plan.uds}"
        host, port = self._listener.getsockname()[:2]
        if for_people:
            host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def _address_rows(self) -> list[list[str]]:
        """Who can reach the server, and who is let in: rows for the table."""
        reach = "only this machine" if is_local(self._plan) else "other machines too"
        keys = len(self._plan.api_keys)
        guard = ["api key", "asked for", f"{keys} known; --api-key or OCTAVO_API_KEY"]
        count = self._plan.api_server_count
        shared = "they share the address and the engine; bounds of queues are divided among them"
        return [
            ["address", self._where(), reach],
            guard if keys else ["api key", "none", "--api-key sets one"],
            *([] if count == 1 else [["api processes", str(count), shared]]),
        ]

    # ---- the end --------------------------------------------------------------------------------

    def _stop(self) -> None:
        """The first signal has come; those after it are the handler's own (launch.signals)."""
        count = self._client.num_unfinished
        requests = "1 request" if count == 1 else f"{count} requests"
        if self._fleet is not None:
            requests += " of this process and what the others have"
        if count or self._fleet is not None:
            requests += f", for at most {self._plan.drain_timeout_s:g} s"
        text = f"draining: {requests}"
        if not count and self._fleet is None:
            text = "stopping"
        elif self._signals.first == signal.SIGINT:
            text = f"finishing {requests}; Ctrl-C again ends at once"
        logs.say(f"octavo: {text}")
        self._stopping.set()

    def _code(self) -> int:
        return EXIT_CODE if self._signals.is_hurried else 0

    async def _drain(self) -> None:
        """All API processes at once; the engine ends after the last of them."""
        if self._fleet is None:
            await self._front.drain(self._plan.drain_timeout_s, lambda: self._signals.is_hurried)
            return
        self._fleet.drain(self._plan.drain_timeout_s)
        deadline = time.monotonic() + self._plan.drain_timeout_s + LAST_ANSWERS_S
        await self._front.drain(self._plan.drain_timeout_s, lambda: self._signals.is_hurried)
        ending = asyncio.create_task(self._fleet.wait_ended())
        while not ending.done() and time.monotonic() < deadline and not self._signals.is_hurried:
            await asyncio.sleep(0.02)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)


async def log_stats(state: ApiState) -> None:
    """A line every ten seconds while the engine works; nothing while it idles."""
    steps = 0
    while True:
        await asyncio.sleep(STATS_EVERY_S)
        stats = state.client.stats
        if stats.steps == steps:
            continue
        done, steps = stats.steps - steps, stats.steps
        hit = f"{100 * stats.prefix_hits / stats.prefix_queries:.0f}%" if stats.prefix_queries else "-"
        log.info(
            "%d running, %d waiting, KV %.0f%% used, prefix hits %s, %.1f steps/s, %d preemptions",
            stats.running,
            stats.waiting,
            100 * stats.kv_usage_frac,
            hit,
            max(done, 0) / STATS_EVERY_S,
            stats.preemptions,
        )
