"""Values in a syntax of a format's own, by a JSON Schema, as a grammar: the inverse of `braced` and `elements`.

One walk over the schema; a syntax says how a text, an object and a list look. A keyword that the walk does not
enforce is refused by name and place.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from typing import Any

from octavo.api.text.parsers.lark import ANY, Lark, quoted
from octavo.api.text.parsers.values import resolved, types_of

_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SCALARS = {"null": (), "boolean": (), "integer": _NUMBERS, "number": _NUMBERS}
_NEUTRAL = frozenset({"type", "$defs", "definitions", "additionalProperties"})
_BY_TYPE = {
    **{kind: frozenset(words) for kind, words in _SCALARS.items()},
    "string": frozenset[str](),
    "object": frozenset({"properties", "required"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
}
_ALL = frozenset().union(*_BY_TYPE.values())
_MAX_ITEMS = 1_000


class NotWritable(Exception):
    """A format, or a schema in it, that has no grammar."""


class Nested(ABC):
    """`root`: the tool's parameters, for references; `format`: the name in errors."""

    def __init__(self, lark: Lark, root: Any, format_name: str) -> None:
        self.lark = lark
        self._root = root
        self._format = format_name
        self._rules: dict[str, str] = {}  # reference to the rule of what it names
        self._any = ""

    # ---- syntax ---------------------------------------------------------------------------------

    @abstractmethod
    def text(self, tag: str) -> str:
        """Any text as a value; `tag` names the element that it stands in."""

    @abstractmethod
    def literal(self, value: Any, tag: str) -> str:
        """One value as it is."""

    @abstractmethod
    def mapping(self, pairs: list[tuple[str, str, bool]]) -> str:
        """(key, rule of its value, is it required)."""

    @abstractmethod
    def any_mapping(self) -> str: ...

    @abstractmethod
    def sequence(self, item: str, least: int, most: int | None) -> str: ...

    @abstractmethod
    def anything(self, tag: str) -> str:
        """Any value."""

    def ended(self, symbol: str, tag: str) -> str:
        """A value that does not say itself where it ends, with what ends it. Texts and literals have it."""
        return symbol

    #: Whether a value tells its type by itself.
    is_plain: bool = True
    item_tag = ""

    # ---- the walk -------------------------------------------------------------------------------

    def value(self, schema: Any, at: str, tag: str = "") -> str:
        """The symbol of a value that the schema takes. Raises NotWritable."""
        if not isinstance(schema, dict):
            if schema is False:
                raise self.refused("false", at)
            return self.anything(tag)
        if "$ref" in schema:
            return self._reference(schema["$ref"], at, tag)
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else schema["enum"]
            return "(" + " | ".join(self.literal(v, tag) for v in values) + ")"
        if "anyOf" in schema:
            return self._options(schema, at, tag)
        kinds = types_of(schema, self._root)
        known = _NEUTRAL.union(*(_BY_TYPE.get(k, frozenset()) for k in kinds or _BY_TYPE))
        unknown = sorted(set(schema) - known)
        if unknown:
            raise self.refused(unknown[0], at)
        if not kinds:
            if set(schema) & _ALL:
                raise self.refused(min(set(schema) & _ALL), at)
            return self.anything(tag)
        if "number" in kinds:
            kinds -= {"integer"}
        return "(" + " | ".join(self._typed(kind, schema, at, tag) for kind in sorted(kinds)) + ")"

    def refused(self, keyword: str, at: str) -> NotWritable:
        return NotWritable(
            f"{keyword} at {at}/{keyword} is not enforced in this model's format of calls ({self._format})"
        )

    def _reference(self, reference: Any, at: str, tag: str) -> str:
        name = f"{reference} {tag}"
        if name not in self._rules:
            self._rules[name] = rule = self.lark.reserve()
            self.lark.define(rule, self.value(resolved({"$ref": reference}, self._root), at, tag))
        return self._rules[name]

    def _options(self, schema: dict[str, Any], at: str, tag: str) -> str:
        rest = sorted(set(schema) - _NEUTRAL - {"anyOf"})
        if rest:
            raise self.refused(rest[0], at)
        options = schema["anyOf"]
        if not self.is_plain and types_of(schema, self._root) & {"object", "array"}:
            raise self.refused("anyOf", at)
        return "(" + " | ".join(self.value(o, f"{at}/anyOf/{i}", tag) for i, o in enumerate(options)) + ")"

    def _typed(self, kind: str, schema: dict[str, Any], at: str, tag: str) -> str:
        if kind == "string":
            return self.text(tag)
        if kind in _SCALARS:
            numbers = {k: schema[k] for k in _SCALARS[kind] if k in schema}
            return self.ended(self.lark.json({"type": kind, **numbers}), tag)
        if kind == "object":
            return self.ended(self._object(schema, at), tag)
        if kind == "array":
            least, most = schema.get("minItems", 0), schema.get("maxItems")
            if max(least, most or 0) > _MAX_ITEMS:
                raise self.refused("maxItems" if (most or 0) > _MAX_ITEMS else "minItems", at)
            item = self.value(schema.get("items", True), f"{at}/items", self.item_tag)
            return self.ended(self.sequence(item, least, most), tag)
        raise self.refused("type", at)

    def _object(self, schema: dict[str, Any], at: str) -> str:
        properties = schema.get("properties", {})
        pairs = properties_of(schema)
        if not pairs and "properties" not in schema and schema.get("additionalProperties") is not False:
            return self.any_mapping()
        return self.mapping(
            [
                (
                    key,
                    self.value(held, f"{at}/properties/{key}" if key in properties else at, key),
                    is_required,
                )
                for key, held, is_required in pairs
            ]
        )


