"""Literals written as Python's, as JSON text. Read as text, never evaluated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from octavo.api.text.parsers.source import MAX_DEPTH, Fault, Markers, Source, Steps

_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_NUMBER = re.compile(r"[-+]?(?:[0-9][0-9_]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
_HEX = {"x": 2, "u": 4, "U": 8}
CALL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
MAX_WORD = 256  # characters of a name
_DEEP = 200
Item = Callable[[str, int], Steps[None]]


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class Transcriber:
    """Python literals of a Source to JSON text, appended to `out`."""

    def __init__(self, source: Source, out: list[str]) -> None:
        self._source = source
        self._out = out
        self._depth = 0
        self._keywords: set[str] = set()

    def value(self) -> Steps[None]:
        source = self._source
        char = yield from source.space()
        if char in ("'", '"'):
            text = yield from self._string()
            self._out.append(quoted(text))
        elif char in ("[", "("):
            yield from self._inside(char, "]" if char == "[" else ")", ("[", "]"), self._element)
        elif char == "{":
            yield from self._mapping()
        else:
            self._out.append((yield from self._word()))

    def call(self) -> Steps[tuple[str, str]]:
        """(name, arguments as a JSON object) of a call with keywords: `f(a=1, b='x')`."""
        source = self._source
        name, _ = yield from source.short(Markers(("(",)), MAX_WORD)
        if not CALL_NAME.fullmatch(name := name.strip()):
            raise Fault
        self._out.append("{")
        self._keywords = set()
        yield from source.listed(")", self._keyword)
        self._out.append("}")
        arguments = "".join(self._out)
        self._out.clear()
        return name, arguments

    def _keyword(self, _: str, num: int) -> Steps[None]:
        key, _ = yield from self._source.short(Markers(("=",)), MAX_WORD)
        if not CALL_NAME.fullmatch(key := key.strip()) or key in self._keywords:  # to Python, both are errors
            raise Fault
        self._keywords.add(key)
        self._out.append(f"{', ' if num else ''}{quoted(key)}: ")
        yield from self._source.space()
        yield from self.value()

    def _inside(self, opening: str, closing: str, marks: tuple[str, str], item: Item) -> Steps[None]:
        """What stands between two brackets of the text, between two of JSON's."""
        self._depth += 1
        if self._depth > min(_DEEP, MAX_DEPTH):
            raise Fault
        yield from self._source.expect(opening)
        self._out.append(marks[0])
        yield from self._source.listed(closing, item)
        self._out.append(marks[1])
        self._depth -= 1

    def _element(self, _: str, num: int) -> Steps[None]:
        if num:
            self._out.append(", ")
        yield from self.value()

    def _mapping(self) -> Steps[None]:
        """Of a key that is said twice the last value counts, as in Python."""
        outer, held = self._out, dict[str, str]()

        def pair(char: str, _: int) -> Steps[None]:
            if char not in ("'", '"'):
                raise Fault
            key = yield from self._string()
            yield from self._source.space()
            yield from self._source.expect(":")
            self._out = []
            yield from self.value()
            held[quoted(key)] = "".join(self._out)

        yield from self._inside("{", "}", ("", ""), pair)
        self._out = outer
        outer.append("{" + ", ".join(f"{key}: {value}" for key, value in held.items()) + "}")

    def _word(self) -> Steps[str]:
        source, size = self._source, 1
        while True:
            text = yield from source.peek(size)
            if len(text) < size or text[-1] in ",)]}= \t\r\n:" or not text[-1].isprintable():
                word = text if len(text) < size else text[:-1]
                break
            size += 1
            if size > 64:
                raise Fault
        source.take(len(word))
        if word in _WORDS:
            return _WORDS[word]
        if not _NUMBER.fullmatch(word):
            raise Fault
        return _number(word)

    def _string(self) -> Steps[str]:
        """The value of a string in either quote; triple quotes too."""
        source = self._source
        pieces: list[str] = []
        quote = source.take(1)
        if (yield from source.has(quote + quote)):
            quote *= 3
        markers = Markers((quote, "\\"))
        while True:
            found = yield from source.until(markers, pieces.append)
            if found is None:
                raise Fault
            if found == quote:
                break
            pieces.append((yield from self._escape()))
            if "\ud800" <= pieces[-1] <= "\udbff":  # half of a pair: the other half may follow
                if (yield from source.has("\\u")):
                    low = yield from self._hex(4)
                    pieces[-1] = _pair(pieces[-1], low)
                else:
                    pieces[-1] = "\ufffd"
        return "".join(pieces)

    def _escape(self) -> Steps[str]:
        char = yield from self._source.peek(1)
        if not char:
            raise Fault
        self._source.take(1)
        if char in _HEX:
            return (yield from self._hex(_HEX[char]))
        if char in _ESCAPES:
            return _ESCAPES[char]
        return char if char in "'\"\\" else "\\" + char

    def _hex(self, size: int) -> Steps[str]:
        text = yield from self._source.peek(size)
        if len(text) < size or not re.fullmatch("[0-9a-fA-F]+", text):
            raise Fault
        self._source.take(size)
        code = int(text, 16)
        if code > 0x10FFFF:
            raise Fault
        return "\ufffd" if 0xDC00 <= code <= 0xDFFF and size != 4 else chr(code)


def _pair(high: str, low: str) -> str:
    try:
        return (high + low).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        return "\ufffd"


def _number(word: str) -> str:
    """A Python number as JSON writes it, digits unchanged where they can be."""
    word = word.replace("_", "").removeprefix("+")
    if word.endswith("."):
        word += "0"
    word = word.replace(".e", ".0e").replace(".E", ".0E")
    if not _JSON_NUMBER.fullmatch(word):
        sign, digits = ("-", word[1:]) if word.startswith("-") else ("", word)
        word = sign + (digits.lstrip("0") or "0")
        if word.lstrip("-").startswith((".", "e", "E")):
            word = word.replace("-", "-0", 1) if word.startswith("-") else "0" + word
    if not _JSON_NUMBER.fullmatch(word):
        raise Fault
    return word


def transcribed(text: str) -> str | None:
    """A whole text of Python literals as JSON; None when it is none, or holds more."""
    source = Source()
    out: list[str] = []
    source.feed(text)
    source.is_closed = True
    steps = Transcriber(source, out).value()
    try:
        for _ in steps:
            return None
    except (Fault, RecursionError):
        return None
    rest = source.text[source.at :].strip()
    found = "".join(out)
    try:
        json.loads(found)
    except (ValueError, RecursionError):
        return None
    return found if not rest else None
