"""What the server says of itself: models, health, version, plan, metrics, load, and the page at /."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import octavo
from octavo.api.page import page_response
from octavo.api.router import Router
from octavo.api.routes.common import json_response, state_of
from octavo.api.state import ApiState
from octavo.config.structured import BACKENDS
from octavo.grammar.keywords import FORMATS, table
from octavo.grammar.request import CONSTRAINTS

router = Router()

_SETTLE_S = 0.2


@router.get("/")
async def page() -> Response:
    return page_response()


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """In OpenAI's shape; for clients that send `anthropic-version`, in Anthropic's."""
    state = state_of(request)
    names = state.server.served_names
    if "anthropic-version" in request.headers:
        listed = [_anthropic_card(state, name) for name in names]
        return json_response({"data": listed, "has_more": False, "first_id": names[0], "last_id": names[-1]})
    return json_response({"object": "list", "data": [_card(state, n) for n in names]})


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    state = state_of(request)
    card = _anthropic_card if "anthropic-version" in request.headers else _card
    return json_response(card(state, state.served_name(name)))


def _anthropic_card(state: ApiState, name: str) -> dict[str, Any]:
    created = datetime.fromtimestamp(state.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created,
        "max_input_tokens": state.max_model_len,
    }


def _card(state: ApiState, name: str) -> dict[str, Any]:
    """OpenAI's card, and what applies when a request gives no sampling fields."""
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "octavo",
        "root": state.server.model or state.engine.model,
        "parent": None,
        "max_model_len": state.max_model_len,
        "sampling_defaults": msgspec.to_builtins(state.defaults),
    }


@router.api_route("/health", methods=["GET", "HEAD"])
@router.api_route("/ping", methods=["GET", "HEAD", "POST"])
async def health(request: Request) -> Response:
    """200 when idle or making progress; 503 when starting, stalled, draining or dead. Never asks the engine."""
    watch = state_of(request).health
    return json_response({"status": watch.state}, status=200 if watch.is_healthy else 503)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """The routes and their bodies, as OpenAPI 3.1."""
    from octavo.api.openapi import document  # most servers are never asked

    return json_response(document(request.app))


@router.get("/version")
async def version() -> Response:
    return json_response({"version": octavo.__version__})


@router.get("/server_info")
async def server_info(request: Request) -> Response:
    """The plan table: what runs and why, as printed at start."""
    state = state_of(request)
    ready = state.client.ready
    return json_response(
        {
            "version": octavo.__version__,
            "models": list(state.server.served_names),
            "max_model_len": state.max_model_len,
            "state": state.health.state,
            "engine_restarts": state.client.restarts,
            "table": (ready.table if ready is not None else state.engine.table) + state.table,
            "sampling_defaults": msgspec.to_builtins(state.defaults),
        }
    )


@router.get("/structured_outputs")
async def structured_outputs(request: Request) -> Response:
    """What structured output does here: the default backend, the kinds, and every JSON Schema keyword."""
    plan = state_of(request).engine.structured
    keywords = {name: {"support": support, "note": note} for name, support, note in table()}
    return json_response(
        {
            "backend": plan.backend,
            "backends": list(BACKENDS),
            "constraints": list(CONSTRAINTS),
            "disable_any_whitespace": not plan.any_whitespace,
            "disable_additional_properties": not plan.additional_properties,
            "formats": list(FORMATS),
            "keywords": keywords,
        }
    )


@router.get("/kv_event_sources")
async def kv_event_sources(request: Request) -> Response:
    """Where KV events are published, by the rank of the replica; {} where they are off."""
    events = state_of(request).engine.cache.events
    return json_response({"0": msgspec.to_builtins(events)} if events.is_on else {})


@router.get("/load")
async def load(request: Request) -> Response:
    state = state_of(request)
    others = await state.others()
    return json_response({"server_load": state.logs.num_open + sum(other.num_open for other in others)})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    state = state_of(request)
    await _settle(state)
    others = [other.series for other in await state.others()]
    from prometheus_client import CONTENT_TYPE_LATEST  # with the text: at the first scrape, not at the start

    return Response(state.metrics.text(others), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _settle(state: ApiState) -> None:
    """Answers that have just ended wait for the engine's record; a scrape gives them a moment to come."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _SETTLE_S
    while state.logs.num_ending and loop.time() < deadline:
        await asyncio.sleep(0.005)
