"""POST /v1/responses, and what can be asked about a response that is kept."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from octavo.api.dialects.response_chat import own_terms
from octavo.api.response_runs import Run
from octavo.api.response_store import EventLog, Stored
from octavo.api.router import Router
from octavo.api.routes import response_turn, turn
from octavo.api.routes.common import (
    json_response,
    open_stream,
    or_gone,
    read_json,
    state_of,
    stream_interval,
    warning_headers,
)
from octavo.api.routes.response_turn import Asked, owner_of
from octavo.api.schema.responses import read
from octavo.api.writers.responses import ResponseWriter
from octavo.api.writers.sse import EventStream, with_keep_alive
from octavo.errors import InvalidRequest

router = Router()
_MAX_PAGE = 100


async def _asked(request: Request) -> Asked:
    state = state_of(request)
    raw = await read_json(request)
    if isinstance(raw.get("model"), str):
        state.served_name(raw["model"])
    body, passed, warnings = read(raw, strict=state.strict)
    return response_turn.ask(request, body, passed, warnings)


@router.post("/v1/responses")
async def create(request: Request) -> Response:
    arrival = time.monotonic()
    state = state_of(request)
    asked = await _asked(request)
    begun = await response_turn.begin(request, asked, arrival=arrival)
    options = response_turn.options_of(state, asked, begun.body)
    run = Run(
        begun.generation,
        ResponseWriter(options),
        id=asked.id,
        owner=asked.owner,
        sent=asked.sent,
        parent=asked.parent,
        has_logprobs=options.has_logprobs,
        keep=state.responses if asked.stores else None,
    )
    if asked.body.background:
        log = run.start()
        if asked.body.stream:
            return _from_log(request, log, 0, asked.warnings)
        return json_response(run.writer.snapshot(), warnings=asked.warnings)
    if asked.body.stream:
        return await open_stream(
            request,
            begun.generation,
            run.frames,
            interval=stream_interval(state, begun.body),
            warnings=asked.warnings,
        )
    return json_response(await or_gone(request, run.whole()), warnings=asked.warnings)


@router.post("/v1/responses/input_tokens")
async def input_tokens(request: Request) -> Response:
    """How many tokens the prompt would have; nothing runs and nothing is kept."""
    state = state_of(request)
    asked = await _asked(request)
    chat, notes = await response_turn.chat_of(state, asked)
    with own_terms():
        prompt = await turn.prompt_of(state, chat)
    return json_response(
        {"object": "response.input_tokens", "input_tokens": len(prompt.ids)}, warnings=asked.warnings + notes
    )


@router.get("/v1/responses/{response_id}")
async def retrieve(request: Request, response_id: str) -> Response:
    stored = _stored(request, response_id)
    query = request.query_params
    _check_query(request, "stream", "starting_after", "include", "include[]", "include_obfuscation")
    response_turn.check_include(stored, [*query.getlist("include"), *query.getlist("include[]")])
    if _flag(request, "include_obfuscation"):
        raise InvalidRequest(
            "include_obfuscation is not supported: deltas are not padded", param="include_obfuscation"
        )
    after = _number(request, "starting_after", -1, 0, 2**53)
    if not _flag(request, "stream"):
        if "starting_after" in query:
            raise InvalidRequest("starting_after needs stream=true", param="starting_after")
        return Response(stored.body(), media_type="application/json")
    if stored.log is None:
        raise InvalidRequest(
            f"the events of {response_id[:256]!r} were not kept: only responses made with background true can be "
            "streamed again",
            param="stream",
        )
    return _from_log(request, stored.log, after + 1, [])


@router.post("/v1/responses/{response_id}/cancel")
async def cancel(request: Request, response_id: str) -> Response:
    """Ends a background response; one that has ended already stays as it is."""
    stored = _stored(request, response_id)
    if not stored.is_background:
        raise InvalidRequest(
            f"the response {response_id[:256]!r} does not run in the background",
            param="response_id",
            fix="only responses made with background true can be cancelled; to end a stream, close it",
        )
    if stored.cancel is not None:
        await stored.cancel()
    return Response(stored.body(), media_type="application/json")


@router.delete("/v1/responses/{response_id}")
async def delete(request: Request, response_id: str) -> Response:
    """Forgets a response, running or not. Those that continue it keep its items as long as they are kept."""
    stored = _stored(request, response_id)
    if stored.cancel is not None:
        await stored.cancel()
    state_of(request).responses.remove(stored)
    return json_response({"id": stored.id, "object": "response", "deleted": True})


@router.get("/v1/responses/{response_id}/input_items")
async def input_items(request: Request, response_id: str) -> Response:
    """The items that a response was made of: those of the turns before it, and what was sent."""
    stored = _stored(request, response_id)
    _check_query(request, "after", "limit", "order", "include", "include[]")
    query = request.query_params
    response_turn.check_include(stored, [*query.getlist("include"), *query.getlist("include[]")])
    limit = _number(request, "limit", 20, 1, _MAX_PAGE)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order is {order[:32]!r}; allowed are asc and desc", param="order")
    items = stored.context()
    if order == "desc":
        items.reverse()
    if (after := query.get("after")) is not None:
        at = next((i for i, item in enumerate(items) if item["id"] == after), None)
        if at is None:
            raise InvalidRequest(
                f"after names {after[:256]!r}, which is no item of this response", param="after"
            )
        items = items[at + 1 :]
    page = items[:limit]
    return json_response(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > len(page),
        }
    )


# ---- what they share ----------------------------------------------------------------------------


def _stored(request: Request, response_id: str) -> Stored:
    return state_of(request).responses.get(owner_of(request), response_id)


def _from_log(request: Request, log: EventLog, start: int, warnings: list[str]) -> Response:
    """A stream of kept frames; when its client leaves, nothing else ends."""
    frames: AsyncGenerator[bytes, None] = log.read(start)
    if keep_alive_s := state_of(request).limits.sse_keep_alive_s:
        frames = with_keep_alive(frames, keep_alive_s)

    async def nothing() -> None:
        pass

    return EventStream(frames, nothing, headers=warning_headers(warnings))


def _check_query(request: Request, *known: str) -> None:
    for name in request.query_params:
        if name not in known:
            allowed = ", ".join(n for n in known if not n.endswith("]"))
            raise InvalidRequest(
                f"the query parameter {name[:64]!r} is not known; allowed are {allowed}", param=name[:64]
            )


def _flag(request: Request, name: str) -> bool:
    value: Any = request.query_params.get(name, "false").lower()
    if value not in ("true", "false", "1", "0"):
        raise InvalidRequest(f"{name} is {value[:32]!r}; allowed are true and false", param=name)
    return value in ("true", "1")


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    value = request.query_params.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 20 and least <= int(value) <= most):
        raise InvalidRequest(
            f"{name} is {value[:32]!r}; allowed is a whole number from {least} to {most}", param=name
        )
    return int(value)
