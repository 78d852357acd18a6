"""Routes by decorator, on Starlette alone: a web framework on top of it would cost a fifth of a start.

A handler takes `request`, the parameters of its path, or nothing. Knows no dialect and no error shape.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Response]])


class NamedRoute(Route):
    """Leaves itself in the scope, so that a request can be counted under its route's own path."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        if match is not Match.NONE:
            found["route"] = self
        return match, found


class Router:
    """`routes` in the order in which they were declared: the first that matches a request has it."""

    def __init__(self) -> None:
        self.routes: list[NamedRoute] = []

    def get(self, path: str) -> Callable[[Handler], Handler]:
        return self.api_route(path, methods=["GET"])

    def post(self, path: str) -> Callable[[Handler], Handler]:
        return self.api_route(path, methods=["POST"])

    def delete(self, path: str) -> Callable[[Handler], Handler]:
        return self.api_route(path, methods=["DELETE"])

    def api_route(self, path: str, *, methods: list[str]) -> Callable[[Handler], Handler]:
        def declare(handler: Handler) -> Handler:
            route = NamedRoute(path, _adapted(handler, path), methods=methods, name=handler.__name__)
            route.methods = set(methods)  # Starlette would answer HEAD wherever GET is
            self.routes.append(route)
            return handler

        return declare


def _adapted(
    handler: Callable[..., Awaitable[Response]], path: str
) -> Callable[[Request], Awaitable[Response]]:
    """The handler as Starlette calls it. Raises TypeError for a parameter that nothing fills."""
    names = list(inspect.signature(handler).parameters)
    from_path = [name for name in names if "{" + name in path]
    if unknown := set(names) - set(from_path) - {"request"}:
        raise TypeError(f"{handler.__name__} of {path} takes {unknown}: neither request nor in the path")
    if names == ["request"]:
        return handler
    takes_request = "request" in names

    @functools.wraps(handler)
    async def endpoint(request: Request) -> Response:
        values: dict[str, Any] = {name: request.path_params[name] for name in from_path}
        if takes_request:
            values["request"] = request
        return await handler(**values)

    return endpoint
