"""`serve`: takes the port, forks the engine child, and becomes the first API process.

Order of a start, for speed: the port is taken (so that a busy one costs nothing), the child is forked
and imports, meanwhile this process reads headers, plans, and imports the HTTP side; then it waits. So
nothing is imported here that the fork does not need.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
import time

from octavo.config.asked import Asked
from octavo.config.server import ServerAsked
from octavo.errors import ConfigError
from octavo.launch import logs
from octavo.launch.find import find_model
from octavo.launch.signals import Signals
from octavo.launch.spawn import Spawner


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
    logs.say("octavo: stopped")
    signals.ignore()
    return code


def _serve(asked: Asked, signals: Signals, started: float) -> int:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(contextlib.closing(s)) for s in listen_all(asked)]
        if asked.server.uds is not None:
            signals.own_file(asked.server.uds)
        path, name = find_model(asked.model)
        spawner = Spawner()
        child = spawner.start(path)
        signals.own_engine(child.process.kill)
        try:
            from octavo.launch.engine import one_blas_thread
            from octavo.launch.folders import own_dir

            with one_blas_thread():
                from octavo.launch.plan import plan_at

            folder = own_dir()
            signals.own_folder(folder)
            planned = plan_at(path, name, asked)
            import uvloop

            from octavo.launch.server import Server

            async def run() -> int:
                server = Server(asked, planned, listeners, spawner, child, folder, signals, started)
                return await server.run()

            return uvloop.run(run())
        finally:
            child.kill()


def listen_all(asked: Asked) -> list[socket.socket]:
    """A socket for each API process, all at one address. Raises ConfigError as `listen` does.

    Linux spreads connections evenly over sockets that share a port; elsewhere, and for Unix sockets, the
    processes accept from one. All stay open here, so that those who wait at the socket of a process that
    died are served by the next.
    """
    count = asked.parallel.api_server_count
    first = listen(asked.server)
    if count == 1 or asked.server.uds is not None or sys.platform != "linux":
        return [first, *(first.dup() for _ in range(count - 1))]
    host, port = first.getsockname()[:2]
    first.close()  # the port is free, or that would have failed
    shared = [_bind_shared(first.family, host, port) for _ in range(count)]
    for one in shared:
        one.set_inheritable(False)
    return shared


def _bind_shared(family: socket.AddressFamily | int, host: str, port: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((host, port))
    return bound


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
