"""Frequencies of every rope scaling against transformers, in both styles of configuration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo.errors import ConfigError
from octavo.models.config import all_full, read_config
from octavo.models.llama import DEFAULTS
from octavo.models.rope import Rope, make_rope

SHAPE: dict[str, Any] = {
    "vocab_size": 8,
    "hidden_size": 256,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
}
CASES: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "linear", "factor": 4.0, "partial_rotary_factor": 0.5},
    {"rope_type": "dynamic", "factor": 2.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 2048,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "partial_rotary_factor": 0.25,
    },
    {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 1024},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "attention_factor": 1.25},
    {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 512,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 512,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512, "truncate": False},
]


def ours(config: dict[str, Any], max_length: int | None = None) -> Rope:
    raw = {"model_type": "llama", **SHAPE, **config}
    return read_config(raw, defaults=DEFAULTS, windows=all_full, max_length=max_length).ropes[0]


@pytest.mark.parametrize("theta", [1e4, 5e5, 1e6])
@pytest.mark.parametrize("params", CASES, ids=lambda p: "-".join(str(v) for v in p.values()))
def test_scalings(params: dict[str, Any], theta: float) -> None:
    new_style = {"rope_parameters": {**params, "rope_theta": theta}}
    config = transformers.LlamaConfig(**SHAPE, rope_parameters={**params, "rope_theta": theta})
    expected, attention_factor = ROPE_INIT_FUNCTIONS[params["rope_type"]](config, "cpu")
    old_style = {"rope_theta": theta, "rope_scaling": {**params, "type": params["rope_type"]}}
    for rope in (ours(new_style), ours(old_style)):
        np.testing.assert_allclose(rope.inv_freq, expected.numpy(), rtol=3e-7)
        assert rope.attention_factor == pytest.approx(attention_factor, rel=1e-12)


@pytest.mark.parametrize("theta", [1e4, 130000.0])
def test_default(theta: float) -> None:
    config = transformers.LlamaConfig(**SHAPE, rope_parameters={"rope_type": "default", "rope_theta": theta})
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding
    expected, _ = rotary.compute_default_rope_parameters(config)
    for rope in (ours({"rope_theta": theta}), ours({"rope_parameters": {"rope_theta": theta}})):
        np.testing.assert_allclose(rope.inv_freq, expected.numpy(), rtol=3e-7)


def test_dynamic_is_fixed_for_the_longest_sequence() -> None:
    params = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    config = transformers.LlamaConfig(**SHAPE, rope_parameters=params)
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, "cpu", seq_len=9000)
    np.testing.assert_allclose(ours({"rope_parameters": params}, 9000).inv_freq, expected.numpy(), rtol=3e-6)


def test_factors_of_a_gguf_file_divide() -> None:
    factors = [1.0 + i for i in range(32)]
    rope, plain = ours({"rope_theta": 1e4, "rope_factors": factors}), ours({"rope_theta": 1e4})
    np.testing.assert_allclose(np.array(rope.inv_freq) * factors, plain.inv_freq, rtol=1e-6)


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"rope_type": "longrope"}, "rope_type 'longrope' is not supported, allowed: default, linear"),
        ({"rope_type": "linear"}, "rope parameter factor is None"),
        ({"rope_type": "linear", "factor": True}, "factor is True"),
        (
            {"rope_type": "default", "mrope_section": [1, 2]},
            "mrope_section mean nothing to rope_type 'default'",
        ),
        (
            {"rope_type": "linear", "factor": 2.0, "beta_fast": 32},
            "beta_fast mean nothing to rope_type 'linear'",
        ),
        ({"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 9}, "dynamic rope with"),
        ({"rope_type": "factors", "factors": [1.0]}, "rope_factors must be 4 positive numbers"),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0},
            "must be above low_freq_factor",
        ),
    ],
)
def test_refusals(params: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make_rope(params, theta=1e4, dim=8, max_position=64, max_length=64)


def test_odd_rotations_are_refused() -> None:
    with pytest.raises(ConfigError, match="7 columns"):
        make_rope({}, theta=1e4, dim=7, max_position=64, max_length=64)
