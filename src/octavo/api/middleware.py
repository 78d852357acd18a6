"""What every request passes before a route: its id, Host, API key, the size of its body. Pure ASGI, no buffering.

The guard of keys denies by default: it looks for the few open routes by exact method and path and asks everything
else, known or not, for a key; so no trick with the request line can name a route that it does not guard.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.api.dialects.errors import is_anthropic, path_of
from octavo.api.faults import REFUSAL, REQUEST_ID, refusal_response
from octavo.api.metrics import Metrics
from octavo.api.page import page_response
from octavo.errors import InvalidRequest

log = logging.getLogger("octavo.request")

OPEN_ROUTES = frozenset((method, path) for path in ("/health", "/ping") for method in ("GET", "HEAD", "POST"))
API_KEY = "octavo.api_key"  # key of the ASGI scope
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_MAX_PLACE = 128  # characters in the log
_MAX_REASON = 300


def clean_id(given: str | None) -> str | None:
    """A client's id if it may be sent back in a header; None otherwise."""
    return given if given is not None and _ID.fullmatch(given) else None


class RequestIds:
    """Takes X-Request-Id or makes one; sends it back when it was given, or always. Counts responses, logs refusals.

    Anthropic's clients look for it in `request-id`, so their routes always have that header.
    """

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
                if is_anthropic(path_of(scope)):
                    MutableHeaders(scope=message)["request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            handler = getattr(scope.get("route"), "path", "other")
            self._metrics.on_http(scope["method"], status, handler)
            if REFUSAL in scope:
                _log_refusal(scope, status)


def _log_refusal(scope: Scope, status: int) -> None:
    """One line, bounded: paths and reasons may quote what a client sent."""
    param, reason = scope[REFUSAL]
    log.info(
        "request %s refused: %s %s, status %d, param %s: %s",
        scope[REQUEST_ID],
        *(_one_line(part, _MAX_PLACE) for part in (scope["method"], scope["path"])),
        status,
        _one_line(param or "-", _MAX_PLACE),
        _one_line(reason, _MAX_REASON),
    )


def _one_line(text: str, max_chars: int) -> str:
    text = "".join(c if c.isprintable() else " " for c in text[: max_chars + 1])
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."


class HostGuard:
    """403 for a Host that names no loopback address: a page of another site whose name was made to point here.

    For servers that only this machine reaches and that want no key: the browser is then the only way in
    from outside. https://en.wikipedia.org/wiki/DNS_rebinding
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "") if scope["type"] in ("http", "websocket") else ""
        if not host or is_loopback(_name_of(host)):  # no browser leaves Host out
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        response = refusal_response(
            scope,
            f"the Host header is {host[:128]!r}; this server listens on a loopback address without an API key and "
            "answers to localhost, 127.0.0.1 and [::1] only: use one of these, or start it with --api-key",
            status=403,
        )
        await response(scope, receive, send)


def _name_of(host: str) -> str:
    """`[::1]:8000` and `localhost:8000` without port and brackets."""
    name, _, port = host.rpartition(":")
    host = name if name and (port.isdigit() or not port) and not name.endswith(":") else host
    return host.removeprefix("[").removesuffix("]")


def is_loopback(name: str) -> bool:
    """Whether a name or an address is this machine to itself. Asks no DNS."""
    if name.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class KeyGuard:
    """401 without one of the keys, on every path but the open ones. Compares all keys in constant time.

    A key comes as `Authorization: Bearer` or, as Anthropic's clients send it, in `x-api-key`.

    A browser that opens `/` cannot send a key yet: the body of its 401 is the page, which asks for one.
    """

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
        if (scope["method"], path_of(scope)) == ("GET", "/") and "text/html" in Headers(scope=scope).get(
            "accept", ""
        ):
            await page_response(401)(scope, receive, send)
            return
        response = refusal_response(
            scope,
            "a valid API key is needed: send the header 'Authorization: Bearer KEY' or 'x-api-key: KEY' (octavo chat "
            "and octavo complete: --api-key KEY, or the environment variable OCTAVO_API_KEY)",
            status=401,
            headers={"WWW-Authenticate": "Bearer"},
        )
        await response(scope, receive, send)

    @staticmethod
    def _is_open(scope: Scope) -> bool:
        if scope["type"] != "http":
            return False
        return (scope["method"], path_of(scope)) in OPEN_ROUTES

    def _key(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = [bearer.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", "").strip()]
        found = [key for key in given if self._is_known(key)]
        return found[0] if found else None

    def _is_known(self, key: str) -> bool:
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        is_known = False
        for known in self._digests:
            is_known |= hmac.compare_digest(digest, known)
        return is_known


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
            response = refusal_response(scope, self._message(), status=413)
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
