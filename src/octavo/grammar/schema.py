"""A JSON Schema as it is asked for -> the schema that the backend enforces to the last keyword.

Owns the walk over keywords, the bounds on depth and size, and naming the place of what is refused.
Does not know how a keyword is enforced (octavo.grammar.llg), nor what an answer looks like.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn
from urllib.parse import unquote

from octavo.grammar.base import MAX_DEPTH, GrammarError
from octavo.grammar.keywords import ANNOTATIONS, ENFORCED, FORMATS, NEUTRAL, REFUSED, TYPES

Schema = dict[str, Any]
_MAX_TRIALS = 400  # compilations to find out what the backend objects to
_WORD = r"(?:[\w -]|\\[.\-$^/+*?()\[\]{}])+"
_LISTED = re.compile(rf"\^(?:(?P<one>{_WORD})|\((?:\?:)?(?P<many>{_WORD}(?:\|{_WORD})*)\))\$")
_COMMON = ("type", "properties", "required", "items", "additionalProperties")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_DATE = (
    r"([0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
    r"-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#: Formats of RFC 3339 whose pattern in the backend has no end, or lets days through that do not exist.
_OWN_FORMATS = {"date": _DATE, "time": _TIME, "date-time": f"{_DATE}T{_TIME}"}


def parse(text: str, what: str = "the schema") -> Any:
    """JSON, strictly: no repeated key, no NaN, no nesting over MAX_DEPTH. Raises GrammarError."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            keys = [key for key, _ in items]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise GrammarError(f"{what} has the key {twice[:64]!r} twice in one object")
        return found

    def constant(name: str) -> NoReturn:
        raise GrammarError(f"{what} holds {name}, which is not JSON")

    if _depth_of(text) > MAX_DEPTH:
        raise GrammarError(f"{what} is nested more than {MAX_DEPTH} deep")
    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"{what} is not JSON: {error}") from None


def _depth_of(text: str) -> int:
    """Nesting of JSON text, without recursion: brackets outside of strings."""
    depth = deepest = 0
    in_string = is_escaped = False
    for char in text:
        if in_string:
            if is_escaped:
                is_escaped = False
            elif char == "\\":
                is_escaped = True
            elif char == '"':
                in_string = False
        elif char == '"':
            in_string = True
        elif char in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "}]":
            depth -= 1
    return deepest


def prepare(text: str, *, additional_properties: bool = True) -> Schema:
    """The schema to compile. Raises GrammarError naming keyword and pointer for what is not enforced."""
    schema = parse(text)
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise GrammarError(f"the schema is {_shown(schema)}; it must be an object, or true")
    walk = _Walk(closed=not additional_properties)
    made: Schema = walk.schema(schema, "")
    walk.check_refs()
    return made


