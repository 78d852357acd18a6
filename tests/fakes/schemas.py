"""Random JSON Schemas: one maker for each keyword that is enforced, and schemas nested in each other."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from octavo.grammar.keywords import FORMATS

Schema = dict[str, Any]
Rng = random.Random
WORDS = ("a", "b", "name", "x-1", "é", 'q"t', "back\\slash", "")


def scalar(rng: Rng) -> Schema:
    kind = rng.choice(("integer", "number", "string", "boolean", "null"))
    made: Schema = {"type": kind}
    if kind == "string" and rng.random() < 0.7:
        made["maxLength"] = rng.randint(1, 12)
    if kind == "integer" and rng.random() < 0.5:
        made["minimum"] = rng.randint(-50, 0)
        made["maximum"] = rng.randint(1, 500)
    return made


def bounded(rng: Rng, low: str, high: str, most: int) -> Schema:
    a = rng.randint(0, most)
    return {low: a} if rng.random() < 0.3 else {low: a, high: a + rng.randint(0, most)}


def closed(rng: Rng, names: list[str]) -> Schema:
    return {
        "type": "object",
        "properties": {name: scalar(rng) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
        "additionalProperties": False,
    }


def names(rng: Rng, least: int = 1) -> list[str]:
    return rng.sample([w for w in WORDS if w], rng.randint(least, 4))


def number(rng: Rng) -> float:
    return rng.choice((rng.randint(-1000, 1000), round(rng.uniform(-100, 100), rng.randint(0, 3)), 0))


def one_of(rng: Rng) -> Schema:
    if rng.random() < 0.5:
        return {"oneOf": [{"type": kind} for kind in rng.sample(["integer", "boolean", "null"], 2)]}
    tags = rng.sample(["cat", "dog", "eel"], 2)
    return {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": tag}, "v": scalar(rng)},
                "required": ["kind"],
                "additionalProperties": False,
            }
            for tag in tags
        ]
    }


def all_of(rng: Rng) -> Schema:
    left, right = rng.sample(["a", "b", "c", "d"], 2)
    parts = [{"properties": {name: scalar(rng)}, "required": [name]} for name in (left, right)]
    return {"type": "object", "allOf": parts}


def recursive(rng: Rng, place: str) -> Schema:
    inner = {"anyOf": [{"$ref": f"#/{place}/node"}, {"type": "null"}]}
    node = closed(rng, ["v"]) | {"required": ["v", "next"]}
    node["properties"]["next"] = inner
    schema: list[tuple[str, Any]] = [("$ref", f"#/{place}/node"), (place, {"node": node})]
    rng.shuffle(schema)
    return dict(schema)


def counted(rng: Rng, keyword: str) -> Schema:
    made = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9}}
    return made | {keyword: rng.randint(0, 3)}


def patterned(rng: Rng) -> Schema:
    starts = rng.sample("abcxyz", rng.randint(1, 3))
    return {
        "type": "object",
        "patternProperties": {f"^{start}": scalar(rng) for start in starts},
        "additionalProperties": False,
    }


def pattern(rng: Rng) -> str:
    parts = ["[a-z]{2,4}", r"\d{1,3}", "(yes|no)", r"[^\s\"]", "x?", r"\.", "[A-Z]+", r"\w", "é"]
    return "^" + "".join(rng.choice(parts) for _ in range(rng.randint(1, 4))) + "$"


MAKERS: dict[str, Callable[[Rng], Schema]] = {
    "type": lambda r: {
        "type": r.sample(["integer", "boolean", "null", "string"], r.randint(1, 3)),
        "maxLength": 5,
    },
    "const": lambda r: {"const": r.choice([1, -2.5, True, None, "é\n", [1, {"a": None}], {"b": [1]}, ""])},
    "enum": lambda r: {
        "enum": r.sample([1, 2.5, "a", 'q"', None, False, [1], {"a": 1}, "aa"], r.randint(1, 5))
    },
    "anyOf": lambda r: {"anyOf": [scalar(r) for _ in range(r.randint(1, 3))]},
    "allOf": all_of,
    "oneOf": one_of,
    "$ref": lambda r: recursive(r, "$defs"),
    "$defs": lambda r: recursive(r, "$defs"),
    "definitions": lambda r: recursive(r, "definitions"),
    "$anchor": lambda r: {"$ref": "#here", "$defs": {"d": {"$anchor": "here", **scalar(r)}}},
    "items": lambda r: {"type": "array", "items": scalar(r), "maxItems": r.randint(0, 4)},
    "prefixItems": lambda r: {
        "type": "array",
        "prefixItems": [scalar(r) for _ in range(r.randint(1, 3))],
        "items": r.choice([False, scalar(r)]),
        "maxItems": 4,
    },
    "minItems": lambda r: {"type": "array", "items": scalar(r), **bounded(r, "minItems", "maxItems", 3)},
    "maxItems": lambda r: {"type": "array", "items": scalar(r), "maxItems": r.randint(0, 5)},
    "properties": lambda r: closed(r, names(r)),
    "required": lambda r: {"type": "object", "required": names(r), "additionalProperties": scalar(r)},
    "additionalProperties": lambda r: {
        "type": "object",
        "properties": {name: scalar(r) for name in names(r)},
        "additionalProperties": r.choice([False, scalar(r)]),
    },
    "patternProperties": patterned,
    "minProperties": lambda r: counted(r, "minProperties"),
    "maxProperties": lambda r: counted(r, "maxProperties"),
    "minLength": lambda r: {"type": "string", **bounded(r, "minLength", "maxLength", 9)},
    "maxLength": lambda r: {"type": "string", "maxLength": r.randint(0, 9)},
    "pattern": lambda r: {"type": "string", "pattern": pattern(r)},
    "format": lambda r: {"type": "string", "format": r.choice(FORMATS)},
    "minimum": lambda r: {"type": r.choice(["integer", "number"]), "minimum": number(r)},
    "maximum": lambda r: {"type": r.choice(["integer", "number"]), "maximum": number(r)},
    "exclusiveMinimum": lambda r: {"type": "number", "exclusiveMinimum": number(r)},
    "exclusiveMaximum": lambda r: {"type": "integer", "exclusiveMaximum": number(r)},
    "multipleOf": lambda r: {
        "type": "integer",
        "multipleOf": r.choice([1, 2, 3, 5, 7, 10, 25, 0.5]),
        "minimum": -500,
        "maximum": 500,
    },
}


def nested(rng: Rng, depth: int) -> Schema:
    kind = rng.choice(("object", "array", "anyOf", "scalar", "maker")) if depth else "scalar"
    if kind == "object":
        made = closed(rng, names(rng))
        made["properties"] = {name: nested(rng, depth - 1) for name in made["properties"]}
        return made
    if kind == "array":
        return {"type": "array", "items": nested(rng, depth - 1), "maxItems": rng.randint(0, 3)}
    if kind == "anyOf":
        return {"anyOf": [nested(rng, depth - 1) for _ in range(2)]}
    if kind == "maker":
        keyword = rng.choice([k for k in MAKERS if not k.startswith(("$", "definitions"))])
        return MAKERS[keyword](rng)
    return scalar(rng)
