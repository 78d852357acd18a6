"""What routes share: the state, the body, ids, and the two ways to answer with a generation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing
from typing import Any, Protocol, TypeVar, cast

import msgspec
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from octavo.api.faults import REQUEST_ID
from octavo.api.generation import Generation, engine_error, first_event
from octavo.api.middleware import API_KEY, clean_id
from octavo.api.schema.common import GenerationBody
from octavo.api.schema.normalise import normalise, parse_json
from octavo.api.state import ApiState
from octavo.api.text.pipeline import ChoiceEvent
from octavo.api.writers.shapes import UsageShape, usage_shape
from octavo.api.writers.sse import (
    KEEP_ALIVE,
    OPENAI,
    EventStream,
    Framing,
    guarded,
    until_disconnect,
    with_keep_alive,
)
from octavo.errors import InvalidRequest

Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")
_WARNINGS = "X-Octavo-Warnings"
_NO_INTERVAL = 1 << 40
_encoder = msgspec.json.Encoder()


class StreamWriter(Protocol):
    def chunks(self, event: ChoiceEvent, /) -> Iterator[Any]: ...

    def usage(self, usage: UsageShape, /) -> Any: ...


class Fold(Protocol):
    def add(self, event: ChoiceEvent, /) -> None: ...

    def result(self, usage: UsageShape, /) -> Any: ...


class ClientGone(Exception):
    """The client closed the connection before it had an answer."""


def state_of(request: Request) -> ApiState:
    return cast(ApiState, request.app.state.octavo)


async def read_json(request: Request) -> dict[str, Any]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidRequest(f"Content-Type is {kind[:64] or 'missing'}; it must be application/json")
    return parse_json(await request.body())


async def read_body(request: Request, model: type[Model]) -> tuple[Model, list[str]]:
    """(checked body, warnings). The model's name is looked at first."""
    state = state_of(request)
    body = await read_json(request)
    if isinstance(body.get("model"), str):
        state.served_name(body["model"])
    return normalise(model, body, strict=state.strict)


def client_id(request: Request, body: GenerationBody) -> str:
    """The id that the client knows: its header, else its body, else the one made at the door."""
    if clean_id(request.headers.get("x-request-id")) is None:
        given = clean_id(body.request_id)
        if given is not None:
            return given
    return str(request.scope[REQUEST_ID])


def api_key(request: Request) -> str | None:
    return request.scope.get(API_KEY)


def json_response(value: Any, *, warnings: Iterable[str] = (), status: int = 200) -> Response:
    return Response(
        _encoder.encode(value),
        status_code=status,
        media_type="application/json",
        headers=warning_headers(warnings),
    )


def warning_headers(warnings: Iterable[str]) -> dict[str, str]:
    """Warnings as one header: ASCII, one line, bounded."""
    text = "; ".join(warnings).encode("ascii", "backslashreplace").decode()
    text = "".join(c if c.isprintable() else " " for c in text)[:2_000]
    return {_WARNINGS: text} if text else {}


def stream_interval(state: ApiState, body: GenerationBody) -> int:
    """A request may ask for fewer, larger chunks than the server sends, not for more."""
    return max(state.server.stream_interval, body.stream_interval or 1)


def priority_note(state: ApiState, body: GenerationBody) -> list[str]:
    """A priority that does nothing is said to do nothing."""
    if body.priority and state.engine.scheduler.policy != "priority":
        return [f"priority has no effect under --scheduling-policy {state.engine.scheduler.policy}"]
    return []


def usage_wishes(body: GenerationBody) -> tuple[bool, bool]:
    """(usage at the end, usage in every chunk)."""
    options = body.stream_options
    if options is None:
        return False, False
    if not body.stream:
        raise InvalidRequest("stream_options needs stream true", param="stream_options")
    if options.include_obfuscation:
        raise InvalidRequest(
            "stream_options.include_obfuscation is not supported: chunks are not padded",
            param="stream_options",
        )
    if options.continuous_usage_stats and not options.include_usage:
        raise InvalidRequest(
            "stream_options.continuous_usage_stats needs include_usage true", param="stream_options"
        )
    return bool(options.include_usage), bool(options.continuous_usage_stats)


