"""A small HTTP client of an OpenAI-compatible server, on the standard library: what chat and complete need."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from octavo import env
from octavo.errors import UserError

DEFAULT_URL = "http://127.0.0.1:8000/v1"


class ServerError(UserError):
    """The server cannot be reached, or refused a request."""


class Server:
    """`url` is the base; /v1 is added where it is missing. One connection a request."""

    def __init__(self, url: str, api_key: str | None = None, timeout_s: float = 600.0) -> None:
        parts = urlsplit(url if "//" in url else "http://" + url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ServerError(f"--url is {url!r}", fix=f"give one like {DEFAULT_URL}")
        self._parts = parts
        path = parts.path.rstrip("/")
        self._prefix = path if path.endswith("/v1") else path + "/v1"
        self._key = api_key or env.api_key()
        self._timeout_s = timeout_s
        self.url = url

    def first_model(self) -> str:
        """The first name that the server answers to."""
        reply = self._request("GET", "/models", None)
        models = json.loads(reply.read())["data"]
        if not models:
            raise ServerError(f"the server at {self.url} names no model", fix="give --model-name")
        return str(models[0]["id"])

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Events of a streamed answer, until [DONE]. Raises ServerError for an error event."""
        reply = self._request(
            "POST", path, {**body, "stream": True, "stream_options": {"include_usage": True}}
        )
        for raw in reply:
            line = raw.decode("utf-8").strip()
            if not line.startswith("data:"):
                continue
            data = line[5:].strip()
            if data == "[DONE]":
                return
            event: dict[str, Any] = json.loads(data)
            if "error" in event:
                raise ServerError(f"the answer broke off: {_message(event)}")
            yield event
        raise ServerError("the answer broke off without an end", fix="look at the server's log")

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> http.client.HTTPResponse:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout_s)
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            connection.request(
                method, self._prefix + path, None if body is None else json.dumps(body), headers
            )
            reply = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(
                f"no server answers at {self.url} ({error})",
                fix=f"start one with `{env.command('serve')}`, or give its address with --url",
            ) from None
        if reply.status >= 400:
            text = reply.read().decode("utf-8", "replace")
            try:
                message = _message(json.loads(text))
            except ValueError:
                message = text[:300]
            raise ServerError(f"the server refused ({reply.status}): {message}")
        return reply


def _message(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