def properties_of(schema: Any) -> list[tuple[str, Any, bool]]:
    """(key, schema, is it required) in the order of the schema; keys that are required and not described last."""
    if not isinstance(schema, dict):
        return []
    properties, required = schema.get("properties"), schema.get("required")
    held = dict(properties) if isinstance(properties, dict) else {}
    wanted = [k for k in required if isinstance(k, str)] if isinstance(required, list) else []
    for key in wanted:
        held.setdefault(key, schema.get("additionalProperties", True))
    return [(key, value, key in wanted) for key, value in held.items()]


def commas(lark: Lark, pairs: list[tuple[str, bool]], comma: str = ", ") -> str:
    """(body, is it required) in order; optional ones left out or not, with a comma between those that are there."""
    tail, options = "", []
    for i in range(len(pairs) - 1, -1, -1):
        body, is_required = pairs[i]
        options.append((i, lark.rule(f"{body} {tail}".strip())))
        piece = f"{quoted(comma)} {body}"
        tail = lark.rule(f"{piece if is_required else f'({piece})?'} {tail}".strip())
    first_required = next((i for i, p in enumerate(pairs) if p[1]), None)
    starts = [rule for i, rule in options if first_required is None or i <= first_required]
    if not starts:
        return ""
    choice = f"({' | '.join(starts)})"
    return choice if first_required is not None else choice + "?"