async def answer_whole(
    request: Request, generation: Generation, fold: Fold, *, warnings: list[str]
) -> Response:
    """The fold of all events. A client that leaves ends the work."""

    async def gather() -> Any:
        async with aclosing(generation.events(interval=_NO_INTERVAL)) as events:
            async for event in events:
                if event.error is not None:
                    raise engine_error(event)
                fold.add(event)
        return fold.result(usage_shape(generation.usage))

    return json_response(await or_gone(request, gather()), warnings=warnings)


async def answer_stream(
    request: Request,
    generation: Generation,
    writer: StreamWriter,
    *,
    usage: tuple[bool, bool],
    interval: int,
    warnings: list[str],
    framing: Framing = OPENAI,
) -> Response:
    """A stream of the writer's chunks: usage when asked for, an error frame when it breaks, the dialect's end."""

    def frames_of(events: AsyncGenerator[ChoiceEvent, None]) -> AsyncGenerator[bytes, None]:
        return guarded(_frames(events, generation, writer, usage, framing), framing)

    return await open_stream(
        request, generation, frames_of, interval=interval, warnings=warnings, keep_alive=framing.keep_alive
    )


async def answer_foreign(
    request: Request,
    generation: Generation,
    *,
    streams: bool,
    writer: StreamWriter,
    fold: Fold,
    framing: Framing,
    warnings: list[str],
) -> Response:
    """In another API's events, whose last one has the usage, or as their fold."""
    if not streams:
        return await answer_whole(request, generation, fold, warnings=warnings)
    return await answer_stream(
        request,
        generation,
        writer,
        usage=(True, False),
        interval=state_of(request).server.stream_interval,
        warnings=warnings,
        framing=framing,
    )


async def open_stream(
    request: Request,
    generation: Generation,
    frames_of: Callable[[AsyncGenerator[ChoiceEvent, None]], AsyncGenerator[bytes, None]],
    *,
    interval: int,
    warnings: list[str],
    keep_alive: bytes = KEEP_ALIVE,
) -> Response:
    """Waits for the first event, so that an early failure is an HTTP error; then streams.

    `frames_of` turns the events into the frames of a dialect, its error frame and its end included.
    """
    keep_alive_s = state_of(request).limits.sse_keep_alive_s
    events = generation.events(interval=interval)
    first = asyncio.create_task(first_event(events))
    watch = asyncio.create_task(until_disconnect(request.receive))

    async def cleanup() -> None:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await events.aclose()

    try:
        await asyncio.wait({first, watch}, timeout=keep_alive_s or None, return_when=asyncio.FIRST_COMPLETED)
        if first.done():
            first.result()
        elif watch.done():
            raise ClientGone
    except BaseException:
        await cleanup()
        raise
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
    frames = frames_of(_with_first(first, events))
    if keep_alive_s:
        frames = with_keep_alive(frames, keep_alive_s, keep_alive)
    return EventStream(frames, cleanup, headers=warning_headers(warnings))


async def _with_first(
    first: asyncio.Task[ChoiceEvent], events: AsyncGenerator[ChoiceEvent, None]
) -> AsyncGenerator[ChoiceEvent, None]:
    yield await first
    async for event in events:
        yield event


async def _frames(
    events: AsyncGenerator[ChoiceEvent, None],
    generation: Generation,
    writer: StreamWriter,
    usage: tuple[bool, bool],
    framing: Framing,
) -> AsyncGenerator[bytes, None]:
    at_end, in_each = usage
    async for event in events:
        chunks = list(writer.chunks(event))
        if in_each:
            now = usage_shape(generation.usage)
            for chunk in chunks:
                chunk.usage = now
        if chunks:
            yield b"".join(map(framing.message, chunks))
        if event.error is not None:
            raise engine_error(event)
    if at_end:
        yield framing.message(writer.usage(usage_shape(generation.usage)))


async def or_gone(request: Request, work: Coroutine[Any, Any, Value]) -> Value:
    """The result of `work`. Cancels it and raises ClientGone when the client leaves first."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(until_disconnect(request.receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for t in (task, watch):
            t.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)
