"""The text of one choice as it comes, and the few ways in which parsers read it.

A parser is a generator: it yields when it needs more text and goes on when there is some, so it is
written as if all the text were there. Every read costs what it consumes, once: `work` counts it.

A control token that some marker names is one character of the surrogate range here. Text that was
decoded from UTF-8 never has such a character, so a control token is never taken for text, nor text
for a control token. Knows no format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
Sink = Callable[[str], None]

FIRST_CONTROL = 0xD800
CONTROL = re.compile("[\ud800-\udfff]")
_STRUCTURE = re.compile('["\\[\\]{}\ud800-\udfff]')
_IN_STRING = re.compile('["\\\\\ud800-\udfff]')
_SPACE = " \t\r\n"
_NO_SPACE = re.compile(r"[^ \t\r\n]")
_SCALAR_END = re.compile("[\\s,\\]}:;\ud800-\udfff]")
_PAIRS = {"}": "{", "]": "["}
MAX_DEPTH = 1_000


class Fault(Exception):
    """The text is not what the format says."""


def no_text(_: str) -> None:
    """A sink for text that nobody wants."""


def lenient(text: str) -> Any:
    """The value of a JSON text. Control characters in strings are taken as they are. Raises Fault."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        raise Fault from None


def decoded(text: str) -> str:
    """The value of a JSON string, as `lenient` reads it."""
    value = lenient(text)
    if not isinstance(value, str):
        raise Fault
    return value


