"""Mistral 7B and its kin: Llama with one sliding window for all layers (or none)."""

from __future__ import annotations

from octavo.errors import ConfigError
from octavo.models.config import Raw, Reader, layer_windows, read_config
from octavo.models.decoder import pre_norm_decoder
from octavo.program.program import Program

DEFAULTS = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}


def build(config: Raw, *, block_size: int, kv_dtype: str, max_length: int | None = None) -> Program:
    if config.get("attention_bias") or config.get("mlp_bias"):
        raise ConfigError("mistral models have no biases, but attention_bias or mlp_bias is true")
    c = read_config(
        config,
        defaults=DEFAULTS,
        windows=_windows,
        implements=frozenset({"sliding_window", "layer_types"}),
        max_length=max_length,
    )
    return pre_norm_decoder(c, block_size=block_size, kv_dtype=kv_dtype)


def _windows(r: Reader, layers: int) -> list[int]:
    # An absent key means the class's default of 4096, an explicit null no window.
    window = r.config.get("sliding_window", 4096)
    if window is not None:
        window = r.count("sliding_window", 4096)
    spans = [window or 0] * layers
    if r.config.get("layer_types") is not None and layer_windows(r, layers, window) != spans:
        raise ConfigError("layer_types and sliding_window of this mistral model contradict each other")
    return spans
