"""GET /openapi.json describes what is served: every route, and for every body the fields that it takes."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.fakes.api_world import USER, world

from octavo.api.router import NamedRoute, Router

NO_BODY = {"/ping", "/v1/responses/{response_id}/cancel"}


async def test_every_route_is_described_and_every_reference_holds() -> None:
    async with world() as w:
        found = (await w.http.get("/openapi.json")).json()
        routes = [route for route in w.app.router.routes if isinstance(route, NamedRoute)]
    served = {(r.path.replace(":path", ""), m.lower()) for r in routes for m in r.methods or ()}
    assert served == {(path, method) for path, methods in found["paths"].items() for method in methods}
    without = {
        p
        for p, methods in found["paths"].items()
        if "post" in methods and "requestBody" not in methods["post"]
    }
    assert without == NO_BODY
    ids = [operation["operationId"] for methods in found["paths"].values() for operation in methods.values()]
    assert len(set(ids)) == len(ids)
    schemas = found["components"]["schemas"]
    for reference in _references(found):
        assert reference.removeprefix("#/components/schemas/") in schemas


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [r for item in value.values() for r in _references(item)]
    return [r for item in value for r in _references(item)] if isinstance(value, list) else []


async def test_a_body_is_valid_by_its_schema_or_refused() -> None:
    async with world() as w:
        found = (await w.http.get("/openapi.json")).json()
        operation = found["paths"]["/v1/chat/completions"]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"] | {
            "components": found["components"]
        }
        for body, is_valid in (
            ({"messages": USER, "temperature": 0.5, "stop": ["a"]}, True),
            ({"messages": USER, "n": "two"}, False),
            ({"messages": "hello"}, False),
        ):
            errors = list(jsonschema.Draft202012Validator(schema).iter_errors(body))
            answer = await w.post("/v1/chat/completions", body)
            assert (not errors, answer.status_code == 200) == (is_valid, is_valid), json.dumps(body)


def test_a_handler_says_what_it_takes() -> None:
    router = Router()

    @router.get("/a/{name}")
    async def right(name: str, request: Request) -> Response:
        return Response(name)

    assert [route.path for route in router.routes] == ["/a/{name}"]
    with pytest.raises(TypeError, match="limit"):

        @router.get("/b/{name}")
        async def wrong(name: str, limit: int) -> Response:
            return Response(name)
