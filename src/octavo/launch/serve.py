"""`serve`: the API process, with an engine child beside it, from the first socket to the last stream.

Order of a start, for speed: the port is taken (so that a busy one costs nothing), the child is forked
and imports, meanwhile this process reads headers, plans, and imports the HTTP side; then it waits.

On shared cores the API process lowers its own priority: the engine's threads spin through a step, and
a burst of HTTP work at equal priority would stretch every step (measured, docs/log.md). Niceness is a
thread's; the thread that forks engines keeps the normal one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from octavo.config.asked import Asked
from octavo.config.plan import ServerPlan
from octavo.config.server import ServerAsked
from octavo.errors import ConfigError
from octavo.launch import logs
from octavo.launch.find import find_model
from octavo.launch.signals import EXIT_CODE, Signals
from octavo.launch.spawn import STOP_TIMEOUT_S, EngineProcess, Spawner
from octavo.launch.table import render

if TYPE_CHECKING:
    from octavo.api.client import EngineClient
    from octavo.api.state import ApiState
    from octavo.launch.plan import Planned
    from octavo.launch.watch import EngineWatch

log = logging.getLogger("octavo.launch")

API_NICENESS = 10
BACKLOG = 2048
STATS_EVERY_S = 10.0
GRACE_S = 2  # for responses that are written already, after the last request has ended


def serve(asked: Asked) -> int:
    """Serves until a signal. Returns the exit code; raises OctavoError for a start that fails."""
    started = time.monotonic()
    logs.set_up()
    signals = Signals()
    try:
        code = _serve(asked, signals, started)
    except BaseException:
        signals.clean_up()
        signals.restore()
        raise
    signals.clean_up()
    print("octavo: stopped", file=sys.stderr, flush=True)
    signals.ignore()
    return code


def _serve(asked: Asked, signals: Signals, started: float) -> int:
    listener = listen(asked.server)
    if asked.server.uds is not None:
        signals.own_file(asked.server.uds)
    with contextlib.closing(listener):
        path, name = find_model(asked.model)
        spawner = Spawner()
        child = spawner.start(path)
        signals.own_engine(child.process.kill)
        try:
            from octavo.launch.plan import plan_at
            from octavo.wire.sockets import private_dir

            folder = private_dir()
            signals.own_folder(folder)
            planned = plan_at(path, name, asked)
            import uvloop

            server = _Server(asked, planned, listener, spawner, child, folder, signals, started)
            return uvloop.run(server.run())
        finally:
            child.kill()


def listen(server: ServerAsked) -> socket.socket:
    """A bound socket, not yet accepting. Raises ConfigError when the address is taken or not ours."""
    if server.uds is not None:
        _remove_stale(server.uds)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address: str | tuple[str, int] = server.uds
    else:
        family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        address = (server.host, server.port)
    try:
        bound.bind(address)
        bound.set_inheritable(False)
    except OSError as error:
        bound.close()
        place = server.uds or f"{server.host}:{server.port}"
        fix = "check --host and --port"
        if server.uds:
            fix = "remove the file if no server uses it, or give another --uds"
        elif isinstance(error, OSError) and error.errno in (48, 98):  # EADDRINUSE on macOS and Linux
            fix = f"stop what listens there, or use another port, such as --port {server.port + 1}"
        raise ConfigError(f"cannot listen on {place} ({error.strerror or error})", fix=fix) from None
    return bound


def _remove_stale(path: str) -> None:
    """Unlinks a socket that a killed server left: one that nobody answers at."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


def is_local(server: ServerPlan) -> bool:
    """Whether only this machine can reach the address."""
    if server.uds or server.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(server.host).is_loopback
    except ValueError:
        return False


