"""Configurations: both styles mean the same, and nothing that would change the arithmetic is ignored."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import ConfigError
from octavo.models.registry import FAMILIES, build_program, weights_of
from octavo.program.program import Program

BASE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def build(model_type: str, **config: Any) -> Program:
    return build_program({"model_type": model_type, **BASE, **config}, block_size=16, kv_dtype="bf16")


def windows(program: Program) -> list[object]:
    return [op.attrs["window"] for op in program.ops if op.kind == "attend"]


def thetas(program: Program) -> list[float]:
    """The lowest frequency of each layer says its theta."""
    found = []
    for op in program.ops:
        if op.kind == "rope":
            freqs = op.attrs["inv_freq"]
            assert isinstance(freqs, tuple)
            found.append(round(freqs[1] ** -(len(freqs))))
    return found


def test_unknown_model_lists_the_known() -> None:
    with pytest.raises(
        ConfigError, match=f"model_type 'gpt9' is not supported, allowed: {', '.join(FAMILIES)}"
    ):
        build("gpt9")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_builds(family: str) -> None:
    program = build(family)
    assert "model.layers.5.self_attn.o_proj.weight" in weights_of(program)
    assert program.outputs.keys() == {"logits"}


@pytest.mark.parametrize(
    ("family", "config", "problem"),
    [
        ("llama", {"hidden_act": "swoosh"}, "hidden_act is 'swoosh'.*allowed is one of silu"),
        ("llama", {"vocab_size": None}, "vocab_size is missing"),
        ("llama", {"hidden_size": -1}, "hidden_size is -1.*allowed is a positive integer"),
        (
            "llama",
            {"num_key_value_heads": 3},
            "num_attention_heads 4 is no multiple of num_key_value_heads 3",
        ),
        (
            "llama",
            {"num_attention_heads": 5, "num_key_value_heads": 5},
            "hidden_size 32 is no multiple of 5 heads",
        ),
        ("llama", {"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5'"),
        ("llama", {"attention_bias": "yes"}, "attention_bias is 'yes'.*allowed is true or false"),
        ("llama", {"sliding_window": 8}, "sliding_window = 8 is not supported for model_type 'llama'"),
        ("llama", {"rope_interleaved": True}, "rope_interleaved = True"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("llama", {"layer_types": ["sliding_attention"] * 6}, "layer_types"),
        ("llama", {"rope_theta": 0}, "rope_theta is 0"),
        ("llama", {"rope_scaling": "linear"}, "rope_scaling is 'linear', allowed is a dictionary"),
        ("llama", {"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5"),
        ("qwen2", {"is_causal": False}, "is_causal = False"),
        ("qwen2", {"layer_types": ["full_attention"]}, "a list of 6 entries"),
        ("qwen3", {"layer_types": ["linear_attention"] * 6}, "holds linear_attention"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": "all"}, "max_window_layers is 'all'"),
        ("mistral", {"attention_bias": True}, "mistral models have no biases"),
        ("mistral", {"sliding_window": 8, "layer_types": ["full_attention"] * 6}, "contradict each other"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3_text", {"norm_weight_offset": 0.5}, "norm_weight_offset is 0.5"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
        ("gemma3", {"text_config": {"hidden_size": 8}}, "text_config"),
        ("gemma3_text", {"rope_parameters": {"full_attention": {}, "factor": 2.0}}, "mixes layer types"),
    ],
)
def test_refusals(family: str, config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        build(family, **config)


@pytest.mark.parametrize(
    ("family", "config", "expected"),
    [
        ("llama", {}, [0] * 6),
        ("llama", {"layer_types": ["full_attention"] * 6}, [0] * 6),
        ("mistral", {}, [4096] * 6),
        ("mistral", {"sliding_window": None}, [0] * 6),
        ("mistral", {"sliding_window": 8}, [8] * 6),
        ("qwen2", {"sliding_window": 8}, [0] * 6),
        (
            "qwen2",
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 4},
            [0, 0, 0, 0, 8, 8],
        ),
        ("qwen2", {"sliding_window": None, "use_sliding_window": True, "max_window_layers": 0}, [0] * 6),
        ("gemma3_text", {"sliding_window": 8, "sliding_window_pattern": 3}, [8, 8, 0, 8, 8, 0]),
        ("gemma3_text", {"sliding_window": 512}, [512] * 5 + [0]),
        (
            "qwen3",
            {
                "use_sliding_window": True,
                "sliding_window": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 3,
            },
            [4, 0] * 3,
        ),
    ],
)
def test_windows(family: str, config: dict[str, Any], expected: list[int]) -> None:
    program = build(family, **config)
    assert windows(program) == expected
    for layer, window in enumerate(expected):
        assert program.kv.groups[program.kv.place(layer)[0]].window == window


def test_gemma_has_two_rotations_in_both_styles() -> None:
    old = build("gemma3_text", sliding_window_pattern=2, rope_theta=1e6, rope_local_base_freq=1e4)
    nested = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    new = build("gemma3_text", sliding_window_pattern=2, rope_parameters=nested)
    assert thetas(old) == thetas(new)
    assert thetas(old)[0] == pytest.approx(1e4, rel=1e-3)
    assert thetas(old)[1] == pytest.approx(1e6, rel=1e-3)
    scaled = build(
        "gemma3_text", sliding_window_pattern=2, rope_scaling={"rope_type": "linear", "factor": 8.0}
    )
    ropes = [op.attrs["inv_freq"] for op in scaled.ops if op.kind == "rope"]
    plain = [op.attrs["inv_freq"] for op in old.ops if op.kind == "rope"]
    assert ropes[0] == plain[0]  # local layers are not scaled
    assert ropes[1] != plain[1]


def test_gemma_embeds_with_a_scale_rounded_as_the_checkpoint() -> None:
    for dtype, scale in (("bfloat16", 25.25), ("float16", 25.296875), ("float32", 25.298221588134766)):
        program = build("gemma3_text", hidden_size=640, dtype=dtype)
        assert program.ops[0].attrs["scale"] == scale


def test_norm_offset_follows_the_file() -> None:
    for given, expected in (({}, 1.0), ({"norm_weight_offset": 0.0}, 0.0)):
        norms = [op for op in build("gemma3_text", **given).ops if op.kind == "rms_norm"]
        assert {op.attrs["offset"] for op in norms} == {expected}


def test_tied_embeddings() -> None:
    assert "lm_head.weight" not in weights_of(build("llama", tie_word_embeddings=True))
    assert weights_of(build("llama"))["lm_head.weight"] == (64, 32)


def test_harmless_keys_of_real_configurations_are_fine() -> None:
    keys = {
        "architectures": ["LlamaForCausalLM"],
        "attention_dropout": 0.0,
        "torch_dtype": "bfloat16",
        "transformers.js_config": {},
        "rope_interleaved": False,
        "rope_scaling": None,
        "pretraining_tp": 1,
        "use_cache": True,
        "quantization_config": None,
    }
    build("llama", **keys)