class _Walk:
    def __init__(self, *, closed: bool) -> None:
        self._closed = closed
        self._seen: set[str] = set()
        self._refs: list[tuple[str, str]] = []
        self._anchors: set[str] = set()

    def schema(self, value: Any, pointer: str) -> Any:
        self._seen.add(pointer)
        if isinstance(value, bool):
            return value
        if not isinstance(value, dict):
            raise GrammarError(
                f"at {pointer or '/'} is {_shown(value)}; a schema is an object, true or false",
                keyword=pointer.rpartition("/")[2],
                pointer=pointer,
            )
        made: Schema = {}
        for keyword, held in value.items():
            self._keyword(made, keyword, held, f"{pointer}/{escape(keyword)}")
        if "patternProperties" in made:
            _name_keys(made)
        if self._closed and "additionalProperties" not in made and _is_object(made):
            made["additionalProperties"] = False
        return made

    def _keyword(self, made: Schema, keyword: str, held: Any, at: str) -> None:
        if keyword in ENFORCED:
            value = self._enforced(keyword, held, at)
            made[keyword] = made["allOf"] + value if keyword == "allOf" and "allOf" in made else value
            if keyword == "format" and held in _OWN_FORMATS:
                del made[keyword]
                made.setdefault("allOf", []).append({"pattern": f"^({_OWN_FORMATS[held]})$"})
        elif (
            keyword in ANNOTATIONS
            or (keyword.startswith("x-") and keyword != "x-guidance")
            or (keyword in NEUTRAL and held is NEUTRAL[keyword])
        ):
            return
        elif keyword in REFUSED:
            refuse(keyword, at, f"is not supported: {REFUSED[keyword]}")
        else:
            refuse(keyword, at, "is not a keyword of JSON Schema: leave it out, or correct its spelling")

    def _enforced(self, keyword: str, held: Any, at: str) -> Any:
        where = ENFORCED[keyword][0]
        if where == "schema":
            if keyword == "items" and isinstance(held, list):
                refuse(keyword, at, "is a list: use prefixItems")
            return self.schema(held, at)
        if where == "schemas":
            if not isinstance(held, list) or not held:
                refuse(keyword, at, f"is {_shown(held)}; it must be a list of schemas")
            return [self.schema(one, f"{at}/{i}") for i, one in enumerate(held)]
        if where == "named":
            if not isinstance(held, dict):
                refuse(keyword, at, f"is {_shown(held)}; it must be an object of schemas")
            return {name: self.schema(one, f"{at}/{escape(name)}") for name, one in held.items()}
        return self._value(keyword, held, at)

    def _value(self, keyword: str, held: Any, at: str) -> Any:
        if keyword == "$ref":
            self._refs.append((self._reference(held, at), at))
        elif keyword == "$anchor":
            if not isinstance(held, str):
                refuse(keyword, at, f"is {_shown(held)}; it must be text")
            self._anchors.add(held)
        elif keyword == "type":
            types = held if isinstance(held, list) else [held]
            if not types or any(one not in TYPES for one in types):
                refuse(keyword, at, f"is {_shown(held)}; allowed are {', '.join(TYPES)}, or a list of them")
        elif keyword == "enum" and not isinstance(held, list):
            refuse(keyword, at, f"is {_shown(held)}; it must be a list")
        elif keyword == "format" and held not in FORMATS:
            refuse(keyword, at, f"is {_shown(held)}; supported are {', '.join(FORMATS)}")
        elif keyword == "pattern" and not isinstance(held, str):
            refuse(keyword, at, f"is {_shown(held)}; it must be text")
        elif keyword == "required" and not (isinstance(held, list) and all(isinstance(x, str) for x in held)):
            refuse(keyword, at, f"is {_shown(held)}; it must be a list of names")
        elif keyword in _COUNTS:
            if isinstance(held, bool) or not isinstance(held, int | float) or held < 0 or held != int(held):
                refuse(keyword, at, f"is {_shown(held)}; it must be a whole number, 0 or more")
            return int(held)
        elif keyword in _NUMBERS and (
            isinstance(held, bool) or not isinstance(held, int | float) or not math.isfinite(held)
        ):
            refuse(keyword, at, f"is {_shown(held)}; it must be a number")
        return held

    def _reference(self, held: Any, at: str) -> str:
        if not isinstance(held, str):
            refuse("$ref", at, f"is {_shown(held)}; it must be text")
        if not held.startswith("#"):
            refuse("$ref", at, f"is {_shown(held)}: only places in the same schema, #/..., can be named")
        return unquote(held[1:])

    def check_refs(self) -> None:
        for target, at in self._refs:
            if target not in self._seen and target not in self._anchors:
                refuse("$ref", at, f"names #{target[:64]}, where there is no schema")


def _name_keys(schema: Schema) -> None:
    """Patterns that list a few keys become properties: else the answer could go on when all are there."""
    named = {p: keys for p in schema["patternProperties"] if (keys := _keys_of(p))}
    for pattern, keys in named.items():
        held = schema["patternProperties"].pop(pattern)
        properties = schema.setdefault("properties", {})
        for key in keys:
            properties[key] = {"allOf": [properties[key], held]} if key in properties else held
    if not schema["patternProperties"]:
        del schema["patternProperties"]


