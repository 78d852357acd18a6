"""Bytes of tokens to text: whole characters, none lost, none invented."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.toy_codec import BYTE_0, ToyCodec

from octavo.api.text.detokenise import Detokeniser, decode_whole

CODEC = ToyCodec()


def byte_ids(data: bytes) -> list[int]:
    return [BYTE_0 + b for b in data]


@given(st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back_without_replacement_characters(text: str) -> None:
    """BB-012, P023."""
    text = text.encode("utf-8", "ignore").decode()
    detokeniser = Detokeniser(CODEC)
    pieces = [detokeniser.push(i) for i in byte_ids(text.encode())]
    assert "".join(pieces) == text
    assert all("\ufffd" not in p for p in pieces) or "\ufffd" in text


@given(st.binary(max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_bytes_equal_python_decoding_except_for_the_cut_tail(data: bytes) -> None:
    text = decode_whole(CODEC, byte_ids(data))
    whole = data.decode("utf-8", "replace")
    assert whole == text or (whole.startswith(text) and set(whole[len(text) :]) == {"\ufffd"})


def test_unfinished_character_at_the_end_is_dropped() -> None:
    assert decode_whole(CODEC, byte_ids("a😀".encode()[:-1])) == "a"


def test_invalid_bytes_in_the_middle_become_replacement_characters() -> None:
    assert decode_whole(CODEC, byte_ids(b"a\xf0\x9fb")) == "a\ufffdb"


def test_prompt_that_ends_inside_a_character_is_not_repeated() -> None:
    """P024: only the character that the new tokens complete, nothing of the prompt's text."""
    smile = "😀".encode()
    prompt = CODEC.encode("a long prompt ", False) + byte_ids(smile[:2])
    detokeniser = Detokeniser(CODEC, prompt)
    assert [detokeniser.push(i) for i in byte_ids(smile[2:] + b"!")] == ["", "😀", "!"]
    detokeniser = Detokeniser(CODEC, prompt)
    assert detokeniser.push(BYTE_0 + ord("x")) == "x"


def test_special_tokens_are_skipped_or_spelled() -> None:
    ids = CODEC.encode("a<|im_end|>b", False)
    assert decode_whole(CODEC, ids) == "ab"
    assert decode_whole(CODEC, ids, skip_special_tokens=False) == "a<|im_end|>b"


def test_first_space_is_taken_only_when_no_text_stands_before() -> None:
    codec = ToyCodec(strip_first_space=True)
    ids = codec.encode(" ok ok", False)
    assert decode_whole(codec, ids) == "ok ok"
    after_text = Detokeniser(codec, codec.encode("Hello", False))
    assert "".join(after_text.push(i) for i in ids) == " ok ok"
    after_bos = Detokeniser(codec, [1])
    assert "".join(after_bos.push(i) for i in ids) == "ok ok"


def test_peek_says_what_push_would_say_and_changes_nothing() -> None:
    detokeniser = Detokeniser(CODEC)
    for i in byte_ids("é中😀".encode()):
        before = detokeniser.pending
        seen = detokeniser.peek(i)
        assert detokeniser.pending == before
        assert detokeniser.push(i) == seen
    assert detokeniser.peek(2) == "<|im_end|>"
