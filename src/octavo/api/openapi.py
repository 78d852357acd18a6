"""GET /openapi.json: the routes that are served and the bodies that they take, from routes and bodies themselves.

Imported and built when it is first asked for. Answers are described by their media types only.
"""

from __future__ import annotations

import copy
import inspect
import re
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette

import octavo
from octavo.api.router import NamedRoute
from octavo.api.schema.chat import ChatBody
from octavo.api.schema.cohere import CohereBody
from octavo.api.schema.completions import CompletionBody
from octavo.api.schema.messages import CountBody, MessagesBody
from octavo.api.schema.responses import PASSED, ResponseBody
from octavo.api.schema.tokenise import Detokenise, TokeniseChat, TokeniseText
from octavo.api.schema.tokens import TokensBody

_BODIES: dict[str, tuple[type[BaseModel], ...]] = {
    "/v1/chat/completions": (ChatBody,),
    "/v1/completions": (CompletionBody,),
    "/v1/responses": (ResponseBody,),
    "/v1/responses/input_tokens": (ResponseBody,),
    "/v1/messages": (MessagesBody,),
    "/v1/messages/count_tokens": (CountBody,),
    "/cohere/v2/chat": (CohereBody,),
    "/inference/v1/generate": (TokensBody,),
    "/tokenize": (TokeniseText, TokeniseChat),
    "/detokenize": (Detokenise,),
}
_BATCH = "/v1/chat/completions/batch"  # a chat whose `messages` are a list of conversations
_STREAMS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/responses/{response_id}"}
    | {"/v1/messages", "/cohere/v2/chat", "/inference/v1/generate"}
)
_TEXTS = {"/": "text/html", "/metrics": "text/plain"}
_REFS = "#/components/schemas/"
_PARAMETER = re.compile(r"{(\w+)(:\w+)?}")


def document(app: Starlette) -> dict[str, Any]:
    """OpenAPI 3.1 of an application's routes."""
    models = {model for bodies in _BODIES.values() for model in bodies}
    _, found = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)],
        ref_template=_REFS + "{model}",
    )
    schemas: dict[str, Any] = found["$defs"]
    schemas["ChatBatchBody"] = _batch(schemas["ChatBody"])
    schemas["Error"] = _error()
    chat = schemas["ChatBody"]["properties"]
    schemas["ResponseBody"]["properties"] |= {name: chat[name] for name in PASSED if name in chat}
    paths: dict[str, Any] = {}
    for route in app.router.routes:
        if isinstance(route, NamedRoute):
            operations = paths.setdefault(_PARAMETER.sub(r"{\1}", route.path), {})
            for method in sorted(route.methods or ()):
                operations[method.lower()] = _operation(route, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": octavo.__version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(route: NamedRoute, method: str) -> dict[str, Any]:
    kinds = [_TEXTS.get(route.path, "application/json")]
    if route.path in _STREAMS:
        kinds.append("text/event-stream")
    failed = {"application/json": {"schema": {"$ref": _REFS + "Error"}}}
    operation: dict[str, Any] = {
        "operationId": f"{method.lower()}_{route.name}_{_PARAMETER.sub('', route.path).strip('/').replace('/', '_')}",
        "summary": (inspect.getdoc(route.endpoint) or route.name.replace("_", " ")).partition("\n")[0],
        "responses": {
            "200": {"description": "the answer", "content": {kind: {} for kind in kinds}},
            "default": {"description": "an error", "content": failed},
        },
    }
    if parameters := [_parameter(found.group(1)) for found in _PARAMETER.finditer(route.path)]:
        operation["parameters"] = parameters
    if method == "POST" and (schema := _body(route.path)):
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _body(path: str) -> dict[str, Any] | None:
    if path == _BATCH:
        return {"$ref": _REFS + "ChatBatchBody"}
    refs = [{"$ref": _REFS + model.__name__} for model in _BODIES.get(path, ())]
    if len(refs) > 1:
        return {"anyOf": refs}
    return refs[0] if refs else None


def _batch(chat: dict[str, Any]) -> dict[str, Any]:
    batch = copy.deepcopy(chat)
    batch["title"] = "ChatBatchBody"
    one = batch["properties"]["messages"]
    batch["properties"]["messages"] = {"type": "array", "items": one, "minItems": 1, "title": "Messages"}
    return batch


def _error() -> dict[str, Any]:
    text, code = {"type": "string"}, {"type": "integer"}
    inner = {"message": text, "type": text, "param": {"type": ["string", "null"]}, "code": code}
    error = {"type": "object", "properties": inner, "required": ["message"]}
    return {"type": "object", "properties": {"error": error}, "required": ["error"]}
