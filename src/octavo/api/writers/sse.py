"""Server-sent events: one frame per message, an error frame when something breaks, a mark at the end.

Owns how a stream is carried and how it ends. What a frame looks like is a `Framing`, one per dialect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.api.faults import error_body

log = logging.getLogger("octavo.api")

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
_encoder = msgspec.json.Encoder()
#: Line ends of Unicode, which are none to SSE or JSON, but to clients that read a stream by `str.splitlines`.
_LINE_ENDS = {char.encode(): f"\\u{ord(char):04x}".encode() for char in "\x85\u2028\u2029"}


def frame(value: object) -> bytes:
    """A message on one line, whatever a client takes for the end of a line."""
    data = _encoder.encode(value)
    if not data.isascii():
        for raw, escaped in _LINE_ENDS.items():
            data = data.replace(raw, escaped)
    return b"data: " + data + b"\n\n"


def named_frame(name: str, value: object) -> bytes:
    """A frame with an `event:` line."""
    return b"event: " + name.encode() + b"\n" + frame(value)


@dataclass(frozen=True, slots=True)
class Framing:
    """How a dialect puts its messages on the wire.

    `error` gets an error in OpenAI's shape (of `faults.error_body`); `end` closes every stream; `keep_alive`
    fills silence.
    """

    message: Callable[[Any], bytes] = frame
    error: Callable[[dict[str, Any]], bytes] = frame
    end: bytes = DONE
    keep_alive: bytes = KEEP_ALIVE


OPENAI = Framing()


async def guarded(
    frames: AsyncGenerator[bytes, None], framing: Framing = OPENAI
) -> AsyncGenerator[bytes, None]:
    """The frames, then the mark of the end; an exception becomes an error frame before it."""
    try:
        async with aclosing(frames):
            async for data in frames:
                yield data
    except Exception as error:
        _, body = error_body(error)
        log.warning("a stream ended with an error: %s", body["error"]["message"])
        yield framing.error(body)
    if framing.end:
        yield framing.end


async def with_keep_alive(
    frames: AsyncGenerator[bytes, None], interval_s: float, filler: bytes = KEEP_ALIVE
) -> AsyncGenerator[bytes, None]:
    """The frames, with `filler` (a comment line) after each `interval_s` of silence."""
    pending = asyncio.ensure_future(anext(frames))
    try:
        while True:
            done, _ = await asyncio.wait({pending}, timeout=interval_s)
            if not done:
                yield filler
                continue
            try:
                yield pending.result()
            except StopAsyncIteration:
                return
            pending = asyncio.ensure_future(anext(frames))
    finally:
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        await frames.aclose()


class EventStream(Response):
    """Sends frames until they end or the client leaves; then calls `cleanup`, which aborts what still runs."""

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        cleanup: Callable[[], Awaitable[None]],
        *,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(
            None, headers={**(headers or {}), "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        )
        del self.headers["content-length"]
        self._frames = frames
        self._cleanup = cleanup

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.create_task(self._pump(send))
        watch = asyncio.create_task(until_disconnect(receive))
        try:
            await asyncio.wait({pump, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (pump, watch):
                task.cancel()
            results = await asyncio.gather(pump, watch, return_exceptions=True)
            await self._frames.aclose()
            await self._cleanup()
        if isinstance(results[0], Exception) and not isinstance(results[0], OSError):
            raise results[0]

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._frames:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_disconnect(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
