"""Calls that are a name and then pairs of a key tag and a value tag."""

from __future__ import annotations

from octavo.api.text.parsers.families.base import MAX_NAME
from octavo.api.text.parsers.families.json_calls import JsonCalls
from octavo.api.text.parsers.families.xml import TaggedCalls
from octavo.api.text.parsers.literals import quoted
from octavo.api.text.parsers.source import Markers, Steps
from octavo.api.text.parsers.values import as_json, property_schema


class KeyedCalls(JsonCalls, TaggedCalls):
    family = "keyed"

    def call(self, marker: str) -> Steps[None]:
        row = self.row
        first = yield from self.source.space()
        if row.is_list and first == "{":  # the same tags around JSON
            yield from super().call(marker)
            return
        found: str | None = marker
        while (
            found is not None and found in row.opens
        ):  # another one, where the end of the one before is missing
            found = yield from self._one()

    def _one(self) -> Steps[str | None]:
        """A call to its end, or to where the next one begins: that marker. None when all is read."""
        source, row = self.source, self.row
        yield from source.space()
        section_end = row.section[1] if row.section is not None else ""
        heads = Markers((row.key[0], *row.closes, *row.name_ends))
        name, found = yield from source.short(heads, MAX_NAME)
        self.open_call(name.strip())
        markers = Markers((row.key[0], *row.closes, *row.opens, section_end))
        while True:
            if found in row.closes or found in row.opens or found == section_end:
                self.close_call()
                self._in_section = self._in_section and found != section_end
                return found if found in row.opens else None
            if found == row.key[0]:
                yield from self._pair(name)
            following = yield from source.until(markers, self.out.content)
            if following is None:
                return None  # cut: the call stays open
            found = following

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
        root = self.schema_of(name)
        schema = {"type": kind} if kind else property_schema(root, key)
        self.hold(key, quoted(text) if kind == "string" else as_json(text, schema, root))
