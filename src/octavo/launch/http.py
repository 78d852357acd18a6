"""uvicorn's HTTP protocol with bounds on what comes before an answer: the parser itself has none.

Of size: it joins the parts of a header one by one, so an endless header costs quadratic time and all memory,
on the event loop and before any key is asked for. Of time: a client that sends nothing, or a byte now and then,
would hold a connection and what it has sent for ever. Of number: file descriptors are left for everything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo.config.plan import ServerPlan

MAX_HEAD_BYTES = 64 << 10  # request line, headers, trailers; a read may go beyond it by its own size
BACKLOG = 2048
GRACE_S = 2  # for responses that are written already, after the last request has ended


LEAST_BODY_RATE = 1_000  # bytes/s of a body, once its first seconds are over
MAX_FILES = 1 << 16  # descriptors that are asked for; the system may allow fewer
RESERVED_FILES = 128  # for the engine's sockets and its next one, workers, files
_LATE = b"The request did not arrive in time."
_FULL = b"The server has as many connections as its limit of open files allows."


def max_connections() -> int:
    """As many as there are file descriptors for. Raises the soft limit of this process first, where it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    allowed = MAX_FILES if soft == resource.RLIM_INFINITY else soft
    return max(allowed - RESERVED_FILES, allowed // 2)


def _plain(status: bytes, text: bytes, *headers: bytes) -> bytes:
    """An answer to who gets no other: the connection ends with it."""
    head = [b"HTTP/1.1 " + status, b"content-type: text/plain; charset=utf-8"]
    head += [b"content-length: %d" % len(text), b"connection: close", *headers]
    return b"\r\n".join(head) + b"\r\n\r\n" + text


class BoundedHttp(HttpToolsProtocol):
    """Closes a connection that sends more than MAX_HEAD_BYTES without completing its headers or adding to a body.

    And one whose request is not there in time: `receive_timeout_s` (0 = no bound) for a head, from the moment when
    one is due; for a body as much, and a second more for every LEAST_BODY_RATE bytes of it that have come.
    Between two requests uvicorn's own keep-alive timeout counts. One connection more than `max_connections` is a 503.
    """

    receive_timeout_s: float = 30.0
    max_connections: int = MAX_FILES

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._due_s = 0.0  # loop time at which the head, or the body, has to be there; 0 = nothing is due
        self._has_begun = False  # a byte of the request has come
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.write(_plain(b"503 Service Unavailable", _FULL, b"retry-after: 1"))
            transport.close()
            return
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        super().connection_lost(exc)

    def _expect(self) -> None:
        """A head, or the first piece of a body, has to come from now on."""
        self._settle()
        if self.receive_timeout_s:
            self._due_s = self.loop.time() + self.receive_timeout_s
            self._timer = self.loop.call_at(self._due_s, self._look)

    def _settle(self) -> None:
        """Nothing is due any more."""
        self._due_s = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """The timer: it is late by now, unless pieces came that gave it more time."""
        if not self._due_s or self.transport.is_closing():
            return
        if self.flow.read_paused:  # this side has no room for more: not the client's fault
            self._due_s = self.loop.time() + self.receive_timeout_s
        if self.loop.time() < self._due_s:
            self._timer = self.loop.call_at(self._due_s, self._look)
            return
        if self._has_begun and (self.cycle is None or not self.cycle.response_started):
            self.transport.write(_plain(b"408 Request Timeout", _LATE))
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        self._has_begun = True
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and not self._due_s:  # the first bytes of the next request on this connection
            self._expect()
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request line and headers are too long.")

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        super().on_headers_complete()
        self._expect()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)
        if self._due_s:
            self._due_s += len(body) / LEAST_BODY_RATE

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        self._settle()
        super().on_message_complete()


class _Quiet(uvicorn.Server):
    """Leaves signals to launch."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_server(app: Starlette, plan: ServerPlan) -> uvicorn.Server:
    """The HTTP server of an API process, for the event loop that runs; its socket comes with `serve`."""
    bounds = {"receive_timeout_s": plan.http_timeout_receive_s, "max_connections": max_connections()}
    return _Quiet(
        uvicorn.Config(
            app,
            http=type("Http", (BoundedHttp,), bounds),
            timeout_keep_alive=plan.http_timeout_keep_alive_s,
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
