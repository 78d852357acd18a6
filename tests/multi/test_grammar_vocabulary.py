"""The vocabulary that grammars see is the model's own, byte by byte, on real models."""

from __future__ import annotations

import pytest

from octavo.api.text.tokenizer import load_tokenizer
from octavo.grammar.backends import compile_spec
from octavo.grammar.llg import tokenizer_of
from octavo.grammar.vocabulary import of_tokenizer
from octavo.weights.load import open_model
from octavo.wire.sampling import StructuredSpec

TEXTS = ['{"name":"Ann","tags":["é","日本"]}', "a b  c\n\n\tx", "def f():\n    return 1", "😀 naïve", "12345"]


@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_token_bytes_are_the_tokenizers(model: str, request: pytest.FixtureRequest) -> None:
    tokenizer = load_tokenizer(open_model(request.getfixturevalue(model)))
    size = tokenizer.vocab_size + 5  # a model may have more ids than names
    vocabulary = of_tokenizer(tokenizer, size)
    theirs = tokenizer_of(vocabulary)
    assert theirs.vocab_size == size
    differing = [
        i
        for i in range(tokenizer.vocab_size)
        if tokenizer.token_bytes(i)
        and i not in vocabulary.special
        and 0xFF not in tokenizer.token_bytes(i)  # no byte of any text
        and theirs.decode_bytes([i]) != tokenizer.token_bytes(i)
    ]
    assert differing == []
    assert all(theirs.is_special_token(i) for i in (*vocabulary.special, size - 1))
    assert vocabulary.eos_ids == tokenizer.eos_ids


@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_texts_are_followed_and_spelled_exactly(model: str, request: pytest.FixtureRequest) -> None:
    tokenizer = load_tokenizer(open_model(request.getfixturevalue(model)))
    vocabulary = of_tokenizer(tokenizer, tokenizer.vocab_size)
    anything = compile_spec(StructuredSpec(kind="regex", text="(?s:.*)"), vocabulary)
    for text in TEXTS:
        ids = vocabulary.spell(text.encode())
        assert b"".join(tokenizer.token_bytes(i) for i in ids) == text.encode()
        matcher = anything.copy()
        assert matcher.advance(ids) == len(ids) and matcher.is_accepting
        only = compile_spec(StructuredSpec(kind="choice", text=f"[{_quoted(text)}]"), vocabulary)
        assert only.advance(ids) == len(ids) and only.is_terminated


def _quoted(text: str) -> str:
    import json

    return json.dumps(text)
