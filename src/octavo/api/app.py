"""The ASGI application: routes, guards, error shapes, and what runs beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from octavo import env
from octavo.api import faults
from octavo.api.middleware import BodyLimit, HostGuard, KeyGuard, RequestIds, is_loopback
from octavo.api.routes import (
    chat,
    chat_batch,
    cohere,
    completions,
    control,
    info,
    messages,
    responses,
    tokenise,
    tokens,
)
from octavo.api.routes.common import ClientGone
from octavo.api.state import ApiState

#: In the order in which they are looked through; the second are for operators, under OCTAVO_SERVER_DEV_MODE=1.
ROUTERS = tuple(
    module.router
    for module in (chat, chat_batch, completions, responses, messages, cohere, tokens, tokenise, info)
)
DEV_ROUTERS = (control.router,)
_CLIENT_CLOSED_REQUEST = 499  # seen by nobody but the log


def create_app(state: ApiState) -> Starlette:
    """The application of one API process; `state` is at `app.state.octavo`."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if state.prompts.template.source is not None:
            state.pool.warm()
        watch = asyncio.create_task(state.health.run())
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await state.responses.close()
            state.pool.close()
            state.grammars.close()

    app = Starlette(lifespan=lifespan)
    app.router.redirect_slashes = False
    app.state.octavo = state
    paths: set[str] = set()
    for router in (*ROUTERS, *(DEV_ROUTERS if env.is_dev_mode() else ())):
        app.router.routes.extend(router.routes)
        paths |= {route.path for route in router.routes}
    faults.install(app, sorted(path for path in paths if "{" not in path))
    for gone in (ClientGone, ClientDisconnect):  # with its answer to come, or its body half sent
        app.add_exception_handler(gone, _client_gone)
    _add_middleware(app, state)
    return app


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


def _add_middleware(app: Starlette, state: ApiState) -> None:
    """Outermost last: ids, the Host, CORS (preflights carry no key), the key, the size of the body."""
    server = state.server
    app.add_middleware(BodyLimit, max_bytes=state.limits.max_body_bytes)
    app.add_middleware(KeyGuard, keys=server.api_keys)
    if server.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(server.allowed_origins),
            allow_methods=list(server.allowed_methods),
            allow_headers=list(server.allowed_headers),
            allow_credentials=server.allow_credentials,
            expose_headers=["X-Request-Id", "X-Octavo-Warnings"],
        )
    if not server.api_keys and not server.uds and is_loopback(server.host):
        app.add_middleware(HostGuard)
    app.add_middleware(RequestIds, metrics=state.metrics, always_send=server.request_id_headers)
