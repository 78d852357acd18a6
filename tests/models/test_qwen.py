"""The two Qwen models (`./run test --large`): float32 against transformers, and every weight format's answers."""

from __future__ import annotations

import pytest
from tests.models.harness import Setup, open_runner
from tests.models.test_real import compare

from octavo.api.text.tokenizer import load_tokenizer
from octavo.weights.load import open_model

PROMPTS = {"def add(a, b):\n    return a +": " b", "中国的首都是": "北京"}


@pytest.mark.large
def test_the_small_one_against_transformers(executor: str, qwen_small_path: str) -> None:
    tokenizer = load_tokenizer(open_model(qwen_small_path))
    tokens = tokenizer.encode("".join(a + b + "\n" for a, b in PROMPTS.items()), add_special_tokens=True)
    compare(executor, qwen_small_path, tokens, (7, 1, 5), Setup(block_size=16))


@pytest.mark.large
@pytest.mark.parametrize("weights", ["file", "w8", "bf16"])
@pytest.mark.parametrize("size", ["small", "large"])
def test_answers(size: str, weights: str, qwen_small_path: str, qwen_large_path: str) -> None:
    path = qwen_small_path if size == "small" else qwen_large_path
    tokenizer = load_tokenizer(open_model(path))
    runner = open_runner("native", path, Setup(block_size=16, kv_dtype="bf16", weights=weights))
    for prompt, answer in PROMPTS.items():
        tokens = tokenizer.encode(prompt, add_special_tokens=True)
        (logits,) = runner.sequences([tokens], keep=1)
        assert int(logits[0].argmax()) == tokenizer.encode(answer, add_special_tokens=False)[0]
