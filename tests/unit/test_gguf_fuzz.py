"""Damaged and forged model files: WeightError or success, never anything else, and never much memory."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit import gguf_files as make

from octavo.api.text.tokenizer import load_tokenizer
from octavo.errors import WeightError
from octavo.weights.load import check_tensors, open_model
from octavo.weights.safetensors import read_safetensors

HOSTILE = [
    0,
    1,
    3,
    7,
    0x7F,
    0xFF,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 33,
    1 << 62,
    (1 << 63) - 1,
    (1 << 64) - 1,
]


def whole_gguf() -> bytes:
    """A small model with a tokenizer: every path of the loader is on it."""
    metadata = make.llama_metadata()
    words = ["<s>", "</s>", "<unk>", "a", "b", "ab", "Ġ", "Ġa"]
    metadata["general.alignment"] = (make.U32, 32)
    metadata["tokenizer.ggml.model"] = (make.STRING, "gpt2")
    metadata["tokenizer.ggml.pre"] = (make.STRING, "qwen2")
    metadata["tokenizer.ggml.tokens"] = (make.ARRAY, (make.STRING, words))
    metadata["tokenizer.ggml.token_type"] = (make.ARRAY, (make.I32, [3, 3, 2, 1, 1, 1, 1, 1]))
    metadata["tokenizer.ggml.merges"] = (make.ARRAY, (make.STRING, ["a b", "Ġ a"]))
    metadata["tokenizer.ggml.eos_token_id"] = (make.U32, 1)
    metadata["nested"] = (make.ARRAY, (make.ARRAY, [(make.I32, [1, 2]), (make.STRING, ["x"])]))
    ones = np.ones((8, 64), np.float32)
    tensors = {
        "token_embd.weight": ones,
        "rope_freqs.weight": np.ones(8, np.float32),
        "blk.0.attn_q.weight": ones,
    }
    return make.with_tensors(metadata, tensors)


def whole_sentencepiece() -> bytes:
    """The same with the other tokenizer, another architecture and a rotary scaling."""
    metadata = make.llama_metadata("gemma3")
    pieces = ["<unk>", "<s>", "</s>", "▁▁", "▁a", "ab", "abc", "bc", "▁", "a", "b", "c"]
    metadata["tokenizer.ggml.model"] = (make.STRING, "llama")
    metadata["tokenizer.ggml.tokens"] = (make.ARRAY, (make.STRING, pieces))
    metadata["tokenizer.ggml.scores"] = (make.ARRAY, (make.F32, [-float(id) for id in range(len(pieces))]))
    metadata["tokenizer.ggml.token_type"] = (make.ARRAY, (make.I32, [2, 3, 3, 4] + [1] * 8))
    metadata["tokenizer.ggml.unknown_token_id"] = (make.U32, 0)
    metadata["gemma3.rope.scaling.type"] = (make.STRING, "yarn")
    metadata["gemma3.rope.scaling.factor"] = (12, 2.0)
    return make.with_tensors(metadata, {"token_embd.weight": np.ones((12, 64), np.float32)})


def whole_safetensors() -> bytes:
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    }
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + b"\0" * 32


def use_gguf(path: str) -> None:
    source = open_model(path)
    for name in source.tensors:
        source.read(name)
    tokenizer = load_tokenizer(source)
    tokenizer.decode(tokenizer.encode("ab a", True), False)
    check_tensors(source, {"model.embed_tokens.weight": (8, 64)})


def use_safetensors(path: str) -> None:
    read_safetensors(path)


def survives(use: Callable[[str], None], path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        use(str(path))
    except WeightError as error:
        assert str(error)


KINDS: dict[str, tuple[bytes, Callable[[str], None]]] = {
    "gguf": (whole_gguf(), use_gguf),
    "sentencepiece": (whole_sentencepiece(), use_gguf),
    "safetensors": (whole_safetensors(), use_safetensors),
}


def header_bytes(data: bytes) -> int:
    return min(len(data), 1400)


def test_the_originals_are_sound(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(KINDS["gguf"][0])
    source = open_model(str(path))
    assert load_tokenizer(source).encode("ab a", False) == [5, 7]
    path.write_bytes(KINDS["sentencepiece"][0])
    assert load_tokenizer(open_model(str(path))).encode("bc", False) == [8, 7]
    path.write_bytes(KINDS["safetensors"][0])
    use_safetensors(str(path))


@pytest.mark.parametrize("kind", KINDS)
def test_every_truncation(tmp_path: Path, kind: str) -> None:
    data, use = KINDS[kind]
    for length in [*range(0, header_bytes(data), 3), len(data) - 1]:
        survives(use, tmp_path / f"x.{kind}", data[:length])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_bit_flips(tmp_path: Path, kind: str, seed: int) -> None:
    data, use = KINDS[kind]
    rng = random.Random(seed)
    for _ in range(150):
        broken = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 8])):
            broken[rng.randrange(header_bytes(data))] ^= 1 << rng.randrange(8)
        survives(use, tmp_path / f"x.{kind}", bytes(broken))


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_numbers_everywhere(tmp_path: Path, kind: str) -> None:
    data, use = KINDS[kind]
    rng = random.Random(7)
    for at in range(4, header_bytes(data) - 8, 4):
        broken = bytearray(data)
        number = rng.choice(HOSTILE)
        width = rng.choice([4, 8])
        broken[at : at + width] = (number % (1 << (8 * width))).to_bytes(width, "little")
        survives(use, tmp_path / f"x.{kind}", bytes(broken))


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_noise_after_the_magic(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.gguf"
    survives(use_gguf, path, b"GGUF\3\0\0\0" + noise)
    survives(use_safetensors, path, len(noise).to_bytes(8, "little") + noise)


def test_huge_claims_take_no_memory(tmp_path: Path) -> None:
    data, use = KINDS["gguf"]
    tracemalloc.start()
    try:
        for at in range(8, 600, 8):
            broken = bytearray(data)
            broken[at : at + 8] = (1 << 33).to_bytes(8, "little")
            survives(use, tmp_path / "x.gguf", bytes(broken))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
