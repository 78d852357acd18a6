"""What the server says of itself: models, health, version, plan, metrics, load, and the page at /."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

import octavo
from octavo.api.page import page_response
from octavo.api.routes.common import json_response, state_of
from octavo.api.state import ApiState

router = APIRouter()

_SETTLE_S = 0.2


@router.get("/")
async def page() -> Response:
    return page_response()


@router.get("/v1/models")
async def models(request: Request) -> Response:
    state = state_of(request)
    return json_response({"object": "list", "data": [_card(state, n) for n in state.server.served_names]})


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    state = state_of(request)
    return json_response(_card(state, state.served_name(name)))


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
            "table": ready.table if ready is not None else state.engine.table,
            "sampling_defaults": msgspec.to_builtins(state.defaults),
        }
    )


@router.get("/load")
async def load(request: Request) -> Response:
    return json_response({"server_load": state_of(request).logs.num_open})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    state = state_of(request)
    await _settle(state)
    return Response(state.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _settle(state: ApiState) -> None:
    """Answers that have just ended wait for the engine's record; a scrape gives them a moment to come."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _SETTLE_S
    while state.logs.num_ending and loop.time() < deadline:
        await asyncio.sleep(0.005)
