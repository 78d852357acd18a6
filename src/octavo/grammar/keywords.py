"""What becomes of each JSON Schema keyword (draft 2020-12): the table that is checked, served and documented.

A keyword is enforced, is an annotation that says nothing about what is valid, or is refused. A keyword
that is in no table is refused as unknown: it may be a misspelt one.
"""

from __future__ import annotations

from typing import Literal

Where = Literal["value", "schema", "schemas", "named"]  # what the keyword holds

#: keyword -> (what it holds, how far it is enforced)
ENFORCED: dict[str, tuple[Where, str]] = {
    "type": ("value", "one type or a list of types"),
    "const": ("value", ""),
    "enum": ("value", ""),
    "anyOf": ("schemas", ""),
    "allOf": ("schemas", "as the intersection, where it can be computed"),
    "oneOf": ("schemas", "where the branches are provably disjoint, by type or by a required const or enum"),
    "$ref": ("value", "to a place in the same schema, in any order, recursive too"),
    "$defs": ("named", ""),
    "definitions": ("named", ""),
    "$anchor": ("value", ""),
    "items": ("schema", "one schema for all items; a list of schemas is prefixItems"),
    "prefixItems": ("schemas", ""),
    "minItems": ("value", ""),
    "maxItems": ("value", ""),
    "properties": ("named", "in the order of the schema"),
    "required": ("value", ""),
    "additionalProperties": ("schema", "after the named properties; a key is never repeated"),
    "patternProperties": ("named", "where no two patterns, and no pattern and property, match the same key"),
    "minProperties": ("value", "where all of properties are required, or the bound is 0 or 1"),
    "maxProperties": ("value", "where all of properties are required, or the bound is 0 or 1"),
    "minLength": ("value", "in characters"),
    "maxLength": ("value", "in characters"),
    "pattern": ("value", "without look-around and back references"),
    "format": ("value", ""),
    "minimum": ("value", ""),
    "maximum": ("value", ""),
    "exclusiveMinimum": ("value", ""),
    "exclusiveMaximum": ("value", ""),
    "multipleOf": ("value", ""),
}

ANNOTATIONS: frozenset[str] = frozenset(
    (
        "$schema",
        "$id",
        "$comment",
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "discriminator",  # OpenAPI's hint beside a oneOf, which says the same by itself
    )
)

#: keyword -> what to do instead
REFUSED: dict[str, str] = {
    "not": "say what is allowed",
    "if": "use anyOf with one branch for each case",
    "then": "use anyOf with one branch for each case",
    "else": "use anyOf with one branch for each case",
    "dependentRequired": "use anyOf with one branch for each case",
    "dependentSchemas": "use anyOf with one branch for each case",
    "dependencies": "use anyOf with one branch for each case",
    "propertyNames": "use patternProperties with additionalProperties false",
    "unevaluatedProperties": "use additionalProperties in the schema that names the properties",
    "unevaluatedItems": "use items",
    "additionalItems": "use prefixItems and items",
    "uniqueItems": "leave it out and drop repeated items from the answer",
    "contains": "use prefixItems or items",
    "minContains": "use minItems",
    "maxContains": "use maxItems",
    "contentEncoding": "use pattern",
    "contentMediaType": "ask for the inner document by itself",
    "contentSchema": "ask for the inner document by itself",
    "nullable": 'use "type": [..., "null"]',
    "$dynamicRef": "use $ref",
    "$dynamicAnchor": "use $anchor",
    "$recursiveRef": "use $ref",
    "$recursiveAnchor": "use $anchor",
    "$vocabulary": "leave it out",
    "x-guidance": "white space is chosen by the request's own fields",
}

#: Values of a refused keyword that ask for nothing.
NEUTRAL: dict[str, object] = {"uniqueItems": False, "nullable": False}

FORMATS: tuple[str, ...] = (
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
)

TYPES: tuple[str, ...] = ("null", "boolean", "integer", "number", "string", "array", "object")


def table() -> list[list[str]]:
    """Rows [keyword, enforced | annotation | refused, note], for the document and the server."""
    notes = {"format": ", ".join(FORMATS)}
    rows = [[k, "enforced", notes.get(k, note)] for k, (_, note) in ENFORCED.items()]
    rows += [[k, "annotation", ""] for k in sorted(ANNOTATIONS)]
    rows += [[k, "refused", note] for k, note in REFUSED.items()]
    return rows