class Markers:
    """Some literals, looked for together. Of those that start at one place the longest is found."""

    def __init__(self, literals: Sequence[str]) -> None:
        self.literals = tuple(dict.fromkeys(m for m in literals if m))
        ordered = sorted(self.literals, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        self._prefixes = {m[:n] for m in self.literals for n in range(1, len(m))}
        self._longest = max((len(m) for m in self.literals), default=0)

    def held(self, text: str, start: int) -> int:
        """Where the part of `text` begins that may be the start of a marker."""
        for size in range(min(self._longest - 1, len(text) - start), 0, -1):
            if text[len(text) - size :] in self._prefixes:
                return len(text) - size
        return len(text)


def bounded(limit: int) -> tuple[list[str], Callable[[str], None]]:
    """A list of pieces and what adds to it; faults when they have more than `limit` characters together."""
    pieces: list[str] = []
    size = 0

    def keep(text: str) -> None:
        nonlocal size
        size += len(text)
        if size > limit:
            raise Fault
        pieces.append(text)

    return pieces, keep


class Source:
    """`base + at` is the position in all the text. While `record` is a list, what is read is kept in it."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.base = 0
        self.is_closed = False
        self.record: list[str] | None = None
        self.work = 0

    @property
    def position(self) -> int:
        return self.base + self.at

    def feed(self, text: str) -> None:
        self.text = self.text[self.at :] + text
        self.base += self.at
        self.at = 0

    def recorded(self) -> str | None:
        """What was read since `record` was set; that ends here."""
        record, self.record = self.record, None
        return None if record is None else "".join(record)

    def take(self, size: int) -> str:
        """The next characters, which are there."""
        text = self.text[self.at : self.at + size]
        self.at += len(text)
        self.work += len(text)
        if self.record is not None:
            self.record.append(text)
        return text

    def unread(self, size: int) -> None:
        """Gives back what the last `take` read."""
        self.at -= size
        if self.record is not None:
            self.record[-1] = self.record[-1][:-size]

    def give_back(self, text: str) -> None:
        """Gives back what was read last, whenever that was."""
        self.base = self.position - len(text)
        self.text = text + self.text[self.at :]
        self.at = 0

    def peek(self, size: int) -> Steps[str]:
        """The next characters without reading them; fewer only at the end."""
        while len(self.text) - self.at < size and not self.is_closed:
            yield
        self.work += size
        return self.text[self.at : self.at + size]

    def until(self, markers: Markers, sink: Sink) -> Steps[str | None]:
        """Text before the first marker to the sink; reads the marker and returns it. None at the end."""
        while True:
            found = markers.pattern.search(self.text, self.at)
            safe = len(self.text) if self.is_closed else markers.held(self.text, self.at)
            # A marker that began before the one found, or goes on behind it, may still come.
            if found is not None and (found.start() < safe or self.is_closed):
                if found.start() > self.at:
                    sink(self.take(found.start() - self.at))
                return self.take(found.end() - found.start())
            self.work += len(self.text) - safe
            if safe > self.at:
                sink(self.take(safe - self.at))
            if self.is_closed:
                return None
            yield

    def space(self) -> Steps[str]:
        """Reads white space; returns the character behind it, unread, or '' at the end."""
        while True:
            found = _NO_SPACE.search(self.text, self.at)
            if found is not None:
                self.take(found.start() - self.at)
                return found.group()
            self.take(len(self.text) - self.at)
            if self.is_closed:
                return ""
            yield

    def has(self, literal: str) -> Steps[bool]:
        """Reads `literal` if it comes next."""
        for i in range(1, len(literal) + 1):
            piece = yield from self.peek(i)
            if piece != literal[:i]:
                return False
        self.take(len(literal))
        return True

    def has_any(self, literals: Sequence[str]) -> Steps[str | None]:
        for literal in literals:
            if (yield from self.has(literal)):
                return literal
        return None

    def expect(self, literal: str) -> Steps[None]:
        if not (yield from self.has(literal)):
            raise Fault

    def short(self, markers: Markers, limit: int) -> Steps[tuple[str, str]]:
        """(text, marker) of a text of at most `limit` characters: a name, a key. Faults when it is longer."""
        pieces, keep = bounded(limit)
        marker = yield from self.until(markers, keep)
        if marker is None:
            raise Fault
        return "".join(pieces), marker

    def string(self, limit: int) -> Steps[str]:
        """A JSON string, decoded. Faults when it is longer than `limit` or not a string."""
        pieces, keep = bounded(limit)
        yield from self.expect('"')
        yield from self._rest_of_string(keep)
        return decoded('"' + "".join(pieces))

    def listed(self, closer: str, item: Callable[[str, int], Steps[None]]) -> Steps[int]:
        """Items with commas between them, up to `closer`, which is read; a comma too many does not matter.

        `item` reads one; it gets its first character, unread, and how many came before. Returns how many there are.
        """
        num = 0
        while True:
            char = yield from self.space()
            if char == closer:
                self.take(1)
                return num
            if char == "," and num:
                self.take(1)
                continue
            yield from item(char, num)
            num += 1

    # ---- JSON -----------------------------------------------------------------------------------

    def json(self, sink: Sink) -> Steps[None]:
        """One JSON value, byte for byte, to the sink as it comes. Faults where its brackets do not match.

        What stands between brackets and strings is not looked at: that is for whoever parses it.
        """
        first = yield from self.peek(1)
        if first == '"':
            sink(self.take(1))
            yield from self._rest_of_string(sink)
        elif first and first in "{[":
            yield from self._nested(sink)
        elif first and (first.isalnum() or first == "-"):
            yield from self._scalar(sink)
        else:
            raise Fault

    def _nested(self, sink: Sink) -> Steps[None]:
        stack: list[str] = []
        while True:
            found = _STRUCTURE.search(self.text, self.at)
            end = len(self.text) if found is None else found.start()
            if end > self.at:
                sink(self.take(end - self.at))
            if found is None:
                if self.is_closed:
                    raise Fault
                yield
                continue
            char = found.group()
            if char in "{[":
                stack.append(char)
            elif (char in _PAIRS and (not stack or stack.pop() != _PAIRS[char])) or char >= "\ud800":
                raise Fault
            if len(stack) > MAX_DEPTH:
                raise Fault
            sink(self.take(1))
            if char == '"':
                yield from self._rest_of_string(sink)
            elif not stack:
                return

    def _rest_of_string(self, sink: Sink) -> Steps[None]:
        while True:
            found = _IN_STRING.search(self.text, self.at)
            end = len(self.text) if found is None else found.start()
            if end > self.at:
                sink(self.take(end - self.at))
            if found is None:
                if self.is_closed:
                    raise Fault
                yield
            elif found.group() == '"':
                sink(self.take(1))
                return
            elif found.group() == "\\":
                pair = yield from self.peek(2)
                if len(pair) < 2 or (pair[1] >= "\ud800" and pair[1] <= "\udfff"):
                    raise Fault
                sink(self.take(2))
            else:
                raise Fault

    def _scalar(self, sink: Sink) -> Steps[None]:
        size = 0
        while True:
            found = _SCALAR_END.search(self.text, self.at)
            end = len(self.text) if found is None else found.start()
            size += end - self.at
            if size > 512:  # no number or word is that long
                raise Fault
            if end > self.at:
                sink(self.take(end - self.at))
            if found is not None or self.is_closed:
                return
            yield
