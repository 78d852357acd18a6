"""The bytes of a model's tokens, as grammars need them: read from its tokenizer, or sent to another process."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from octavo.grammar.base import Vocabulary


class Spelled(Protocol):
    """What is asked of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_ids(self) -> Collection[int]: ...

    def encode(self, text: str, add_special_tokens: bool, parse_special: bool = True) -> list[int]: ...

    def token_bytes(self, token_id: int, /) -> bytes: ...

    def is_special(self, token_id: int, /) -> bool: ...


class Packed(msgspec.Struct, array_like=True):
    """A vocabulary between processes. It has no `encode`: what only checks a grammar needs none."""

    tokens: list[bytes]
    special: list[int]
    eos_ids: list[int]


def of_tokenizer(tokenizer: Spelled, size: int) -> Vocabulary:
    """`size`: ids of the model, which may have more of them than its tokenizer has names for."""
    known = min(size, tokenizer.vocab_size)
    tokens = [tokenizer.token_bytes(i) for i in range(known)] + [b""] * (size - known)
    ends = frozenset(i for i in tokenizer.eos_ids if i < size)
    special = frozenset(i for i in range(known) if tokenizer.is_special(i)) | ends
    return Vocabulary(
        tokens,
        special,
        ends,
        lambda text: tokenizer.encode(text, add_special_tokens=False, parse_special=False),
    )


def pack(vocabulary: Vocabulary) -> bytes:
    packed = Packed(list(vocabulary.tokens), sorted(vocabulary.special), sorted(vocabulary.eos_ids))
    return msgspec.msgpack.encode(packed)


def unpack(data: bytes) -> Vocabulary:
    packed = msgspec.msgpack.decode(data, type=Packed)
    return Vocabulary(packed.tokens, frozenset(packed.special), frozenset(packed.eos_ids))
