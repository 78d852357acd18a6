"""What every request passes before a route: its id, the API key, the size of its body. Pure ASGI, no buffering.

The guard denies by default: it looks for the two open routes by exact path and asks everything else,
known or not, for a key; so no trick with the request line can name a route that it does not guard.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.api.faults import body_of
from octavo.api.metrics import Metrics
from octavo.errors import InvalidRequest

OPEN_PATHS = frozenset({"/health", "/ping"})
REQUEST_ID = "octavo.request_id"  # keys of the ASGI scope
API_KEY = "octavo.api_key"
_ID = re.compile(r"[\x21-\x7e]{1,128}")


def clean_id(given: str | None) -> str | None:
    """A client's id if it may be sent back in a header; None otherwise."""
    return given if given is not None and _ID.fullmatch(given) else None


class RequestIds:
    """Takes X-Request-Id or makes one; sends it back when it was given, or always. Counts responses."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, always_send: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._always_send = always_send

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = clean_id(Headers(scope=scope).get("x-request-id"))
        request_id = scope[REQUEST_ID] = given or uuid.uuid4().hex
        is_sent_back = self._always_send or given is not None
        status = 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if is_sent_back:
                    MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            handler = getattr(scope.get("route"), "path", "other")
            self._metrics.on_http(scope["method"], status, handler)


class KeyGuard:
    """401 without one of the keys, on every path but the open ones. Compares all keys in constant time."""

    def __init__(self, app: ASGIApp, *, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(k.encode()).digest() for k in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not self._digests or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        key = self._key(scope)
        if key is not None and scope["type"] == "http":
            scope[API_KEY] = key
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        body = body_of(
            "a valid API key is needed: send the header 'Authorization: Bearer KEY'",
            kind="AuthenticationError",
            status=401,
        )
        response = JSONResponse(body, status_code=401, headers={"WWW-Authenticate": "Bearer"})
        await response(scope, receive, send)

    @staticmethod
    def _is_open(scope: Scope) -> bool:
        return scope["type"] == "http" and scope["path"] in OPEN_PATHS

    def _key(self, scope: Scope) -> str | None:
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        digest = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        is_known = False
        for known in self._digests:
            is_known |= hmac.compare_digest(digest, known)
        return given.strip() if is_known and scheme.lower() == "bearer" else None


class BodyLimit:
    """413 for a body that says or proves to be too large; nothing past the bound is kept."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        said = Headers(scope=scope).get("content-length", "")
        if said.isdigit() and int(said) > self._max_bytes:
            response = JSONResponse(
                body_of(self._message(), kind="RequestTooLargeError", status=413), status_code=413
            )
            await response(scope, receive, send)
            return
        seen = 0

        async def receive_counted() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > self._max_bytes:
                    raise InvalidRequest(self._message(), status=413, kind="RequestTooLargeError")
            return message

        await self._app(scope, receive_counted, send)

    def _message(self) -> str:
        return f"the body is larger than {self._max_bytes} bytes"
