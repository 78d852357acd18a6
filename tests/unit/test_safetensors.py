"""The safetensors container, sharded models, and model directories."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from octavo.errors import WeightError
from octavo.weights.load import check_tensors, open_model, remap
from octavo.weights.safetensors import read_safetensors, read_sharded


def write(path: Path, header: Any, data: bytes = b"") -> str:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return str(path)


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_against_the_reference_writer(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.ones((4,), np.float16),
        "c": np.int64([[1]]),
    }
    safetensors.numpy.save_file(arrays, path, metadata={"format": "pt"})
    tensors = read_safetensors(str(path))
    assert {name: (info.type, info.shape) for name, info in tensors.items()} == {
        "a": ("F32", (2, 3)),
        "b": ("F16", (4,)),
        "c": ("I64", (1, 1)),
    }
    data = path.read_bytes()
    for name, info in tensors.items():
        assert data[info.offset : info.offset + info.nbytes] == arrays[name].tobytes()


@pytest.mark.parametrize(
    ("header", "data", "why"),
    [
        ({"a": entry("F32", [2], 0, 8)}, b"1234567", "ends at byte"),
        ({"a": entry("F32", [2], 0, 8)}, b"123456789", "its tensors end at"),
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 2, 6)}, b"1" * 6, "overlaps"),
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, b"1" * 12, "leaves a hole"),
        ({"a": entry("F32", [3], 0, 8)}, b"1" * 8, "does not take the 8 bytes"),
        ({"a": entry("F99", [2], 0, 8)}, b"1" * 8, "unknown dtype 'F99'"),
        ({"a": entry("F32", [-2], 0, 8)}, b"1" * 8, "impossible shape"),
        ({"a": entry("F32", [True, 2], 0, 8)}, b"1" * 8, "impossible shape"),
        ({"a": entry("F32", [1 << 47, 1 << 47], 0, 8)}, b"1" * 8, "does not take"),
        ({"a": entry("F32", [2], 8, 0)}, b"1" * 8, "does not take"),
        ({"a": {"dtype": "F32", "shape": [2]}}, b"1" * 8, "impossible offsets"),
        ({"a": []}, b"", "is not an object"),
        (b"[1, 2]", b"", "not a JSON object"),
        (b"{nonsense", b"", "not JSON"),
        (b"[" * 100_000, b"", "not JSON"),
        (b'{"a": 1, "a": 2}', b"", "twice"),
    ],
)
def test_malformed(tmp_path: Path, header: Any, data: bytes, why: str) -> None:
    with pytest.raises(WeightError, match=why):
        read_safetensors(write(tmp_path / "x.safetensors", header, data))


def test_header_length_is_checked_first(tmp_path: Path) -> None:
    for raw in (b"", b"1234", struct.pack("<Q", 1 << 62) + b"{}", struct.pack("<Q", 99_000_000) + b"{}"):
        path = tmp_path / "x.safetensors"
        path.write_bytes(raw)
        with pytest.raises(WeightError, match=r"header claims"):
            read_safetensors(str(path))


def shard(tmp_path: Path, name: str, tensor: str) -> None:
    write(tmp_path / name, {tensor: entry("F32", [1], 0, 4)}, b"1234")


def index(tmp_path: Path, weight_map: Any) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


INDEX = "model.safetensors.index.json"


def test_sharded(tmp_path: Path) -> None:
    shard(tmp_path, "m-1.safetensors", "a")
    shard(tmp_path, "m-2.safetensors", "b")
    index(tmp_path, {"a": "m-1.safetensors", "b": "m-2.safetensors"})
    tensors = read_sharded(str(tmp_path), INDEX)
    assert Path(tensors["b"].file).name == "m-2.safetensors"
    index(tmp_path, {"a": "m-2.safetensors"})
    with pytest.raises(WeightError, match=r"not in the shard"):
        read_sharded(str(tmp_path), INDEX)
    index(tmp_path, {"a": "m-1.safetensors", "b": "m-9.safetensors"})
    with pytest.raises(WeightError, match=r"lacks 1 of 2 shards: m-9.safetensors"):
        read_sharded(str(tmp_path), INDEX)


@pytest.mark.parametrize(
    "name", ["../m-1.safetensors", "/etc/passwd", "a/b.safetensors", "x.bin", "x\0.safetensors", 7]
)
def test_shard_names_stay_in_the_directory(tmp_path: Path, name: Any) -> None:
    index(tmp_path, {"a": name})
    with pytest.raises(WeightError):
        read_sharded(str(tmp_path), INDEX)


def model(tmp_path: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> str:
    (tmp_path / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    return str(tmp_path)


def test_directory(tmp_path: Path) -> None:
    path = model(tmp_path, {"model_type": "llama"}, {"model.norm.weight": np.ones(4, np.float32)})
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    (tmp_path / "tokenizer_config.json").write_text(
        '{"chat_template": [{"name": "default", "template": "T"}]}'
    )
    source = open_model(path)
    assert source.format == "safetensors" and source.config["tie_word_embeddings"] is True
    assert source.generation_config == {"eos_token_id": [1, 2]} and source.chat_template == "T"
    assert source.tokenizer.tokenizer_json is None
    assert source.read("model.norm.weight").data.view(np.float32).tolist() == [1, 1, 1, 1]
    (tmp_path / "chat_template.jinja").write_text("J")
    (tmp_path / "tokenizer.json").write_text("{}")
    again = open_model(path)
    assert again.chat_template == "J" and again.tokenizer.tokenizer_json == str(tmp_path / "tokenizer.json")
    assert open_model(path).fingerprint == again.fingerprint


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=r"does not exist"):
        open_model(str(tmp_path / "none"))
    with pytest.raises(WeightError, match=r"neither config.json nor"):
        open_model(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(WeightError, match=r"no .safetensors file"):
        open_model(str(tmp_path))
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(WeightError, match=r"pytorch_model.bin: pickle files can run any code"):
        open_model(str(tmp_path))
    with pytest.raises(WeightError, match=r"pickle"):
        open_model(str(tmp_path / "pytorch_model.bin"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WeightError, match=r"no model_type"):
        open_model(str(tmp_path))
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}'
    )
    with pytest.raises(WeightError, match=r"quantised by 'gptq'"):
        open_model(str(tmp_path))


def test_multimodal_checkpoint_gives_its_text_model(tmp_path: Path) -> None:
    names = (
        "language_model.model.embed_tokens.weight",
        "language_model.model.layers.0.mlp.up_proj.weight",
        "vision_tower.x.weight",
        "multi_modal_projector.y",
    )
    config = {
        "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text", "hidden_size": 4},
        "eos_token_id": 5,
    }
    path = model(tmp_path, config, {name: np.ones((3, 4), np.float32) for name in names})
    source = open_model(path)
    assert source.config["model_type"] == "gemma3_text" and source.config["text_model_of"] == "gemma3"
    assert (
        source.config["vocab_size"] == 3
        and source.config["head_dim"] == 256
        and source.config["eos_token_id"] == 5
    )
    wanted = {"model.embed_tokens.weight": (3, 4), "model.layers.0.mlp.up_proj.weight": (3, 4)}
    check_tensors(source, wanted)
    assert remap("model.language_model.norm.weight") == "model.norm.weight"
    assert remap("language_model.lm_head.weight") == "lm_head.weight"


def test_check_tensors_allows_what_is_harmless_and_refuses_other_dtypes(tmp_path: Path) -> None:
    ones = np.ones(2, np.float32)
    tensors = {
        "model.embed_tokens.weight": ones,
        "lm_head.weight": ones,
        "model.layers.0.self_attn.rotary_emb.inv_freq": ones,
        "model.norm.weight": np.ones(2, np.int32),
    }
    path = model(tmp_path, {"model_type": "llama", "tie_word_embeddings": True}, tensors)
    source = open_model(path)
    with pytest.raises(WeightError, match=r"model.norm.weight is of type I32") as error:
        check_tensors(source, {"model.embed_tokens.weight": (2,), "model.norm.weight": (2,)})
    assert "not used" not in str(error.value)
