"""`structured_outputs` and `response_format` as clients write them -> the one spec that travels.

Owns names, shapes and what may not be given together. Whether the grammar itself can act is found out
by compiling it (octavo.grammar.checker).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from octavo.config.structured import ALIASES, BACKENDS, StructuredPlan
from octavo.errors import InvalidRequest
from octavo.grammar.base import MAX_DEPTH
from octavo.grammar.ebnf import is_lark
from octavo.wire.sampling import StructuredKind, StructuredSpec

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern", "backend")
MAX_CHOICES = 4_096


def from_structured_outputs(
    given: Mapping[str, Any], plan: StructuredPlan, param: str = "structured_outputs"
) -> StructuredSpec | None:
    """None when it asks for nothing. Raises InvalidRequest naming the field."""
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if name not in (*CONSTRAINTS, *OPTIONS):
            _refuse(f"{param}.{name[:64]}", f"is not known; known are {', '.join((*CONSTRAINTS, *OPTIONS))}")
    chosen = [name for name in CONSTRAINTS if name in given]
    if not given:
        return None
    if len(chosen) != 1:
        what = " and ".join(chosen) if chosen else "none of them"
        _refuse(param, f"has {what}; exactly one of {', '.join(CONSTRAINTS)} can act")
    name = chosen[0]
    kind, text = _READ[name](given[name], f"{param}.{name}")
    return _spec(kind, text, given, plan, param)


def from_response_format(
    given: Mapping[str, Any], plan: StructuredPlan, param: str = "response_format"
) -> StructuredSpec | None:
    """None for text. `strict` or not, every schema is enforced."""
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _spec("json_object", "", {}, plan, param)
    if kind == "structural_tag":
        return _spec("structural_tag", _dump(dict(given), param), {}, plan, param)
    if kind != "json_schema":
        _refuse(
            f"{param}.type", f"is {_shown(kind)}; known are text, json_object, json_schema, structural_tag"
        )
    held = given.get("json_schema")
    at = f"{param}.json_schema"
    if not isinstance(held, Mapping):
        _refuse(at, f"is {_shown(held)}; it must be an object with a schema")
    for name in held:
        if name not in ("name", "description", "schema", "strict"):
            _refuse(f"{at}.{name[:64]}", "is not known; known are name, description, schema, strict")
    if not isinstance(held.get("strict"), bool | None):
        _refuse(f"{at}.strict", f"is {_shown(held.get('strict'))}; it must be true or false")
    if held.get("schema") is None:
        _refuse(f"{at}.schema", "is missing")
    return _spec("json_schema", _schema(held["schema"], f"{at}.schema")[1], {}, plan, param)


def _spec(
    kind: StructuredKind, text: str, given: Mapping[str, Any], plan: StructuredPlan, param: str
) -> StructuredSpec:
    is_json = kind in ("json_schema", "json_object", "structural_tag")
    for name in ("disable_any_whitespace", "disable_additional_properties"):
        if name in given and not isinstance(given[name], bool):
            _refuse(f"{param}.{name}", f"is {_shown(given[name])}; it must be true or false")
    pattern = given.get("whitespace_pattern")
    if pattern is not None and not (isinstance(pattern, str) and pattern):
        _refuse(f"{param}.whitespace_pattern", f"is {_shown(pattern)}; it must be a pattern")
    for name in ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"):
        if not is_json and given.get(name):
            _refuse(f"{param}.{name}", f"acts on JSON; this is {kind}")
    backend = given.get("backend", plan.backend)
    if backend not in (*ALIASES, *BACKENDS):
        _refuse(f"{param}.backend", f"is {_shown(backend)}; known are {', '.join((*ALIASES, *BACKENDS))}")
    if not is_json:
        return StructuredSpec(kind=kind, text=text, backend=ALIASES.get(backend, backend))
    compact = given.get("disable_any_whitespace", not plan.any_whitespace)
    closed = given.get("disable_additional_properties", not plan.additional_properties)
    return StructuredSpec(
        kind=kind,
        text=text,
        backend=ALIASES.get(backend, backend),
        any_whitespace=not compact,
        whitespace_pattern=pattern,
        additional_properties=not closed,
    )


# ---- one reader for each constraint --------------------------------------------------------------------

_Read = tuple[StructuredKind, str]


def _schema(given: Any, at: str) -> _Read:
    if isinstance(given, str):
        if not given:
            _refuse(at, "is empty; it must be a JSON Schema")
        return "json_schema", given
    if not isinstance(given, dict | bool):
        _refuse(at, f"is {_shown(given)}; it must be a JSON Schema: an object, or its text")
    return "json_schema", _dump(given, at)


def _regex(given: Any, at: str) -> _Read:
    text = _text(given, at)
    if "\0" in text:
        _refuse(at, "holds a NUL character")
    return "regex", text


def _choice(given: Any, at: str) -> _Read:
    if not isinstance(given, list) or not given or not all(isinstance(one, str) for one in given):
        _refuse(at, f"is {_shown(given)}; it must be a list of texts that is not empty")
    if not any(given):
        _refuse(at, "has the empty text as its only choice")
    if len(given) > MAX_CHOICES:
        _refuse(at, f"has {len(given):,} choices; allowed are {MAX_CHOICES:,}")
    return "choice", json.dumps(list(dict.fromkeys(given)), ensure_ascii=False)


def _grammar(given: Any, at: str) -> _Read:
    text = _text(given, at)
    if is_lark(text):
        return "lark", text
    return ("gbnf" if "::=" in text else "ebnf"), text


def _json_object(given: Any, at: str) -> _Read:
    if given is not True:
        _refuse(at, f"is {_shown(given)}; it can only be true")
    return "json_object", ""


def _tag(given: Any, at: str) -> _Read:
    if isinstance(given, dict):
        return "structural_tag", _dump(given, at)
    return "structural_tag", _text(given, at)


_READ = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _json_object,
    "structural_tag": _tag,
}


def _text(given: Any, at: str) -> str:
    if not isinstance(given, str) or not given:
        _refuse(at, f"is {_shown(given)}; it must be text of at least one character")
    return given


def _dump(value: Any, at: str) -> str:
    if _is_deeper(value, MAX_DEPTH):
        _refuse(at, f"is nested more than {MAX_DEPTH} deep")
    return json.dumps(value, ensure_ascii=False)


def _is_deeper(value: Any, limit: int) -> bool:
    level, depth = [value], 0
    while level:
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        depth += 1
        if depth > limit and any(isinstance(one, dict | list) for one in level):
            return True
    return False


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 64 else text[:64] + " ..."


def _refuse(at: str, why: str) -> NoReturn:
    raise InvalidRequest(f"{at} {why}", param=at)