def _keys_of(pattern: str) -> list[str]:
    """The keys that `^one$` or `^(one|other)$` matches; [] for other patterns."""
    match = _LISTED.fullmatch(pattern)
    if match is None:
        return []
    words = (match["many"] or match["one"]).split("|")
    return [re.sub(r"\\(.)", r"\1", word) for word in words]


def _is_object(schema: Schema) -> bool:
    kind = schema.get("type")
    return "properties" in schema or kind == "object" or (isinstance(kind, list) and "object" in kind)


def escape(name: str) -> str:
    """A name as a part of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def refuse(keyword: str, pointer: str, why: str) -> NoReturn:
    raise GrammarError(f"{keyword} at {pointer} {why}", keyword=keyword, pointer=pointer)


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 64 else text[:64] + " ..."


def has_open_objects(schema: Any) -> bool:
    """Whether an object of an answer may have keys that the schema does not name."""
    if not isinstance(schema, dict):
        return schema is True
    kinds = schema.get("type", TYPES)
    may_be_object = "object" in kinds and not any(
        k in schema for k in ("const", "enum", "$ref", "anyOf", "oneOf")
    )
    if may_be_object and schema.get("additionalProperties") is not False:
        return True
    if "patternProperties" in schema:
        return True
    inner = [schema.get(k, False) for k, (where, _) in ENFORCED.items() if where == "schema"]
    for keyword, (where, _) in ENFORCED.items():
        held = schema.get(keyword)
        if where == "schemas" and isinstance(held, list):
            inner += held
        elif where == "named" and isinstance(held, dict):
            inner += held.values()
    # A list whose items are not told may hold anything.
    if "array" in kinds and "items" not in schema and ("type" in schema or may_be_object):
        return True
    return any(map(has_open_objects, inner))


# ---- what the backend objects to ---------------------------------------------------------------------


def subschemas(schema: Any, pointer: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema that is an object, with its place; inner ones first."""
    if not isinstance(schema, dict):
        return
    for keyword, held in schema.items():
        where = ENFORCED.get(keyword, ("value",))[0]
        at = f"{pointer}/{escape(keyword)}"
        if where == "schema":
            yield from subschemas(held, at)
        elif where == "schemas" and isinstance(held, list):
            for i, one in enumerate(held):
                yield from subschemas(one, f"{at}/{i}")
        elif where == "named" and isinstance(held, dict):
            for name, one in held.items():
                yield from subschemas(one, f"{at}/{escape(name)}")
    yield pointer, schema


def blame(schema: Schema, complaint: Callable[[Schema], str | None]) -> GrammarError:
    """The innermost schema that `complaint` objects to, and the keyword without which it does not."""
    shared: Schema = {k: schema[k] for k in ("$defs", "definitions") if k in schema}
    trials = 0

    def ask(part: Schema) -> str | None:
        nonlocal trials
        trials += 1
        return complaint({**shared, **part}) if trials <= _MAX_TRIALS else None

    for pointer, part in subschemas(schema):
        message = ask(part)
        if message is None or "does not exist" in message:
            continue
        for keyword in sorted(part, key=lambda one: one in _COMMON):  # the rarer one is to blame
            rest = {k: v for k, v in part.items() if k != keyword}
            if keyword not in shared and ask(rest) is None:
                at = f"{pointer}/{escape(keyword)}"
                return GrammarError(
                    f"{keyword} at {at} is not supported here: {message}", keyword=keyword, pointer=at
                )
        return GrammarError(f"the schema at {pointer or '/'} is not supported: {message}", pointer=pointer)
    return GrammarError(f"the schema is not supported: {complaint(schema)}")
