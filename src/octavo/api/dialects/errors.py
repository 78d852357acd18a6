"""Errors in the shape of the API that a path belongs to.

Every error is made once, in OpenAI's shape (`api.faults`); this file says what it looks like to clients
of the other APIs. Chosen by path alone, so that refusals before any route (401, 403, 413) and paths
that do not exist have the right shape too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.types import Scope

from octavo.errors import ContextOverflow, InvalidRequest

#: What Anthropic calls an error of a status, https://docs.anthropic.com/en/api/errors
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
ANTHROPIC_OVERLOADED = 529


def path_of(scope: Scope) -> str:
    """The route's path, below the prefix of a proxy."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def is_anthropic(path: str) -> bool:
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def is_cohere(path: str) -> bool:
    return path == "/cohere" or path.startswith("/cohere/")


def shaped(
    path: str, status: int, body: dict[str, Any], request_id: str | None
) -> tuple[int, dict[str, Any]]:
    """(status, body) as clients of `path` expect an error; `body` is OpenAI's."""
    if is_anthropic(path):
        status = ANTHROPIC_OVERLOADED if status == 503 else status
        return status, anthropic_error(body, status=status, request_id=request_id)
    if is_cohere(path):
        return status, cohere_error(body, request_id=request_id)
    return status, body


def anthropic_error(
    body: dict[str, Any], *, status: int | None = None, request_id: str | None = None
) -> dict[str, Any]:
    """Anthropic names no field apart, so the message does."""
    error = body["error"]
    status = int(error["code"]) if status is None else status
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    shape: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": _with_field(error)}}
    if request_id is not None:
        shape["request_id"] = request_id
    return shape


def cohere_error(body: dict[str, Any], *, request_id: str | None = None) -> dict[str, Any]:
    shape: dict[str, Any] = {"message": _with_field(body["error"])}
    if request_id is not None:
        shape["id"] = request_id
    return shape


def _with_field(error: dict[str, Any]) -> str:
    message, param = str(error["message"]), error["param"]
    return message if param is None or str(param).removesuffix(".type") in message else f"{param}: {message}"


@contextmanager
def prompt_too_long() -> Iterator[None]:
    """A prompt that does not fit, in Anthropic's words: agents look for them and shorten their conversation."""
    try:
        yield
    except ContextOverflow as error:
        message = f"prompt is too long: {error.num_prompt} tokens > {error.max_prompt} maximum"
        raise InvalidRequest(message, fix=error.fix) from None


@contextmanager
def below(place: str) -> Iterator[None]:
    """Errors about a field become errors about the field of that name in `place`."""
    try:
        yield
    except InvalidRequest as error:
        param = place if error.param is None else f"{place}.{error.param}"
        raise _again(error, error.message, param) from None


@contextmanager
def in_terms_of(names: dict[str, str]) -> Iterator[None]:
    """Errors about our fields become errors about the client's: `names[ours] = theirs`.

    A message that begins with our name of the field begins with theirs afterwards.
    """
    try:
        yield
    except InvalidRequest as error:
        head = (error.param or "").partition(".")[0].partition("[")[0]
        theirs = names.get(head)
        if theirs is None:
            raise
        tail = (error.param or "")[len(head) :]
        message = theirs + error.message[len(head) :] if error.message.startswith(head) else error.message
        raise _again(error, message, theirs + tail) from None


def _again(error: InvalidRequest, message: str, param: str) -> InvalidRequest:
    return InvalidRequest(
        message,
        param=param,
        status=error.status,
        kind=error.kind,
        fix=error.fix,
        retry_after_s=error.retry_after_s,
    )
