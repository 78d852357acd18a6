"""What the API asks of a tokenizer. `api.text.tokenizer` has the real one; tests bring a toy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol


class TextCodec(Protocol):
    """Text to ids, ids to bytes. `token_bytes` is the truth; `decode` is for whole lists only."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_ids(self) -> Collection[int]: ...

    @property
    def add_bos(self) -> bool: ...

    @property
    def strip_first_space(self) -> bool: ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...

    def encode(self, text: str, add_special_tokens: bool, parse_special: bool = True) -> list[int]: ...

    def token_bytes(self, token_id: int, /) -> bytes: ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str: ...

    def is_special(self, token_id: int, /) -> bool: ...

    def __hash__(self) -> int: ...  # by identity: what was found for one codec is kept