class Braces(Nested):
    """`{key:<q>text<q>,n:42,l:[..]}`, where <q> is the mark `quote`."""

    def __init__(self, lark: Lark, root: Any, format_name: str, quote: str) -> None:
        super().__init__(lark, root, format_name)
        self._quote = quote

    def text(self, tag: str = "") -> str:
        return f"{self.lark.literal(self._quote)} {self.lark.until(self._quote)}"

    def literal(self, value: Any, tag: str = "") -> str:
        if isinstance(value, str):
            if self._quote in value:
                raise NotWritable(f"a text with {self._quote!r} in it cannot be written ({self._format})")
            return self.lark.literal(self._quote + value + self._quote)
        if isinstance(value, dict):
            pairs = [f"{self._key(k)} {self.literal(v)}" for k, v in value.items()]
            return f'"{{" {" {} ".format(quoted(",")).join(pairs)} "}}"'
        if isinstance(value, list):
            return f'"[" {" {} ".format(quoted(",")).join(map(self.literal, value))} "]"'
        return quoted(json.dumps(value))

    def _key(self, key: str) -> str:
        if re.fullmatch(r"[\w.\-]+", key):
            return quoted(key + ":")
        if self._quote in key:
            raise NotWritable(f"the key {key!r} cannot be written ({self._format})")
        return f"{self.lark.literal(self._quote + key + self._quote)} {quoted(':')}"

    def mapping(self, pairs: list[tuple[str, str, bool]]) -> str:
        bodies = [(f"{self._key(key)} {value}", is_required) for key, value, is_required in pairs]
        return self.lark.rule(f'"{{" {commas(self.lark, bodies, ",")} "}}"')

    def any_mapping(self) -> str:
        self.anything()
        return self._any_mapping

    def sequence(self, item: str, least: int, most: int | None) -> str:
        if most == 0:
            return '"[]"'
        more = f'("," {item})' + (
            "*" if most is None and least < 2 else f"{{{max(least - 1, 0)},{_upto(most)}}}"
        )
        body = f"{item} {more}"
        return self.lark.rule(f'"[" {body if least else f"({body})?"} "]"')

    def anything(self, tag: str = "") -> str:
        if not self._any:
            lark = self.lark
            self._any, self._any_mapping = lark.reserve(), lark.reserve()
            pair = lark.rule(f"/[A-Za-z_][A-Za-z0-9_]{{0,63}}:/ {self._any}")
            lark.define(self._any_mapping, f'"{{" ({pair} ("," {pair})*)? "}}"')
            scalar = lark.json({"type": ["null", "boolean", "number"]})
            items = f'"[" ({self._any} ("," {self._any})*)? "]"'
            lark.define(self._any, f"{self.text()} | {scalar} | {self._any_mapping} | {items}")
        return self._any

    _any_mapping = ""


def _upto(most: int | None) -> str:
    return "" if most is None else str(most - 1)


class Elements(Nested):
    """`P<key>value` to `P</key>`; lists have elements of one name in them. A value ends with its closing tag."""

    is_plain = False
    item_tag = "item"

    def __init__(self, lark: Lark, root: Any, format_name: str, prefix: str) -> None:
        super().__init__(lark, root, format_name)
        self._prefix = prefix

    def close(self, tag: str) -> str:
        return f"{self._prefix}</{tag}>"

    def element(self, tag: str, value: str) -> str:
        if not re.fullmatch(r"[^<>/\s]+", tag):
            raise NotWritable(f"the key {tag!r} cannot be written as a tag ({self._format})")
        return self.lark.rule(f"{self.lark.literal(f'{self._prefix}<{tag}>')} {value}")

    def text(self, tag: str) -> str:
        return self.lark.until(self.close(tag))

    def literal(self, value: Any, tag: str) -> str:
        if isinstance(value, dict | list) or (isinstance(value, str) and self._prefix in value):
            raise NotWritable(f"a const or enum with {json.dumps(value)[:64]} ({self._format})")
        text = value if isinstance(value, str) else json.dumps(value)
        return f"{self.lark.literal(text)} {self.lark.literal(self.close(tag))}".strip()

    def mapping(self, pairs: list[tuple[str, str, bool]]) -> str:
        out = [
            self.element(k, v) if is_required else f"({self.element(k, v)})?" for k, v, is_required in pairs
        ]
        return " ".join(out)

    def any_mapping(self) -> str:
        raise NotWritable(f"an object without properties has no elements ({self._format})")

    def sequence(self, item: str, least: int, most: int | None) -> str:
        if most == 0:
            return ""
        one = self.element(self.item_tag, item)
        return f"{one}{{{least},{'' if most is None else most}}}" if least or most is not None else f"{one}*"

    def anything(self, tag: str) -> str:
        """Any text in which no tag begins: not even the first half of the prefix, where it is text."""
        inside = ANY if self.lark.is_control(self._prefix) else r"/(?s:([^\[]|\[+[^>\[])*)/"
        return self.lark.until(self.close(tag), inside)

    def ended(self, symbol: str, tag: str) -> str:
        return f"{symbol} {self.lark.literal(self.close(tag))}".strip()
