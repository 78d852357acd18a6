"""GGUF metadata and names in Hugging Face's terms, and opening a model from one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit import gguf_files as make

from octavo.errors import WeightError
from octavo.quant import dequantise
from octavo.weights.load import check_tensors, open_model
from octavo.weights.names import rope_pairs
from octavo.weights.source import ModelSource


def floats(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def layer_tensors(*names: str) -> dict[str, np.ndarray]:
    shapes = {
        "attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64), "ffn_gate": (96, 64),
        "ffn_up": (96, 64), "ffn_down": (64, 96), "attn_q_norm": (16,), "attn_k_norm": (16,),
    }  # fmt: skip
    tensors = {"token_embd.weight": floats(50, 64), "output_norm.weight": floats(64)}
    for layer in range(2):
        for name in (*shapes, *names):
            if name in names or ("_q_norm" not in name and "_k_norm" not in name):
                tensors[f"blk.{layer}.{name}.weight"] = floats(*shapes.get(name, (64,)))
    return tensors


def opened(tmp_path: Path, metadata: dict[str, Any], tensors: dict[str, np.ndarray]) -> ModelSource:
    path = tmp_path / "model.gguf"
    path.write_bytes(make.with_tensors(metadata, tensors))
    return open_model(str(path))


LLAMA = layer_tensors("attn_norm", "ffn_norm")


def test_llama(tmp_path: Path) -> None:
    source = opened(tmp_path, make.llama_metadata(llama__rope__freq_base=(make.F32, 1e5)), LLAMA)
    config = source.config
    assert source.format == "gguf" and source.name == "model"
    assert (config["model_type"], config["hidden_size"], config["num_hidden_layers"]) == ("llama", 64, 2)
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 16)
    assert (config["intermediate_size"], config["vocab_size"], config["max_position_embeddings"]) == (
        96,
        50,
        128,
    )
    assert config["rms_norm_eps"] == 1e-5 and config["rope_theta"] == 1e5 and config["rope_scaling"] is None
    assert config["tie_word_embeddings"] is True and config["attention_bias"] is False
    assert "rope_factors" not in config
    assert set(source.tensors) >= {"model.embed_tokens.weight", "model.norm.weight"}
    for part in (
        "input_layernorm",
        "post_attention_layernorm",
        "self_attn.q_proj",
        "self_attn.o_proj",
        "mlp.down_proj",
    ):
        assert f"model.layers.1.{part}.weight" in source.tensors
    assert source.tensors["model.layers.0.self_attn.k_proj.weight"].row_order == ("rope_pairs", 2)
    assert source.tensors["model.layers.0.self_attn.v_proj.weight"].row_order is None


def test_rope_pairs_undoes_the_interleaving() -> None:
    heads, head_dim = 3, 8
    model = np.arange(heads * head_dim)
    file = model.reshape(heads, 2, head_dim // 2).swapaxes(1, 2).reshape(-1)  # what converters do to rows
    order = rope_pairs(model.size, heads)
    assert order.dtype == np.int32 and (file[order] == model).all()


def test_read_gives_bytes_and_order(tmp_path: Path) -> None:
    source = opened(tmp_path, make.llama_metadata(), LLAMA)
    raw = source.read("model.layers.0.self_attn.q_proj.weight")
    assert raw.row_order is not None and not raw.data.flags.writeable
    rows = dequantise(raw.data, raw.info.type, *raw.info.shape)[raw.row_order]
    assert (rows[:16, 0] == floats(64, 64)[[*range(0, 16, 2), *range(1, 16, 2)], 0]).all()
    with pytest.raises(WeightError, match="has no tensor 'x'"):
        source.read("x")


def test_output_weight_unties(tmp_path: Path) -> None:
    source = opened(tmp_path, make.llama_metadata(), {**LLAMA, "output.weight": floats(50, 64)})
    assert source.config["tie_word_embeddings"] is False and "lm_head.weight" in source.tensors


def test_llama3_rope_factors(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    source = opened(tmp_path, make.llama_metadata(), {**LLAMA, "rope_freqs.weight": factors})
    assert source.config["rope_factors"] == factors.tolist() and "rope_freqs.weight" not in source.tensors
    with pytest.raises(WeightError, match="must hold positive numbers"):
        opened(tmp_path, make.llama_metadata(), {**LLAMA, "rope_freqs.weight": factors * np.nan})


def test_rope_scaling(tmp_path: Path) -> None:
    def scaling(**changes: Any) -> Any:
        return opened(tmp_path, make.llama_metadata(**changes), LLAMA).config["rope_scaling"]

    linear = {
        "llama__rope__scaling__type": (make.STRING, "linear"),
        "llama__rope__scaling__factor": (make.F32, 4.0),
    }
    assert scaling(**linear) == {"rope_type": "linear", "factor": 4.0}
    yarn = {**linear, "llama__rope__scaling__type": (make.STRING, "yarn")}
    yarn["llama__rope__scaling__original_context_length"] = (make.U32, 32)
    assert scaling(**yarn) == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    with pytest.raises(WeightError, match="'longrope'; linear and yarn"):
        scaling(llama__rope__scaling__type=(make.STRING, "longrope"))


def test_qwen2_and_qwen3(tmp_path: Path) -> None:
    biases = {
        f"blk.{layer}.attn_{p}.bias": floats(n)
        for layer in range(2)
        for p, n in (("q", 64), ("k", 32), ("v", 32))
    }
    source = opened(tmp_path, make.llama_metadata("qwen2"), {**LLAMA, **biases})
    assert source.config["model_type"] == "qwen2" and source.config["attention_bias"] is True
    assert "model.layers.1.self_attn.k_proj.bias" in source.tensors
    assert all(info.row_order is None for info in source.tensors.values())
    tensors = layer_tensors("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm")
    source = opened(
        tmp_path, make.llama_metadata("qwen3", qwen3__attention__key_length=(make.U32, 16)), tensors
    )
    assert (
        source.config["model_type"] == "qwen3" and "model.layers.0.self_attn.q_norm.weight" in source.tensors
    )


def test_gemma3(tmp_path: Path) -> None:
    names = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm")
    metadata = make.llama_metadata(
        "gemma3", gemma3__attention__sliding_window=(make.U32, 24), gemma3__block_count=(4, 7)
    )
    source = opened(tmp_path, metadata, layer_tensors(*names))
    config = source.config
    assert config["model_type"] == "gemma3_text" and config["hidden_activation"] == "gelu_pytorch_tanh"
    assert config["sliding_window"] == 24 and config["query_pre_attn_scalar"] == 16
    assert config["layer_types"] == ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
    assert config["rope_local_base_freq"] == 1e4 and config["norm_weight_offset"] == 0.0
    for part in ("post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
        assert f"model.layers.0.{part}.weight" in source.tensors


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"general__architecture": (make.STRING, "rwkv7")},
            "'rwkv7'; supported in GGUF are llama, qwen2, qwen3, gemma3",
        ),
        ({"general__architecture": None}, "architecture None"),
        ({"llama__block_count": None}, "llama.block_count is missing"),
        ({"llama__block_count": (make.STRING, "x")}, "is 'x'; an integer"),
        ({"llama__attention__head_count": (make.U32, 0)}, "is 0; an integer from 1"),
        (
            {"llama__attention__head_count_kv": (make.ARRAY, (make.U32, [2, 4]))},
            "differs from layer to layer",
        ),
        ({"llama__attention__layer_norm_rms_epsilon": (make.F32, float("nan"))}, "a positive number"),
        ({"llama__expert_count": (make.U32, 8)}, "mixture-of-experts"),
        ({"llama__attention__value_length": (make.U32, 8)}, "different widths"),
    ],
)
def test_bad_metadata(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(WeightError, match=why):
        opened(tmp_path, make.llama_metadata(**changes), LLAMA)


def test_one_entry_a_layer_is_accepted_when_all_agree(tmp_path: Path) -> None:
    metadata = make.llama_metadata(llama__attention__head_count_kv=(make.ARRAY, (make.U32, [2, 2])))
    assert opened(tmp_path, metadata, LLAMA).config["num_key_value_heads"] == 2


def test_vocabulary_only_file(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match="holds a vocabulary but no model"):
        opened(tmp_path, make.llama_metadata(), {})


def test_generation_config_and_template(tmp_path: Path) -> None:
    metadata = make.llama_metadata()
    metadata["tokenizer.ggml.eos_token_id"] = (make.U32, 7)
    metadata["tokenizer.ggml.eot_token_id"] = (make.U32, 9)
    metadata["general.sampling.temp"] = (make.F32, 0.6)
    metadata["tokenizer.chat_template"] = (make.STRING, "{{ messages }}")
    metadata["general.name"] = (make.STRING, "Tiny")
    source = opened(tmp_path, metadata, LLAMA)
    assert source.generation_config == {"eos_token_id": [7, 9], "temperature": 0.6}
    assert source.chat_template == "{{ messages }}" and source.name == "Tiny"
    assert source.tokenizer.gguf is not None and all(
        key.startswith("tokenizer.") for key in source.tokenizer.gguf
    )


def test_check_tensors_lists_everything_at_once(tmp_path: Path) -> None:
    source = opened(tmp_path, make.llama_metadata(), {**LLAMA, "blk.0.odd.weight": floats(3)})
    wanted = {name: info.shape for name, info in source.tensors.items() if "odd" not in name}
    wanted["model.norm.weight"] = (65,)
    wanted["model.layers.2.mlp.up_proj.weight"] = (96, 64)
    with pytest.raises(WeightError) as error:
        check_tensors(source, wanted)
    text = str(error.value)
    assert "1 missing: model.layers.2.mlp.up_proj.weight [96, 64]" in text
    assert (
        "1 not used by the model: blk.0.odd.weight" in text and "model.norm.weight is [64], not [65]" in text
    )


def test_fingerprint_changes_with_the_file(tmp_path: Path) -> None:
    import os

    source = opened(tmp_path, make.llama_metadata(), LLAMA)
    before = source.fingerprint
    assert before == open_model(source.path).fingerprint and len(before) == 32
    os.utime(source.path, ns=(1, 1))
    assert source.fingerprint != before


def test_a_file_cut_short_after_opening(tmp_path: Path) -> None:
    source = opened(tmp_path, make.llama_metadata(), LLAMA)
    path = Path(source.path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(WeightError, match="cut short while in use"):
        source.read("model.layers.1.mlp.down_proj.weight")


def test_real_model(smollm2_path: str) -> None:
    source = open_model(smollm2_path)
    assert source.config["model_type"] == "llama" and len(source.tensors) == 272
    assert source.config["rms_norm_eps"] == 1e-5 and source.config["rope_theta"] == 1e5
    raw = source.read("model.layers.0.mlp.gate_proj.weight")
    assert raw.info.type == "Q4_1" and raw.data.size == 1536 * 576 // 32 * 20
