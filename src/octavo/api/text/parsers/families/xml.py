"""Calls with tagged parameters: a tag with the name, a tag for each parameter, values as plain text.

Values become JSON by the types of the tool's schema.
"""

from __future__ import annotations

import re

from octavo.api.text.parsers.families.base import MAX_NAME, Reader
from octavo.api.text.parsers.families.json_calls import JsonCalls
from octavo.api.text.parsers.literals import quoted
from octavo.api.text.parsers.source import CONTROL, Fault, Markers, Steps
from octavo.api.text.parsers.values import as_json, property_schema

_TYPE_MARK = re.compile(r"(?:string|type)\s*=\s*\"?(\w+)\"?")
_CDATA = re.compile(r"\A\s*<!\[CDATA\[(.*)\]\]>\s*\Z", re.DOTALL)


class TaggedCalls(Reader):
    """What calls with one parameter after another share: the object that their arguments make.

    Of a parameter that is said twice the last value counts, as in the families' own parsers: so arguments are sent
    when the call ends, breaks or is cut. Text between parameters is no part of a call; it is not lost either, but
    content.
    """

    def hold(self, key: str, value: str) -> None:
        self._held[CONTROL.sub("", key)] = value

    def open_call(self, name: str) -> None:
        self.begin(name)
        self._held: dict[str, str] = {}

    def close_call(self) -> None:
        self._send("}")
        self.end()

    def _within(self, marker: str, was_in_section: bool) -> Steps[None]:
        self._held = {}
        try:
            yield from super()._within(marker, was_in_section)
        except Fault:
            self._send("")
            raise
        self._send("")

    def _send(self, end: str) -> None:
        """What is held, where a call is open."""
        if self._held or end:
            self.out.arguments("{" + ", ".join(f"{quoted(k)}: {v}" for k, v in self._held.items()) + end)
        self._held = {}


class XmlCalls(JsonCalls, TaggedCalls):
    family = "xml"

    def call(self, marker: str) -> Steps[None]:
        source, row = self.source, self.row
        if not marker:
            yield from super().call(marker)
            return
        name = yield from self._head()
        self.open_call(name[0])
        section_end = row.section[1] if row.section is not None else ""
        ends = Markers((row.parameter, *row.closes, *row.opens, section_end))
        while True:
            found = yield from source.until(ends, self.out.content)
            if found is None:
                return  # cut: the call stays open
            if found in row.opens:  # the end of the one before is missing
                self.close_call()
                name = yield from self._head()
                self.open_call(name[0])
                continue
            if found != row.parameter:
                self.close_call()
                if found == section_end and found not in row.closes:
                    self._in_section = False
                return
            yield from self._parameter(name[0])

    def _head(self) -> Steps[tuple[str, str]]:
        """(name, the rest of its tag)."""
        source, row = self.source, self.row
        if not row.quote:
            name, _ = yield from source.short(Markers((row.head_end,)), MAX_NAME)
            return name, ""
        name, _ = yield from source.short(Markers((row.quote,)), MAX_NAME)
        rest, _ = yield from source.short(Markers((row.head_end,)), MAX_NAME)
        return name, rest

    def _parameter(self, name: str) -> Steps[None]:
        source, row = self.source, self.row
        key, rest = yield from self._head()
        pieces: list[str] = []
        found = yield from source.until(Markers((row.parameter_close,)), pieces.append)
        if found is None:
            return
        text = "".join(pieces)
        if not row.keeps_newlines:
            text = text.removeprefix("\n").removesuffix("\n")
        if (wrapped := _CDATA.match(text)) is not None:
            text = wrapped.group(1)
        self.hold(key.strip(), self._value(name, key.strip(), text, rest))

    def _value(self, name: str, key: str, text: str, rest: str) -> str:
        """What the tag itself says of the type comes first, where it says that it is text."""
        root = self.schema_of(name)
        schema = property_schema(root, key)
        mark = _TYPE_MARK.search(rest)
        if mark is None:
            return as_json(text, schema, root)
        if mark.group(1) in ("true", "string"):
            return quoted(text)
        kind = _ANY if mark.group(1) == "false" else {"type": mark.group(1)}
        return as_json(text, kind if schema is None else schema, root)


_ANY = {"type": ["null", "boolean", "integer", "number", "object", "array"]}
