"""Calls written as Python: `[f(a=1), g(b='x')]`, or one call a line. Read as text, never evaluated.

Each call is transcribed to JSON and sent when its closing bracket has come.
"""

from __future__ import annotations

import re

from octavo.api.text.parsers.families.base import MAX_NAME, Reader
from octavo.api.text.parsers.literals import Transcriber, quoted
from octavo.api.text.parsers.source import Fault, Markers, Steps

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")


class PythonicCalls(Reader):
    family = "pythonic"

    def call(self, marker: str) -> Steps[None]:
        source, row = self.source, self.row
        first = yield from source.space()
        if first == "[":
            source.take(1)
            yield from self._calls("]")
        elif not self.is_bare:
            yield from self._calls("")
        else:
            raise Fault
        if row.closes:
            source.record = []
            yield from source.space()
            if (yield from source.has_any(row.closes)) is None:
                self.out.content("".join(source.record))
            source.record = None

    def _calls(self, closer: str) -> Steps[None]:
        """Calls with commas or line ends between them, up to `closer` (or an end marker, unread)."""
        source = self.source
        num = 0
        while True:
            char = yield from source.space()
            if num and char == closer:
                source.take(1)
                return
            if num and char in (",", ";"):
                source.take(1)
            elif char and _NAME.match(char):
                self.start_record()
                yield from self._one()
                num += 1
            elif num and not closer:
                return
            else:
                raise Fault

    def _one(self) -> Steps[None]:
        source = self.source
        name, _ = yield from source.short(Markers(("(",)), MAX_NAME)
        if not _NAME.fullmatch(name.strip()):
            raise Fault
        pieces: list[str] = []
        value = Transcriber(source, pieces)
        while True:
            char = yield from source.space()
            if char == ")":
                source.take(1)
                break
            if char == "," and pieces:
                source.take(1)
                continue
            key, _ = yield from source.short(Markers(("=",)), MAX_NAME)
            if not _NAME.fullmatch(key.strip()):
                raise Fault
            pieces.append(("{" if not pieces else ", ") + quoted(key.strip()) + ": ")
            yield from source.space()
            yield from value.value()
        self.begin(name)
        self.out.arguments("".join(pieces) + "}" if pieces else "{}")
        self.end()
