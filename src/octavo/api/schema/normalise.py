"""The one door for every JSON body: bytes to a checked model and a list of warnings.

Order: JSON, null means absent, refused fields by name, inert and unknown fields reported, then the
model's own checks. Errors carry the field in the client's terms. Knows no route.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError

from octavo.api.schema.fields import INERT, REFUSED, asks_nothing, is_worth_a_warning
from octavo.errors import InvalidRequest

Model = TypeVar("Model", bound=BaseModel)
_MAX_REPORTED = 10
_MAX_NAME = 64


def parse_json(data: bytes) -> dict[str, Any]:
    """The body as a dict. Raises InvalidRequest for anything else."""
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest(f"the body is a JSON {_json_kind(body)}; it must be an object")
    return body


def normalise(model: type[Model], body: dict[str, Any], *, strict: bool) -> tuple[Model, list[str]]:
    """(checked body, warnings). With `strict` a warning is an error."""
    body = {name: value for name, value in body.items() if value is not None}
    _refuse(model, body)
    warnings = _warnings(model, body, " and was ignored" if not strict else "")
    if warnings and strict:
        raise InvalidRequest(
            "; ".join(warnings), param=_first_odd(model, body), fix="leave it out (--strict)"
        )
    try:
        return model.model_validate({k: v for k, v in body.items() if k in model.model_fields}), warnings
    except ValidationError as error:
        raise invalid(error) from None


def _refuse(model: type[BaseModel], body: dict[str, Any]) -> None:
    for name, value in body.items():
        if name in REFUSED and name not in model.model_fields and not asks_nothing(name, value):
            raise InvalidRequest(f"{name} is not supported: {REFUSED[name][1]}", param=name)


def _warnings(model: type[BaseModel], body: dict[str, Any], fate: str) -> list[str]:
    found = []
    for name, value in body.items():
        if name in model.model_fields or name in REFUSED:
            continue
        if name in INERT:
            if is_worth_a_warning(name, value):
                found.append(f"field {name!r} has no effect: {INERT[name]}")
        else:
            found.append(f"field {name[:_MAX_NAME]!r} is not known{fate}")
        if len(found) == _MAX_REPORTED:
            break
    return found


def _first_odd(model: type[BaseModel], body: dict[str, Any]) -> str | None:
    return next((n[:_MAX_NAME] for n in body if n not in model.model_fields and n not in REFUSED), None)


def invalid(error: ValidationError) -> InvalidRequest:
    """The first errors of a model in one message; `param` is where the first one is."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{_place(e['loc'])}: {_reason(str(e['msg']))}" for e in errors[:_MAX_REPORTED]]
    if len(errors) > _MAX_REPORTED:
        lines.append(f"and {len(errors) - _MAX_REPORTED} more")
    return InvalidRequest("; ".join(lines), param=_place(errors[0]["loc"]), kind="BadRequestError")


def _reason(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _place(loc: tuple[int | str, ...]) -> str:
    """('messages', 0, 'role') -> 'messages[0].role'. Names that pydantic adds for unions are left out."""
    place = ""
    for part in loc:
        if isinstance(part, int):
            place += f"[{part}]"
        elif part.isidentifier():
            if place and part in _UNION_TAGS:
                continue
            place += f".{part}" if place else part
    return place or "body"


_UNION_TAGS = frozenset({"str", "int", "float", "bool", "list", "dict", "none"})


def _json_kind(value: Any) -> str:
    return {list: "array", str: "string", bool: "boolean", type(None): "null"}.get(type(value), "number")
