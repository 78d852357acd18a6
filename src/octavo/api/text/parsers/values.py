"""Values that were written without JSON's quotes, as JSON text of the type that the schema wants.

Never raises and never evaluates: what does not fit its type stays the string that it was.
"""

from __future__ import annotations

import json
import re
from typing import Any

from octavo.api.text.parsers.literals import quoted, transcribed

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.0+)?")  # 3.0 is an integer to JSON Schema
_NULLS = frozenset({"null", "none", "nil"})
_DEPTH = 8
_KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


def types_of(schema: Any, root: Any = None, depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema allows, as far as it says; empty when it does not."""
    if not isinstance(schema, dict) or depth > _DEPTH:
        return frozenset()
    root = schema if root is None else root
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(k for k in kind if isinstance(k, str))
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return frozenset(_KINDS.get(type(v), "object" if isinstance(v, dict) else "array") for v in values)
    found: frozenset[str] = frozenset()
    for key in ("anyOf", "oneOf", "allOf"):
        for option in schema.get(key) or () if isinstance(schema.get(key), list) else ():
            found |= types_of(option, root, depth + 1)
    if isinstance(schema.get("$ref"), str):
        found |= types_of(_at(root, schema["$ref"]), root, depth + 1)
    if not found and "properties" in schema:
        return frozenset({"object"})
    if not found and "items" in schema:
        return frozenset({"array"})
    return found


def _at(root: Any, reference: str) -> Any:
    if not reference.startswith("#/"):
        return None
    for step in reference[2:].split("/"):
        if not isinstance(root, dict):
            return None
        root = root.get(step.replace("~1", "/").replace("~0", "~"))
    return root


def resolved(schema: Any, root: Any) -> Any:
    """A schema with what its reference leads to, if it has one; the keywords beside the reference win."""
    for _ in range(_DEPTH):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            break
        target = _at(root, schema["$ref"])
        beside = {k: v for k, v in schema.items() if k != "$ref"}
        schema = {**target, **beside} if isinstance(target, dict) else beside
    return schema


def property_schema(schema: Any, key: str, root: Any = None) -> Any:
    """The schema of one key of an object; None when nothing is said of it. `root`: where references lead."""
    if not isinstance(schema, dict):
        return None
    properties = schema.get("properties")
    found = properties.get(key) if isinstance(properties, dict) else None
    if found is None and isinstance(schema.get("additionalProperties"), dict):
        found = schema["additionalProperties"]
    return resolved(found, schema if root is None else root)


def as_json(text: str, schema: Any, root: Any = None) -> str:
    """The JSON text of a value that was written as `text`."""
    types = types_of(schema, root)
    word = text.strip()
    lower = word.lower()
    if not types:
        return quoted(text)
    if "null" in types and lower in _NULLS:
        return "null"
    if "boolean" in types and lower in ("true", "false"):
        return lower
    if "integer" in types and _INTEGER.fullmatch(word):
        return word
    if "number" in types and _NUMBER.fullmatch(word):
        return word
    if types & {"object", "array"} and word[:1] in ("{", "["):
        found = _container(word)
        if found is not None:
            return found
    return quoted(text if "string" in types else word)


def _container(text: str) -> str | None:
    """JSON as it is; the same written as Python literals, transcribed."""
    try:
        value = json.loads(text)
        return text if isinstance(value, dict | list) else None
    except (ValueError, RecursionError):
        return transcribed(text)
