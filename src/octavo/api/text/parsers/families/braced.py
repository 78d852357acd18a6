"""Calls as Gemma writes them: `call:NAME{key:<q>text<q>,n:42,o:{..},l:[..]}` with a marker for quotes.

A value becomes JSON as it comes; the call is sent when its closing brace has come.
"""

from __future__ import annotations

from octavo.api.text.parsers.families.base import MAX_NAME, Reader
from octavo.api.text.parsers.literals import quoted
from octavo.api.text.parsers.source import Fault, Markers, Steps
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
        source, num = self.source, 0
        if depth > _DEEP:
            raise Fault
        yield from source.expect("{")
        out.append("{")
        while True:
            char = yield from source.space()
            if char == "}":
                source.take(1)
                break
            if char == "," and num:
                source.take(1)
                continue
            if (yield from source.has(self.row.string_quote)):
                key, _ = yield from source.short(Markers((self.row.string_quote,)), MAX_NAME)
                yield from source.space()
                yield from source.expect(":")
            else:
                key, _ = yield from source.short(Markers((":",)), MAX_NAME)
            out.append((", " if num else "") + quoted(key.strip().strip('"')) + ": ")
            num += 1
            yield from self._value(out, depth + 1)
        out.append("}")

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

    def _sequence(self, out: list[str], depth: int) -> Steps[None]:
        source, num = self.source, 0
        if depth > _DEEP:
            raise Fault
        source.take(1)
        out.append("[")
        while True:
            char = yield from source.space()
            if char == "]":
                source.take(1)
                break
            if char == "," and num:
                source.take(1)
                continue
            if num:
                out.append(", ")
            yield from self._value(out, depth + 1)
            num += 1
        out.append("]")
