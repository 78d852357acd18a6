"""Calls that are JSON: one object, or a list of them, between markers or without any.

Keys may come in any order. Arguments are forwarded byte for byte as they come, once the name is known.
"""

from __future__ import annotations

from octavo.api.text.parsers.families.base import MAX_NAME, Reader
from octavo.api.text.parsers.source import Fault, Steps, decoded, lenient, no_text

MAX_HELD = 1 << 20  # characters of arguments that came before the name


class JsonCalls(Reader):
    family = "json"

    def call(self, marker: str) -> Steps[None]:
        source, row = self.source, self.row
        if marker in row.bare:
            source.unread(len(marker))
        yield from source.space()
        fence = yield from source.has_any(row.fences)
        first = yield from source.space()
        if first == "[":
            yield from self._list()
        elif first == "{":
            yield from self._objects()
        else:
            raise Fault
        if fence is not None:
            yield from source.space()
            yield from source.has("```")
        yield from self._close()

    def _close(self) -> Steps[None]:
        """The end marker, when there is one: white space before it belongs to it."""
        if not self.row.closes:
            return
        source = self.source
        source.record = []
        while (yield from source.space()) in ("}", "]"):  # a bracket too many is no answer
            source.take(1)
        if (yield from source.has_any(self.row.closes)) is None:
            self.out.content("".join(source.record))
        source.record = None

    def _objects(self) -> Steps[None]:
        """One object; with separators between them, as many as come."""
        source = self.source
        yield from self._object()
        while self.row.separators:
            source.record = []
            yield from source.space()
            if (yield from source.has_any(self.row.separators)) is None:
                self.out.content("".join(source.record))
                break
            if (yield from source.space()) != "{":
                raise Fault
            yield from self._object()
        source.record = None

    def _list(self) -> Steps[None]:
        source = self.source
        source.take(1)
        num = 0
        while True:
            char = yield from source.space()
            if char == "{":
                self.start_record()
                yield from self._object()
                num += 1
            elif char == "," and num:
                source.take(1)
            elif char == "]" and num:
                source.take(1)
                return
            else:
                raise Fault

    def _object(self) -> Steps[None]:
        if self.row.is_keyed:
            yield from self._keyed_object()
            return
        held = _Held()
        yield from self._fields(held)
        if not held.has_begun:
            if held.name is None:
                raise Fault
            self.begin(held.name, held.id)
            self.out.arguments(held.arguments)
        self.end()

    def _fields(self, held: _Held) -> Steps[None]:
        source, row = self.source, self.row
        yield from source.expect("{")
        while True:
            char = yield from source.space()
            if char in ("}", ","):
                source.take(1)
                if char == "}":
                    return
                continue
            key = yield from source.string(MAX_NAME)
            if self.is_bare and key not in self._keys:  # an answer that is JSON is not held back
                raise Fault
            yield from source.space()
            yield from source.expect(":")
            first = yield from source.space()
            if key in row.name_keys and held.name is None:
                held.name = yield from self._known_name()
            elif key in row.argument_keys and not held.has_arguments:
                yield from self._arguments(held, first)
            elif key in row.id_keys and first == '"':
                held.id = yield from source.string(MAX_NAME)
            elif key == "function" and first == "{" and held.name is None and not held.is_inner:
                held.is_inner = True
                yield from self._fields(held)
            elif key == "function" and first == '"' and held.name is None:
                held.name = yield from self._known_name()
            else:
                yield from source.json(no_text)

    @property
    def _keys(self) -> tuple[str, ...]:
        row = self.row
        return (*row.name_keys, *row.argument_keys, *row.id_keys, "function", "type", "id")

    def _known_name(self) -> Steps[str]:
        name = yield from self.source.string(MAX_NAME)
        if self.is_bare and name not in self.tools:
            raise Fault
        return name

    def _arguments(self, held: _Held, first: str) -> Steps[None]:
        source, pieces = self.source, _Pieces()
        held.has_arguments = True
        if first == "{" and held.name is not None:
            self.begin(held.name, held.id)
            held.has_begun = True
            yield from source.json(self.out.arguments)
        elif first == "{":
            yield from source.json(pieces.push)
            held.arguments = pieces.text
        elif first == '"':  # an object that was written as a string
            yield from source.json(pieces.push)
            held.arguments = decoded(pieces.text).strip()
            _check_object(held.arguments)
        elif first == "n":
            yield from source.expect("null")
        else:
            raise Fault

    def _keyed_object(self) -> Steps[None]:
        source = self.source
        yield from source.expect("{")
        yield from source.space()
        name = yield from source.string(MAX_NAME)
        yield from source.space()
        yield from source.expect(":")
        if (yield from source.space()) != "{":
            raise Fault
        self.begin(name)
        yield from source.json(self.out.arguments)
        if (yield from source.space()) != "}":
            raise Fault
        source.take(1)
        self.end()


def _check_object(text: str) -> None:
    if text and not isinstance(lenient(text), dict):
        raise Fault


class _Held:
    """What is known of a call whose object is being read."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.id: str | None = None
        self.arguments = ""
        self.has_arguments = False
        self.has_begun = False
        self.is_inner = False  # name and arguments stand in an object within


class _Pieces:
    """A sink that keeps a bounded text."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0

    def push(self, text: str) -> None:
        self._size += len(text)
        if self._size > MAX_HELD:
            raise Fault
        self._pieces.append(text)

    @property
    def text(self) -> str:
        return "".join(self._pieces)
