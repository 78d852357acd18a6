"""Calls as Gemma writes them: `call:NAME{key:<q>text<q>,n:42,o:{..},l:[..]}` with a marker for quotes.

A value becomes JSON as it comes; the call is sent when its closing brace has come.
"""

from __future__ import annotations

from octavo.api.text.parsers.families.base import MAX_NAME, Reader
from octavo.api.text.parsers.literals import Item, quoted
from octavo.api.text.parsers.source import CONTROL, Fault, Markers, Steps
from octavo.api.text.parsers.values import as_json

_DEEP = 200
_WORD_ENDS = (",", "}", "]")
_PLAIN = {"type": ["null", "boolean", "integer", "number", "string"]}


class BracedCalls(Reader):
    family = "braced"

    def call(self, marker: str) -> Steps[None]:
        source, row = self.source, self.row
        yield from source.space()
        while True:
            yield from source.expect("call:")
            name, _ = yield from source.short(Markers(("{",)), MAX_NAME)
            source.unread(1)
            pieces: list[str] = []
            yield from self._mapping(pieces, 0)
            self.begin(name)
            self.out.arguments("".join(pieces))
            self.end()
            source.record = []
            char = yield from source.space()
            if char == ",":
                source.take(1)
                yield from source.space()
                continue
            if (yield from source.has_any(row.closes)) is None:
                self.out.content("".join(source.record))
            source.record = None
            return

    def _mapping(self, out: list[str], depth: int) -> Steps[None]:
        """Of a key that is said twice the last value counts."""
        held: dict[str, str] = {}

        def pair(_: str, num: int) -> Steps[None]:
            key = yield from self._key()
            value: list[str] = []
            yield from self._value(value, depth + 1)
            held[CONTROL.sub("", key)] = "".join(value)

        yield from self._inside("{", "}", [], depth, pair)
        out.append("{" + ", ".join(f"{quoted(k)}: {v}" for k, v in held.items()) + "}")

    def _sequence(self, out: list[str], depth: int) -> Steps[None]:
        def element(_: str, num: int) -> Steps[None]:
            if num:
                out.append(", ")
            yield from self._value(out, depth + 1)

        yield from self._inside("[", "]", out, depth, element)

    def _inside(self, opening: str, closing: str, out: list[str], depth: int, item: Item) -> Steps[None]:
        if depth > _DEEP:
            raise Fault
        yield from self.source.expect(opening)
        out.append(opening)
        yield from self.source.listed(closing, item)
        out.append(closing)

    def _key(self) -> Steps[str]:
        source, quote = self.source, self.row.string_quote
        if not (yield from source.has(quote)):
            key, _ = yield from source.short(Markers((":",)), MAX_NAME)
            return key.strip().strip('"')
        key, _ = yield from source.short(Markers((quote,)), MAX_NAME)
        yield from source.space()
        yield from source.expect(":")
        return key

    def _value(self, out: list[str], depth: int) -> Steps[None]:
        source, quote = self.source, self.row.string_quote
        char = yield from source.space()
        if char == "{":
            yield from self._mapping(out, depth)
        elif char == "[":
            yield from self._sequence(out, depth)
        elif (yield from source.has(quote)):
            pieces: list[str] = []
            if (yield from source.until(Markers((quote,)), pieces.append)) is None:
                raise Fault
            out.append(quoted("".join(pieces)))
        elif char == '"':
            yield from source.json(out.append)
        else:
            word, _ = yield from source.short(Markers(_WORD_ENDS), 4_096)
            source.unread(1)
            if not word.strip():
                raise Fault
            out.append(as_json(word.strip(), _PLAIN))