class _Server:
    """One run of the API process. Everything here happens in one event loop."""

    def __init__(
        self,
        asked: Asked,
        planned: Planned,
        listener: socket.socket,
        spawner: Spawner,
        child: EngineProcess,
        folder: str,
        signals: Signals,
        started: float,
    ) -> None:
        self._asked = asked
        self._planned = planned
        self._plan: ServerPlan = planned.resolved.server
        self._listener = listener
        self._spawner = spawner
        self._child = child
        self._folder = folder
        self._signals = signals
        self._started = started
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []

    async def run(self) -> int:
        from octavo.api.client import EngineClient
        from octavo.launch.watch import EngineWatch
        from octavo.wire.heartbeat import Heartbeat

        path = os.path.join(self._folder, "heartbeat")
        heartbeat = Heartbeat.create(path)

        def progress() -> tuple[int, bool]:
            pulse = heartbeat.read()
            return pulse.steps, pulse.has_work

        client = EngineClient(progress=progress)
        watch = EngineWatch(
            self._spawner,
            self._child,
            self._planned.resolved.engine,
            client,
            folder=self._folder,
            heartbeat_path=path,
        )
        self._signals.own_engine(lambda: watch.child.process.kill())
        loop = asyncio.get_running_loop()
        self._signals.tell(lambda: loop.call_soon_threadsafe(self._stop, client))
        starting = asyncio.create_task(watch.start())
        stopped = asyncio.create_task(self._stopping.wait())
        self._tasks += [starting, stopped]
        try:
            await asyncio.sleep(0)  # the order goes out before this process imports anything more
            state = await asyncio.to_thread(self._build_state, client)
            await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():  # a signal during the start
                return self._code()
            print(render([*(await starting).table, *self._address_rows()]), file=sys.stderr)
            if not is_local(self._plan) and not self._plan.api_keys:
                log.warning(
                    "anyone who reaches %s may use this server: --api-key KEY guards it", self._where()
                )
            return await self._serve_http(state, watch, stopped)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.to_thread(watch.stop, 0.0 if self._signals.is_hurried else STOP_TIMEOUT_S)

    def _build_state(self, client: object) -> ApiState:
        """Imports the HTTP side and reads tokenizer and template: beside the engine's own start."""
        from octavo.api.app import create_app  # noqa: F401  (imported here, used when serving)
        from octavo.api.client import EngineClient
        from octavo.api.state import ApiState
        from octavo.launch.text import chat_template, generation_config, load_codec

        assert isinstance(client, EngineClient)
        source = self._planned.source
        return ApiState.build(
            client=client,
            tokenizer=load_codec(source, self._asked),
            server=self._plan,
            engine=self._planned.resolved.engine,
            generation_config=generation_config(source, self._asked),
            chat_template=chat_template(source, self._asked),
        )

    async def _serve_http(
        self, state: ApiState, watch: EngineWatch, stopped: asyncio.Task[Literal[True]]
    ) -> int:
        import uvicorn

        from octavo.api.app import create_app
        from octavo.launch.http import BoundedHttp

        class Quiet(uvicorn.Server):
            """Leaves signals to launch."""

            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield

        plan = self._plan
        http = Quiet(
            uvicorn.Config(
                create_app(state),
                http=BoundedHttp,
                loop="none",
                ws="none",
                log_config=None,
                log_level=plan.uvicorn_log_level,
                access_log=plan.access_log,
                server_header=False,
                root_path=plan.root_path,
                backlog=BACKLOG,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        if hasattr(os, "nice"):
            os.nice(API_NICENESS)
        gc.collect()
        gc.freeze()
        serving = asyncio.create_task(http.serve(sockets=[self._listener]))
        watching = asyncio.create_task(watch.run())
        announcing = asyncio.create_task(self._announce(http))
        self._tasks += [watching, announcing]
        if plan.log_stats:
            self._tasks.append(asyncio.create_task(log_stats(state)))
        await asyncio.wait({serving, watching, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if self._stopping.is_set():
            await self._drain(state)
        http.should_exit = True
        await serving
        if watching.done() and not self._stopping.is_set():
            watching.result()  # raises EngineDead
        return self._code()

    async def _announce(self, http: object) -> None:
        while not getattr(http, "started", False):
            await asyncio.sleep(0.002)
        elapsed_s = time.monotonic() - self._started
        names = ", ".join(self._plan.served_names)
        where, page = self._where(), ""
        if not self._plan.uds:
            where, page = f"{where}/v1", f"; a page to try it: {self._where(for_people=True)}/"
        print(f"octavo: ready: {names} at {where} ({elapsed_s:.2f} s){page}", file=sys.stderr, flush=True)

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
        return [
            ["address", self._where(), reach],
            guard if keys else ["api key", "none", "--api-key sets one"],
        ]

    # ---- the end --------------------------------------------------------------------------------

    def _stop(self, client: EngineClient) -> None:
        """The first signal has come; those after it are the handler's own (launch.signals)."""
        count = client.num_unfinished
        requests = "1 request" if count == 1 else f"{count} requests"
        text = f"draining: {requests}"
        if self._signals.first == signal.SIGINT:
            text = f"finishing {requests}; Ctrl-C again ends at once" if count else "stopping"
        print(f"octavo: {text}", file=sys.stderr, flush=True)
        self._stopping.set()

    def _code(self) -> int:
        return EXIT_CODE if self._signals.is_hurried else 0

    async def _drain(self, state: ApiState) -> None:
        """Not ready, no new requests; running ones may end within the time for it."""
        state.drain()
        client, deadline = state.client, time.monotonic() + self._plan.drain_timeout_s
        while client.num_unfinished and time.monotonic() < deadline and not client.is_closed:
            if self._signals.is_hurried:
                break
            await asyncio.sleep(0.02)
        if cut := client.num_unfinished:
            log.warning("%d running requests are cut off", cut)
            client.close("the server was shut down before this request had ended")


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
