"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}. Messages carry no addresses or paths.

`api.dialects.errors` gives them the shape of another API where a path belongs to one.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Scope

from octavo.api.dialects.errors import path_of, shaped
from octavo.errors import CapacityError, EngineDead, InvalidRequest

log = logging.getLogger("octavo.api")

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_OBJECT = re.compile(r"<[\w.]+ object at [^>]*>")
_PATH = re.compile(r"(?<![\w/:.])(?:/(?:[\w.@+-]+/)+[\w.@+-]+|[A-Za-z]:\\[\w.\\@+-]+)")
_MAX_MESSAGE = 4_000
REFUSAL = "octavo.refusal"  # key of the ASGI scope: (param, reason) of a refused request, for the log
REQUEST_ID = "octavo.request_id"  # key of the ASGI scope: the id that the client knows
_KINDS = {
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    503: "ServiceUnavailableError",
}


def scrub(message: str, *, paths: bool = True) -> str:
    """A message without object addresses and (unless told otherwise) file paths."""
    message = _ADDRESS.sub("0x..", _OBJECT.sub("<object>", message[:_MAX_MESSAGE]))
    return _PATH.sub("<path>", message) if paths else message


def body_of(message: str, *, kind: str, status: int, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def kind_of(status: int) -> str:
    return _KINDS.get(status, "InternalServerError" if status >= 500 else "BadRequestError")


def error_body(error: Exception) -> tuple[int, dict[str, Any]]:
    """(HTTP status, body) of any exception."""
    if isinstance(error, InvalidRequest):
        message = scrub(str(error), paths=error.status >= 500)
        return error.status, body_of(message, kind=error.kind, status=error.status, param=error.param)
    if isinstance(error, CapacityError | EngineDead):
        return 503, body_of(scrub(str(error)), kind=kind_of(503), status=503)
    if isinstance(error, HTTPException):
        return error.status_code, body_of(
            scrub(str(error.detail), paths=False), kind=kind_of(error.status_code), status=error.status_code
        )
    log.error("an unexpected error in a request", exc_info=error)
    return 500, body_of("the server failed at this request; its log says why", kind=kind_of(500), status=500)


def refusal_response(
    scope: Scope, message: str, *, status: int, headers: dict[str, str] | None = None
) -> JSONResponse:
    """A refusal before any route; it is noted for the log."""
    scope[REFUSAL] = (None, message)
    return _response(scope, status, body_of(message, kind=kind_of(status), status=status), headers)


def _response(
    scope: Scope, status: int, body: dict[str, Any], headers: dict[str, str] | None
) -> JSONResponse:
    status, body = shaped(path_of(scope), status, body, scope.get(REQUEST_ID))
    return JSONResponse(body, status_code=status, headers=headers)


def error_response(error: Exception, scope: Scope) -> JSONResponse:
    status, body = error_body(error)
    if status != 500:  # faults of the server have log lines of their own
        scope[REFUSAL] = (body["error"]["param"], body["error"]["message"])
    headers: dict[str, str] = {}
    if isinstance(error, InvalidRequest) and error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, HTTPException) and error.headers:
        headers.update(error.headers)
    return _response(scope, status, body, headers)


def _routes_near(asked: str, paths: Sequence[str]) -> str:
    """The nearest route if one is near, and all of them."""
    near = difflib.get_close_matches(asked, paths, n=1, cutoff=0.75)
    return (f"did you mean {near[0]}? " if near else "") + f"routes are {', '.join(paths)}"


def install(app: Starlette, paths: Sequence[str]) -> None:
    """Every way for a request to fail ends in `error_response`. `paths`: of the routes, for who misses them."""

    async def on_error(request: Request, error: Exception) -> JSONResponse:
        return error_response(error, request.scope)

    async def on_route(request: Request, error: Exception) -> JSONResponse:
        status = getattr(error, "status_code", 500)
        path = request.url.path[:128]
        if status == 404:
            error = HTTPException(404, f"there is no route {path}; {_routes_near(path, paths)}")
        elif status == 405:
            allowed = (getattr(error, "headers", None) or {}).get("Allow", "")
            error = HTTPException(
                405, f"{path} takes {allowed or 'another method'}", getattr(error, "headers", None)
            )
        return error_response(error, request.scope)

    for kind in (InvalidRequest, CapacityError, EngineDead, Exception):
        app.add_exception_handler(kind, on_error)
    app.add_exception_handler(HTTPException, on_route)
