"""Control of the engine, for operators: pause, resume, forget prefixes. Served under OCTAVO_SERVER_DEV_MODE=1 only.

A paused server queues new requests, stays healthy and says "paused" at /health.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from octavo.api.router import Router
from octavo.api.routes.common import json_response, or_gone, state_of
from octavo.errors import InvalidRequest

router = Router()

MODES = ("abort", "wait", "keep")
_LOOK_EVERY_S = 0.02
_WORDS = {"true": True, "1": True, "false": False, "0": False}


def _choice(request: Request, name: str, default: str, allowed: tuple[str, ...]) -> str:
    given = request.query_params.get(name, default)
    if given not in allowed:
        raise InvalidRequest(f"{name} is {given[:32]!r}; allowed are {', '.join(allowed)}", param=name)
    return given


def _flag(request: Request, name: str, *, default: bool) -> bool:
    return _WORDS[_choice(request, name, str(default).lower(), tuple(_WORDS))]


def _only(request: Request, *names: str) -> None:
    """Refuses parameters that would do nothing."""
    for name in request.query_params:
        if name not in names:
            allowed = ", ".join(names) or "none"
            raise InvalidRequest(
                f"there is no parameter {name[:32]!r} here; allowed are {allowed}", param=name[:32]
            )


@router.post("/pause")
async def pause(request: Request) -> Response:
    """Answers when the engine stands still. `mode`: abort (default), wait or keep; `clear_cache`: true."""
    _only(request, "mode", "clear_cache")
    client = state_of(request).client
    mode = _choice(request, "mode", "abort", MODES)
    await client.call("pause", mode, _flag(request, "clear_cache", default=True))

    async def standstill() -> None:
        while not await client.call("is_paused"):
            await asyncio.sleep(_LOOK_EVERY_S)

    await or_gone(request, standstill())
    return json_response({"status": "paused"})


@router.post("/resume")
async def resume(request: Request) -> Response:
    _only(request)
    await state_of(request).client.call("resume")
    return json_response({"status": "resumed"})


@router.get("/is_paused")
async def is_paused(request: Request) -> Response:
    return json_response({"is_paused": await state_of(request).client.call("is_paused")})


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(request: Request) -> Response:
    """False while running requests hold blocks, unless `reset_running_requests` makes them wait and go on later."""
    _only(request, "reset_running_requests")
    resets_running = _flag(request, "reset_running_requests", default=False)
    success = await state_of(request).client.call("reset_prefix_cache", resets_running)
    return json_response({"success": success})
