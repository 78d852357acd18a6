"""Bytes of tokens to text, one token at a time.

Owns the UTF-8 state of one sequence. Works on the bytes of each token alone, so a growing list of
ids is never decoded again and no text is ever found by comparing two texts.

- A character that spans tokens comes out whole, with the token that completes it.
- Bytes that can never become a character come out as U+FFFD.
- A character that is still unfinished at the end is dropped: no U+FFFD for a cut, in a stream or not.
- The start is seeded from the prompt: with the one to three bytes of a character that the prompt
  left unfinished (when the first new bytes go on with it), never with the prompt's text.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from octavo.api.text.codec import TextCodec

_Decoder = codecs.getincrementaldecoder("utf-8")
_TAIL_TOKENS = 4  # a character has at most 4 bytes, so at most 3 earlier tokens hold its start


class Detokeniser:
    """Text of one choice. `pending` are the bytes of a character not finished yet (at most three)."""

    def __init__(
        self, codec: TextCodec, prompt: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> None:
        self._codec = codec
        self._skip_special = skip_special_tokens
        self._decoder = _Decoder("replace")
        self._is_inside = False  # a character is unfinished
        self._prompt_tail = _unfinished_tail(codec, prompt)
        self._strip_space = codec.strip_first_space and not _has_text(codec, prompt)

    @property
    def pending(self) -> bytes:
        return self._decoder.getstate()[0]

    def is_visible(self, token_id: int) -> bool:
        return not (self._skip_special and self._codec.is_special(token_id))

    def push(self, token_id: int) -> str:
        """The text that this token adds: often one piece, sometimes nothing, sometimes the end of a character."""
        if not self.is_visible(token_id):
            return ""
        data = self._codec.token_bytes(token_id)
        if not data:
            return ""
        if self._prompt_tail or self._strip_space:
            data = self._at_start(data)
        if not self._is_inside:  # nearly always: the token is text by itself
            try:
                return data.decode()
            except UnicodeDecodeError:
                pass
        text = self._decoder.decode(data)
        self._is_inside = bool(self.pending)
        return text

    def peek(self, token_id: int) -> str:
        """What `push` would return for this token, special ones spelled out; changes nothing."""
        data = self._codec.token_bytes(token_id)
        if self._codec.is_special(token_id):
            return data.decode("utf-8", "replace")
        probe = _Decoder("replace")
        probe.setstate((self.pending, 0))
        if self._prompt_tail and _continues(data):
            data = self._prompt_tail + data
        return probe.decode(data)

    def _at_start(self, data: bytes) -> bytes:
        if self._prompt_tail:
            if _continues(data):
                data = self._prompt_tail + data
            self._prompt_tail = b""
        if self._strip_space:
            # SentencePiece writes a space before the first word of a text; decoding takes it away again.
            self._strip_space = False
            data = data.removeprefix(b" ")
        return data


def _continues(data: bytes) -> bool:
    return bool(data) and data[0] & 0xC0 == 0x80


def _has_text(codec: TextCodec, ids: Sequence[int]) -> bool:
    return any(not codec.is_special(i) and codec.token_bytes(i) for i in ids)


def _unfinished_tail(codec: TextCodec, ids: Sequence[int]) -> bytes:
    """The bytes of a character that `ids` begins and does not finish."""
    tail = b""
    for token_id in reversed(ids[-_TAIL_TOKENS:]):
        if codec.is_special(token_id):
            break
        tail = codec.token_bytes(token_id) + tail
        if len(tail) >= 4:
            break
    decoder = _Decoder("replace")
    decoder.decode(tail)
    return decoder.getstate()[0]


def decode_whole(codec: TextCodec, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
    """Text of a complete list, by the same rules as a stream of it."""
    detokeniser = Detokeniser(codec, skip_special_tokens=skip_special_tokens)
    return "".join(detokeniser.push(i) for i in ids)
