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
    errors = error.errors(include_url=False, include_context=False)
    lines: list[str] = []
    for e in errors[:_MAX_REPORTED]:
        _tell(lines, _place(e["loc"]), e["type"], e["msg"], e["input"])
    if len(errors) > _MAX_REPORTED:
        lines.append(f"and {len(errors) - _MAX_REPORTED} more")
    return InvalidRequest("; ".join(lines), param=_place(errors[0]["loc"]), kind="BadRequestError")


def _tell(lines: list[str], place: str, kind: str, reason: str, given: Any) -> None:
    """Adds what is wrong with one value: what was given, then what is allowed (of a union, in one line)."""
    if kind == "missing":
        lines.append(f"{place} is missing")
    elif reason.startswith("Input should "):
        reason = reason.removeprefix("Input should ").partition(" or instance of ")[0]
        for pydantics, ours in _IN_JSON:
            reason = reason.replace(pydantics, ours)
        start = f"{place} is {_shown(given, kind)}; it must "
        if lines and lines[-1].startswith(start + "be ") and reason.startswith("be "):
            lines[-1] += f" or {reason.removeprefix('be ')}"
        else:
            lines.append(start + reason)
    else:
        reason = reason.removeprefix("Value error, ").replace(" after validation", "")
        lines.append(f"{place}: {reason[:1].lower()}{reason[1:]}")


def _shown(value: Any, kind: str) -> str:
    """A number or a word where one of a few is meant; of the rest only what it is: errors are logged, prompts never."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int | float) or (isinstance(value, str) and kind == "literal_error"):
        text = repr(value)
        return text if len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}..."
    return {"array": "an array", "string": "a string"}.get(_json_kind(value), "an object")


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


# pydantic's words for what JSON calls otherwise, and shorter ones
_IN_JSON = (
    ("a valid list", "an array"),
    ("a valid dictionary", "an object"),
    ("a valid integer", "an integer"),
    ("a valid ", "a "),
    ("greater than or equal to", "at least"),
    ("less than or equal to", "at most"),
)
_UNION_TAGS = frozenset({"str", "int", "float", "bool", "list", "dict", "none"})


def _json_kind(value: Any) -> str:
    return {list: "array", str: "string", bool: "boolean", type(None): "null"}.get(type(value), "number")
