"""A tokenizer small enough to see through: every byte is a token, some words are, three are special."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WORDS = [
    "Hello",
    " world",
    "ABC",
    " DE",
    "FG",
    "HIJ",
    " KLM",
    " the",
    "ing",
    "中",
    "文",
    "😀"[:1],
    "\n\n",
    " ok",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 0, 1, 2 as in SmolLM2
BYTE_0 = 16


class ToyCodec:
    """ids 0..2 special, 3..15 reserved (empty) or `special`, 16..271 bytes, then words. Implements TextCodec."""

    bos_id: int | None = 1
    add_bos = False
    strip_first_space = False

    def __init__(
        self,
        *,
        add_bos: bool = False,
        strip_first_space: bool = False,
        words: bool = True,
        special: Sequence[str] = (),
        added: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.metadata: Mapping[str, Any] = metadata or {}
        self._special = [*SPECIAL, *special]
        assert len(self._special) <= BYTE_0
        self.add_bos = add_bos
        self.strip_first_space = strip_first_space
        self.eos_ids: list[int] = [2]
        self._bytes = [s.encode() for s in self._special] + [b""] * (BYTE_0 - len(self._special))
        self._bytes += [bytes([b]) for b in range(256)]
        if words:
            self._bytes += [w.encode() for w in WORDS]
            self._bytes += ["😀".encode()[:2], "👩‍🚀".encode()[:5]]  # tokens that end inside a character
        self._bytes += [a.encode() for a in added]  # whole words of a format, as Qwen has <think>
        self._ids = {data: i for i, data in enumerate(self._bytes) if data and i >= BYTE_0}
        self._longest = max(len(b) for b in self._bytes)

    @property
    def vocab_size(self) -> int:
        return len(self._bytes)

    def encode(self, text: str, add_special_tokens: bool, parse_special: bool = True) -> list[int]:
        ids = [self.bos_id] if add_special_tokens and self.add_bos and self.bos_id is not None else []
        data = text.encode("utf-8", "surrogatepass")
        at = 0
        while at < len(data):
            if parse_special:
                special = next(
                    (i for i, s in enumerate(self._special) if data.startswith(s.encode(), at)), None
                )
                if special is not None:
                    ids.append(special)
                    at += len(self._special[special].encode())
                    continue
            for size in range(self._longest, 0, -1):
                token = self._ids.get(data[at : at + size])
                if token is not None and len(data[at : at + size]) == size:
                    ids.append(token)
                    at += size
                    break
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        kept = [i for i in ids if not (skip_special_tokens and self.is_special(i))]
        return b"".join(self._bytes[i] for i in kept).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        return token_id < len(self._special)
