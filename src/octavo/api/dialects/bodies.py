"""From the wire to a checked body of another API, and from its translation to a checked chat body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from octavo.api.routes.common import read_json, state_of
from octavo.api.schema.chat import ChatBody
from octavo.api.schema.normalise import normalise
from octavo.api.state import ApiState
from octavo.errors import InvalidRequest

Model = TypeVar("Model", bound=BaseModel)
Refusals = Mapping[str, tuple[tuple[Any, ...], str]]


async def read_foreign(request: Request, model: type[Model], refused: Refusals) -> tuple[Model, list[str]]:
    """(checked body, warnings). The model's name first, then the fields that this API has and this server has not."""
    state = state_of(request)
    body = await read_json(request)
    if isinstance(body.get("model"), str):
        state.served_name(body["model"])
    for name in body.keys() & refused.keys():
        neutral, reason = refused[name]
        if body[name] is not None and body[name] not in neutral:
            raise InvalidRequest(f"{name} is not supported: {reason}", param=name)
    own = {name: value for name, value in body.items() if name not in refused}
    return normalise(model, own, strict=state.strict)


def chat_body(state: ApiState, chat: dict[str, Any]) -> tuple[ChatBody, list[str]]:
    return normalise(ChatBody, chat, strict=state.strict)
