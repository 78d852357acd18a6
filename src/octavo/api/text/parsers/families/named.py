"""Calls that are a name and then JSON arguments, with markers around and between them."""

from __future__ import annotations

from octavo.api.text.parsers.families.base import MAX_NAME
from octavo.api.text.parsers.families.json_calls import JsonCalls
from octavo.api.text.parsers.source import Fault, Markers, Steps


class NamedCalls(JsonCalls):
    family = "named"

    def call(self, marker: str) -> Steps[None]:
        source, row = self.source, self.row
        first = yield from source.space()
        if row.is_list and first in ("[", "{"):  # the older form: a JSON list
            yield from super().call(marker)
            return
        while True:
            yield from self._one()
            if not row.is_list:
                break
            # Where one marker may announce several calls, the next begins with a name at once.
            source.record = []
            first = yield from source.space()
            if not (first.isalnum() or first == "_"):
                self.out.content("".join(source.record))
                break
            yield from self._try_next()
            if self.out.is_open:
                raise Fault
            break
        source.record = None

    def _try_next(self) -> Steps[None]:
        try:
            yield from self._one()
        except Fault:
            record = self.source.record
            if record is None:
                raise
            self.out.content("".join(record))

    def _one(self) -> Steps[None]:
        source, row = self.source, self.row
        if row.prefix:
            yield from source.expect(row.prefix)
        ends = Markers((*row.name_ends, *((row.id_mark,) if row.id_mark else ())))
        name, end = yield from source.short(ends, MAX_NAME)
        call_id = None
        if row.id_mark and end == row.id_mark:
            call_id, end = yield from source.short(Markers(row.name_ends), MAX_NAME)
        if end == "{":
            source.unread(1)
        if row.ids == "own":
            call_id = name.strip()
            name = _bare_name(call_id)
        if not name.strip() or any(c.isspace() for c in name.strip()):
            raise Fault
        for literal in row.before_arguments:
            yield from source.space()
            yield from source.has(literal)
        first = yield from source.space()
        if first == "{":
            self.begin(name, call_id)
            yield from source.json(self.out.arguments)
        elif row.closes and (yield from source.has_any(row.closes)):
            self.begin(name, call_id)
            self.end()
            return
        else:
            raise Fault
        for literal in row.after_arguments:
            yield from source.space()
            yield from source.has(literal)
        self.end()
        yield from self._close()


def _bare_name(text: str) -> str:
    """`functions.NAME:IDX` -> NAME."""
    return text.removeprefix("functions.").rpartition(":")[0] or text.removeprefix("functions.")
