"""A JSON object never gets a key twice: what backends do not enforce for keys that the schema does not name.

Owns a small automaton over the bytes of the answer (is this a key, of which object, which keys has it)
and the ban on tokens that would complete a key again. Knows no schema.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from octavo.grammar.base import U32, Matcher, Vocabulary

_QUOTE, _BACKSLASH, _COMMA = 0x22, 0x5C, 0x2C
_OPEN, _CLOSE = {0x7B: True, 0x5B: False}, (0x7D, 0x5D)  # { and [: is it an object; } and ]
_Keys = frozenset[str]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the answer stands. `frames`: keys of every open object, None for an array."""

    frames: tuple[_Keys | None, ...] = ()
    expects_key: bool = False  # the next string is a key
    text: bytes | None = None  # of the string that is open, as it is spelled
    is_key: bool = False  # of that string
    is_escaped: bool = False
    is_repeated: bool = False  # a key was completed that was there already

    @property
    def keys(self) -> _Keys:
        return (self.frames[-1] if self.frames else None) or frozenset()

    def after(self, data: bytes) -> _Place:
        place = self
        for byte in data:
            place = place._inside(byte) if place.text is not None else place._outside(byte)
        return place

    def _inside(self, byte: int) -> _Place:
        assert self.text is not None
        if self.is_escaped:
            return replace(self, text=self.text + bytes((byte,)), is_escaped=False)
        if byte == _BACKSLASH:
            return replace(self, text=self.text + b"\\", is_escaped=True)
        if byte != _QUOTE:
            return replace(self, text=self.text + bytes((byte,)))
        if not self.is_key:
            return replace(self, text=None)
        key, keys = decoded(self.text), self.keys
        return replace(
            self,
            frames=(*self.frames[:-1], keys | {key}),
            text=None,
            is_key=False,
            is_repeated=self.is_repeated or key in keys,
        )

    def _outside(self, byte: int) -> _Place:
        if byte == _QUOTE:
            return replace(self, text=b"", is_key=self.expects_key, expects_key=False)
        if byte in _OPEN:
            is_object = _OPEN[byte]
            frame: _Keys | None = frozenset() if is_object else None
            return replace(self, frames=(*self.frames, frame), expects_key=is_object)
        if byte in _CLOSE:
            return replace(self, frames=self.frames[:-1], expects_key=False)
        if byte == _COMMA:
            return replace(self, expects_key=bool(self.frames) and self.frames[-1] is not None)
        return self


def decoded(spelled: bytes) -> str:
    """A JSON string as it is spelled, without its marks -> its text."""
    if _BACKSLASH in spelled:
        try:
            return str(json.loads(b'"' + spelled + b'"'))
        except ValueError:
            pass
    return spelled.decode("utf-8", "replace")


class _Quotes:
    """Tokens of a vocabulary that have quotation marks, by what can matter about them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        counts = {
            i: data.count(b'"')
            for i, data in enumerate(vocabulary.tokens)
            if b'"' in data and i not in vocabulary.special
        }
        self.all = _array(counts)
        self.several = _array(i for i, n in counts.items() if n >= 2)
        self.tricky = _array(
            i for i, n in counts.items() if n >= 3 or b"\\" in vocabulary.tokens[i].partition(b'"')[0]
        )
        #: How many brackets one of them can close at most.
        self.most_closed = max(
            (sum(map(vocabulary.tokens[i].count, (b"]", b"}"))) for i in counts), default=0
        )
        self.by_head: dict[bytes, list[int]] = {}  # bytes before the quote -> tokens
        for i in counts:
            self.by_head.setdefault(vocabulary.tokens[i].partition(b'"')[0], []).append(i)


def _array(ids: object) -> npt.NDArray[np.int64]:
    return np.fromiter(ids, np.int64)  # type: ignore[call-overload, no-any-return]


_quotes: WeakKeyDictionary[Vocabulary, _Quotes] = WeakKeyDictionary()


def _quotes_of(vocabulary: Vocabulary) -> _Quotes:
    made = _quotes.get(vocabulary)
    if made is None:
        made = _quotes[vocabulary] = _Quotes(vocabulary)
    return made


class Banning(ABC):
    """A matcher that bans some of what `inner` allows, by what the answer was so far. `inner` does all the rest.

    `_places` has the state behind every token, so that tokens can be taken back.
    """

    __slots__ = ("_places", "_quotes", "_vocabulary", "inner")

    def __init__(self, inner: Matcher, vocabulary: Vocabulary) -> None:
        self.inner = inner
        self._vocabulary = vocabulary
        self._quotes = _quotes_of(vocabulary)
        self._places: list[Any] = []

    @abstractmethod
    def ban(self, row: U32) -> None:
        """Clears the tokens that would repeat a key of an object that is open."""

    @abstractmethod
    def advance(self, token_ids: Sequence[int]) -> int: ...

    def copy(self) -> Self:
        made = type(self)(self.inner.copy(), self._vocabulary)
        made._places = self._places[:]
        return made

    def rollback(self, count: int) -> bool:
        if not self.inner.rollback(count):
            return False
        del self._places[len(self._places) - count :]
        return True

    def fill(self, row: U32) -> None:
        self.inner.fill(row)
        self.ban(row)

    def _ban_key(self, row: U32, keys: _Keys, text: bytes, ends: Callable[[bytes], bool]) -> None:
        """Of a key that is open and spelled `text` so far. `ends`: whether bytes repeat a key of the object."""
        quotes = self._quotes
        if b"\\" in text or any("\\" in key for key in keys):
            self._try(row, quotes.all, ends)
            return
        for key in keys:
            spelled = key.encode("utf-8", "replace")
            if spelled.startswith(text):
                for token in quotes.by_head.get(spelled[len(text) :], ()):
                    _clear(row, token)
        self._try(row, quotes.tricky, ends)

    def _try(self, row: U32, ids: npt.NDArray[np.int64], ends: Callable[[bytes], bool]) -> None:
        words = row[ids >> 5] >> (ids & 31).astype(np.uint32)
        for token in ids[(words & 1).astype(bool)].tolist():
            if ends(self._vocabulary.tokens[token]):
                _clear(row, token)

    @property
    def is_accepting(self) -> bool:
        return self.inner.is_accepting

    @property
    def is_terminated(self) -> bool:
        return self.inner.is_terminated

    @property
    def problem(self) -> str | None:
        return self.inner.problem


class UniqueKeys(Banning):
    """For an answer that is JSON and nothing else."""

    __slots__ = ()

    def __init__(self, inner: Matcher, vocabulary: Vocabulary) -> None:
        super().__init__(inner, vocabulary)
        self._places: list[_Place] = [_Place()]

    def advance(self, token_ids: Sequence[int]) -> int:
        count = self.inner.advance(token_ids)
        for taken, token in enumerate(token_ids[:count]):
            place = self._places[-1].after(self._vocabulary.tokens[token])
            if place.is_repeated:
                return taken
            self._places.append(place)
        return count

    def ban(self, row: U32) -> None:
        place = self._places[-1]
        if not place.keys:
            return

        def ends(data: bytes) -> bool:
            return place.after(data).is_repeated

        if place.text is not None and place.is_key:
            self._ban_key(row, place.keys, place.text, ends)
        else:
            self._try(row, self._quotes.several if place.text is None else self._quotes.tricky, ends)


def _clear(row: U32, token: int) -> None:
    """Bans a token."""
    row[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
