"""What a grammar backend is. Everything else of Octavo knows grammars only through these names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.wire.sampling import StructuredSpec

U32 = npt.NDArray[np.uint32]
#: Groups with a meaning of their own, and anchors: some packages would take them for something else.
UNCOMMON_PATTERN = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?(?!:)|\^(?<!\[\^)|\$|\\[bBAZz])")
MAX_DEPTH = 64  # of a schema, and of every JSON text that is part of a spec


class GrammarError(Exception):
    """A spec that cannot act, and why.

    `keyword` and `pointer` (RFC 6901) say where in a JSON Schema; both are empty for other kinds.
    """

    def __init__(self, message: str, *, keyword: str = "", pointer: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.keyword = keyword
        self.pointer = pointer


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Bytes of every token id of the model (b"" = adds nothing), and which of them are no text.

    `encode` is the model's own way to spell a text, used where only one text is possible; without it,
    or where it does not spell the bytes exactly, the longest token that fits is taken each time.
    """

    tokens: Sequence[bytes]
    special: frozenset[int]
    eos_ids: frozenset[int]
    encode: Callable[[str], list[int]] | None = None

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for i, data in enumerate(self.tokens):
            if data and i not in self.special:
                found.setdefault(data, i)
        return found

    @cached_property
    def _longest(self) -> int:
        return max((len(data) for data in self._ids), default=1)

    def spell(self, data: bytes) -> list[int]:
        """Ids whose bytes join to `data`; [] when no tokens spell it."""
        if self.encode is not None:
            try:
                ids = self.encode(data.decode())
            except UnicodeDecodeError:
                ids = []
            if ids and b"".join(self.tokens[i] for i in ids) == data and self.special.isdisjoint(ids):
                return ids
        return self._greedy(data)

    def id_of(self, data: bytes) -> int | None:
        """The token that is just these bytes, if there is one."""
        return self._ids.get(data)

    @property
    def num_words(self) -> int:
        """32-bit words of a mask over the vocabulary."""
        return -(-len(self.tokens) // 32)

    def _greedy(self, data: bytes) -> list[int]:
        ids, at, table = [], 0, self._ids
        while at < len(data):
            for size in range(min(self._longest, len(data) - at), 0, -1):
                if (i := table.get(data[at : at + size])) is not None:
                    ids.append(i)
                    at += size
                    break
            else:
                return []
        return ids


class Matcher(Protocol):
    """The state of one answer. A copy is cheap and independent; a matcher never raises for a bad token.

    Tokens that end an answer are not the matcher's: `is_accepting` says whether the text so far is
    complete, and the caller allows them then.
    """

    def copy(self) -> Matcher: ...

    def advance(self, token_ids: Sequence[int]) -> int:
        """Takes tokens up to the first that does not fit; how many were taken."""
        ...

    def rollback(self, count: int) -> bool:
        """Takes the last `count` tokens back. False where the grammar cannot."""
        ...

    def fill(self, row: U32) -> None:
        """Sets the bits of the tokens that may follow (`row` [ceil(vocab / 32)]), and no other."""
        ...

    @property
    def is_accepting(self) -> bool: ...

    @property
    def is_terminated(self) -> bool:
        """Complete, and nothing may follow."""
        ...

    @property
    def problem(self) -> str | None:
        """Why it cannot go on, if it cannot."""
        ...


@runtime_checkable
class Accepts(Matcher, Protocol):
    """A matcher that can be asked about one token without a mask."""

    def forced(self) -> int | None:
        """The token that is all of the mask, where the text to come is certain: its own spelling, and no other."""
        ...

    def accept(self, token_id: int) -> bool:
        """Takes the token exactly where `fill` would allow it, if none is forced."""
        ...


class Backend(Protocol):
    name: str
    kinds: frozenset[str]

    def compile(self, spec: StructuredSpec, vocabulary: Vocabulary) -> Matcher:
        """The matcher of an empty answer. Raises GrammarError."""
        ...


def digest(spec: StructuredSpec) -> bytes:
    """What a compiled grammar is filed under: equal specs, equal grammars."""
    return hashlib.sha256(msgspec.msgpack.encode(spec)).digest()
