"""Message transport between one API process and one engine: two ZMQ pipes over ipc.

    to_engine:   API PUSH (connects)  ->  engine PULL (binds)
    from_engine: engine PUSH (connects)  ->  API PULL (binds)

Each PUSH side connects, so it has a queue of its own from the first moment, and no queue has a
limit: nothing is dropped while both ends live, whoever starts first. Order is kept. What was queued
for an engine that died is dropped with its endpoint (the API owns the requests and adds them to the
next engine); a new engine gets new addresses.

The file descriptor of a ZMQ socket is edge-triggered: it tells that something changed, once. So
`recv` always drains the socket until it says "nothing", and only then may a loop wait for `fd`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Generator

import zmq

from octavo.wire.addresses import Addresses
from octavo.wire.codec import MalformedMessageError, decode_from_engine, decode_to_engine, encode
from octavo.wire.messages import FromEngine, ToEngine

logger = logging.getLogger(__name__)

_RECONNECT_MS = 5
_LINGER_MS = 2000  # how long a closing engine waits for its last words to be read
_MAX_AT_ONCE = 4096
_YIELD_EVERY = 16


class EngineEndpoint:
    """The engine's side. Not for several threads."""

    def __init__(self, address_in: str, address_out: str) -> None:
        self._context = zmq.Context()
        self._in = self._context.socket(zmq.PULL)
        self._in.set_hwm(0)
        self._in.bind(address_in)
        self._address_out = address_out
        self._out = self._connected()

    def _connected(self) -> zmq.Socket[bytes]:
        out = self._context.socket(zmq.PUSH)
        out.set_hwm(0)
        out.setsockopt(zmq.LINGER, _LINGER_MS)
        out.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        out.connect(self._address_out)
        return out

    def forget(self) -> None:
        """The API process at the other end is gone: what was to be sent to it is dropped, the next one starts clean."""
        self._out.close(0)
        self._out = self._connected()

    @property
    def fd(self) -> int:
        """Becomes readable, edge-triggered, when there may be messages: call `recv` before waiting for it."""
        return int(self._in.getsockopt(zmq.FD))

    def recv(self) -> list[ToEngine]:
        """All messages that are there, without waiting. Malformed ones are logged and dropped."""
        messages: list[ToEngine] = []
        while len(messages) < _MAX_AT_ONCE:
            try:
                data = self._in.recv(zmq.DONTWAIT)
            except zmq.Again:
                break
            try:
                messages.append(decode_to_engine(data))
            except MalformedMessageError as error:
                logger.error("dropped %d bytes: %s", len(data), error)
        return messages

    def has_more(self) -> bool:
        """Is there something that `recv` left, or that came meanwhile? Resets the edge of `fd`."""
        return bool(int(self._in.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def send(self, message: FromEngine) -> None:
        self._out.send(encode(message), zmq.DONTWAIT)

    def close(self) -> None:
        self._in.close(0)
        self._out.close()
        self._context.term()


class _Sent:
    """`send` is done when it returns; awaiting it is allowed and costs nothing."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_SENT = _Sent()


class ClientEndpoint:
    """The API's side, in an asyncio loop: `send(message)`, and `async for message in endpoint`.

    One task receives. A plain ZMQ socket under `add_reader` does what zmq.asyncio would, without loading
    asyncio into the engine process, which shares this file.
    """

    def __init__(self, addresses: Addresses) -> None:
        self._context = zmq.Context()
        self._in = self._context.socket(zmq.PULL)
        self._out = self._context.socket(zmq.PUSH)
        for socket in (self._in, self._out):
            socket.set_hwm(0)
            socket.setsockopt(zmq.LINGER, 0)
        self._out.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self._in.bind(addresses.from_engine)
        self._out.connect(addresses.to_engine)
        self._num_at_once = 0
        self._stop_watching: Callable[[], object] | None = None

    def send(self, message: ToEngine) -> _Sent:
        """Queue a message, in order. Never waits: there is no limit, and a queue from the start."""
        self._out.send(encode(message), zmq.DONTWAIT)
        return _SENT

    async def recv(self) -> FromEngine:
        """The next message. Malformed ones are logged and dropped."""
        while True:
            try:
                data = self._in.recv(zmq.DONTWAIT)
            except zmq.Again:
                await self._readable()
                continue
            await self._let_others_run()
            try:
                return decode_from_engine(data)
            except MalformedMessageError as error:
                logger.error("dropped %d bytes: %s", len(data), error)

    async def _readable(self) -> None:
        """Wait for the descriptor. The receive before it drained the socket, which reset the edge."""
        import asyncio

        self._num_at_once = 0
        loop = asyncio.get_running_loop()
        came: asyncio.Future[None] = loop.create_future()
        fd = int(self._in.getsockopt(zmq.FD))

        def wake() -> None:
            if not came.done():
                came.set_result(None)

        loop.add_reader(fd, wake)
        self._stop_watching = lambda: loop.remove_reader(fd)
        try:
            await came
        finally:
            self._unwatch()

    def _unwatch(self) -> None:
        """Before the descriptor is closed: its number may soon be another socket's."""
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None

    async def _let_others_run(self) -> None:
        """A reader that always finds something would never give up the loop."""
        self._num_at_once += 1
        if self._num_at_once >= _YIELD_EVERY:
            import asyncio

            self._num_at_once = 0
            await asyncio.sleep(0)

    def __aiter__(self) -> AsyncIterator[FromEngine]:
        return self

    async def __anext__(self) -> FromEngine:
        """Never ends by itself: cancel the task that iterates, then `close`."""
        return await self.recv()

    def close(self) -> None:
        """At once, whatever is queued. A task that still receives must be cancelled: it would wait for ever."""
        self._unwatch()
        self._in.close(0)
        self._out.close(0)
        self._context.term()
