"""JSON inside of other text never gets a key twice: for grammars that hold schemas among free text and marks.

Owns a tracker for every object that may be open in the answer. Where an object begins is not told by the grammar, so
every `{` begins one, and what JSON cannot hold ends it. Whether the place is JSON at all is seen in the mask: free text
may go on with what JSON may not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from octavo.grammar.base import MAX_DEPTH, U32, Matcher, Vocabulary
from octavo.grammar.keys import Banning, decoded
from octavo.grammar.schema import has_open_objects

_PART = re.compile(r"%json\s+")
_SPACE = b" \t\n\r"
_OPEN, _CLOSE = b"[{", b"]}"
_BARE = frozenset(b"+-.0123456789eEtruefalsn:,[]{}" + _SPACE)  # outside of strings, in a value
_Step = Literal["begin", "comma", "key", "colon", "value", "string"]


def has_open_parts(grammar: str) -> bool:
    """Whether a Lark grammar holds a schema that allows keys which it does not name."""
    decoder = json.JSONDecoder()
    for match in _PART.finditer(grammar):
        try:
            schema, _ = decoder.raw_decode(grammar, match.end())
        except ValueError:
            return True  # in a text or a comment; to look on would take time that grows as the square
        if has_open_objects(schema):
            return True
    return False


@dataclass(frozen=True, slots=True)
class _Object:
    """One object that may be open. `depth` counts the brackets inside of its value."""

    step: _Step = "begin"
    keys: frozenset[str] = frozenset()
    text: bytes = b""  # of the key that is open, as it is spelled
    depth: int = 0
    is_escaped: bool = False
    is_repeated: bool = False

    def after(self, byte: int) -> _Object | None:
        """None: it is closed, or this was no JSON."""
        if self.step == "key":
            return self._in_key(byte)
        if self.step == "string":
            return self._in_string(byte)
        if self.step == "value":
            return self._in_value(byte)
        if byte in _SPACE:
            return self
        if self.step == "colon":
            return replace(self, step="value") if byte == 0x3A else None
        return replace(self, step="key", text=b"") if byte == 0x22 else None  # `}` closes it

    def _in_key(self, byte: int) -> _Object | None:
        if byte == 0x22 and not self.is_escaped:
            key = decoded(self.text)
            is_repeated = self.is_repeated or key in self.keys
            return replace(self, step="colon", keys=self.keys | {key}, is_repeated=is_repeated)
        if byte < 0x20:
            return None
        is_escaped = byte == 0x5C and not self.is_escaped
        return replace(self, text=self.text + bytes((byte,)), is_escaped=is_escaped)

    def _in_string(self, byte: int) -> _Object | None:
        if byte == 0x22 and not self.is_escaped:
            return replace(self, step="value")
        if byte < 0x20:
            return None
        is_escaped = byte == 0x5C and not self.is_escaped
        return self if is_escaped == self.is_escaped else replace(self, is_escaped=is_escaped)

    def _in_value(self, byte: int) -> _Object | None:
        if byte == 0x22:
            return replace(self, step="string")
        if byte not in _BARE:
            return None
        if byte in _OPEN:
            return replace(self, depth=self.depth + 1)
        if byte in _CLOSE:
            return replace(self, depth=self.depth - 1) if self.depth else None
        return replace(self, step="comma") if byte == 0x2C and not self.depth else self


_Objects = tuple[_Object, ...]


def _after(objects: _Objects, data: bytes) -> _Objects:
    for byte in data:
        moved = [one for held in objects if (one := held.after(byte)) is not None]
        if byte == 0x7B:
            moved.append(_Object())
        objects = tuple(moved[-MAX_DEPTH:])
    return objects


class UniqueKeysInParts(Banning):
    """For an answer in which JSON stands among other text."""

    __slots__ = ()

    def __init__(self, inner: Matcher, vocabulary: Vocabulary) -> None:
        super().__init__(inner, vocabulary)
        self._places: list[_Objects] = [()]

    def advance(self, token_ids: Sequence[int]) -> int:
        count = self.inner.advance(token_ids)
        for token in token_ids[:count]:
            # What was allowed as free text is a repeated key of no JSON: that tracker ends.
            objects = _after(self._places[-1], self._vocabulary.tokens[token])
            self._places.append(tuple(one for one in objects if not one.is_repeated))
        return count

    def ban(self, row: U32) -> None:
        for one in self._places[-1]:
            # No token closes that many brackets and then repeats a key: objects far outside cost nothing.
            if one.depth > self._quotes.most_closed:
                continue
            # In JSON no string goes on with a line, and nothing else with a Q.
            if not one.keys or self._allows(row, b"\n" if one.step in ("key", "string") else b"Q"):
                continue
            ends = partial(_repeats, one)
            if one.step == "key":
                self._ban_key(row, one.keys, one.text, ends)
            else:
                self._try(row, self._quotes.tricky if one.step == "string" else self._quotes.several, ends)

    def _allows(self, row: U32, text: bytes) -> bool:
        token = self._vocabulary.id_of(text)
        return token is not None and bool(row[token >> 5] >> np.uint32(token & 31) & np.uint32(1))


def _repeats(one: _Object, data: bytes) -> bool:
    return any(held.is_repeated for held in _after((one,), data))
