"""Calls whose parameters are elements named after them; nested elements are objects, repeated ones lists.

Each tag has a prefix of its own, so that text with angle brackets is no tag.
"""

from __future__ import annotations

from typing import Any

from octavo.api.text.parsers.families.base import MAX_NAME
from octavo.api.text.parsers.families.xml import TaggedCalls
from octavo.api.text.parsers.literals import quoted
from octavo.api.text.parsers.source import Fault, Markers, Steps
from octavo.api.text.parsers.values import as_json, property_schema, resolved, types_of

_DEEP = 32


class ElementCalls(TaggedCalls):
    """`row.parameter` is the prefix of every tag; `row.quote` ends the name."""

    family = "elements"

    def call(self, marker: str) -> Steps[None]:
        source, row = self.source, self.row
        name, _ = yield from source.short(Markers((row.quote,)), MAX_NAME)
        yield from source.short(Markers((row.head_end,)), MAX_NAME)
        self.open_call(name)
        prefix = Markers((row.parameter,))
        while True:
            if (yield from source.until(prefix, self.out.content)) is None:
                return
            tag = yield from self._tag()
            if tag == "/invoke":
                self.close_call()
                return
            if tag.startswith("/"):
                continue
            root = self.schema_of(name)
            value = yield from self._element(tag, property_schema(root, tag), root, 0)
            if value is None:
                return
            self.hold(tag, value)

    def _tag(self) -> Steps[str]:
        yield from self.source.expect("<")
        tag, _ = yield from self.source.short(Markers((">",)), MAX_NAME)
        return tag.strip()

    def _element(self, tag: str, schema: Any, root: Any, depth: int) -> Steps[str | None]:
        """The JSON text of what stands between a tag and its end; None when the text ends first."""
        if depth > _DEEP:
            raise Fault
        pieces: list[str] = []
        fields: list[tuple[str, str]] = []
        kinds = types_of(schema, root)
        if kinds == {"string"}:  # whatever looks like a tag in a text is text
            end = Markers((f"{self.row.parameter}</{tag}>",))
            found = yield from self.source.until(end, pieces.append)
            return None if found is None else quoted("".join(pieces))
        prefix = Markers((self.row.parameter,))
        while True:
            if (yield from self.source.until(prefix, pieces.append)) is None:
                return None
            inner = yield from self._tag()
            if inner == "/" + tag:
                break
            if inner.startswith("/"):
                raise Fault
            value = yield from self._element(inner, _inner_schema(schema, inner, root), root, depth + 1)
            if value is None:
                return None
            fields.append((inner, value))
        if fields:
            return _joined(fields, kinds)
        text = "".join(pieces)
        if not text.strip() and kinds and kinds <= {"object", "array"}:
            return "[]" if "array" in kinds else "{}"
        return as_json(text, schema, root)


def _inner_schema(schema: Any, tag: str, root: Any) -> Any:
    if isinstance(schema, dict) and "array" in types_of(schema, root):
        return resolved(schema.get("items"), root)
    return property_schema(schema, tag, root)


def _joined(fields: list[tuple[str, str]], kinds: frozenset[str]) -> str:
    names = [name for name, _ in fields]
    is_list = "array" in kinds or (not kinds and len(names) > 1 and len(set(names)) == 1)
    if is_list:
        return "[" + ", ".join(value for _, value in fields) + "]"
    return "{" + ", ".join(f"{quoted(name)}: {value}" for name, value in dict(fields).items()) + "}"
