"""Calls written as Python: `[f(a=1), g(b='x')]`, or one call a line. Read as text, never evaluated.

Each call is transcribed to JSON and sent when its closing bracket has come.
"""

from __future__ import annotations

from octavo.api.text.parsers.families.base import Reader
from octavo.api.text.parsers.literals import CALL_NAME, Transcriber
from octavo.api.text.parsers.source import Fault, Steps


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
            elif char and CALL_NAME.match(char):
                self.start_record()
                yield from self._one()
                num += 1
            elif num and not closer:
                return
            else:
                raise Fault

    def _one(self) -> Steps[None]:
        name, arguments = yield from Transcriber(self.source, []).call()
        self.begin(name)
        self.out.arguments(arguments)
        self.end()
