"""Calls that are a name and then pairs of a key tag and a value tag."""

from __future__ import annotations

from octavo.api.text.parsers.families.base import MAX_NAME
from octavo.api.text.parsers.families.json_calls import JsonCalls
from octavo.api.text.parsers.families.xml import TaggedCalls
from octavo.api.text.parsers.literals import quoted
from octavo.api.text.parsers.source import Fault, Markers, Steps
from octavo.api.text.parsers.values import as_json, property_schema


class KeyedCalls(JsonCalls, TaggedCalls):
    family = "keyed"

    def call(self, marker: str) -> Steps[None]:
        source, row = self.source, self.row
        first = yield from source.space()
        if row.is_list and first == "{":  # the same tags around JSON
            yield from super().call(marker)
            return
        name, end = yield from source.short(Markers((row.key[0], *row.closes, *row.name_ends)), MAX_NAME)
        name = name.strip()
        if not name or any(c.isspace() for c in name):
            raise Fault
        self.open_call(name)
        markers = Markers((row.key[0], *row.closes))
        found: str | None = end
        while True:
            if found is None:
                return  # cut: the call stays open
            if found in row.closes:
                self.close_call()
                return
            if found == row.key[0]:
                yield from self._pair(name)
            found = yield from source.until(markers, self.out.content)

    def _pair(self, name: str) -> Steps[None]:
        source, row = self.source, self.row
        key, _ = yield from source.short(Markers((row.key[1],)), MAX_NAME)
        yield from source.space()
        kind = ""
        if row.kind[0] and (yield from source.has(row.kind[0])):
            kind, _ = yield from source.short(Markers((row.kind[1],)), MAX_NAME)
            yield from source.space()
        yield from source.expect(row.value[0])
        pieces: list[str] = []
        if (yield from source.until(Markers((row.value[1],)), pieces.append)) is None:
            return
        text, key = "".join(pieces), key.strip()
        schema = {"type": kind} if kind else property_schema(self.schema_of(name), key)
        self.first_or_next(key, quoted(text) if kind == "string" else as_json(text, schema))
