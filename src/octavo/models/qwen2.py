"""Qwen 2 and 2.5 (dense): Llama with biases on q, k and v, and an optional window on the upper layers."""

from __future__ import annotations

from octavo.errors import ConfigError
from octavo.models.config import Raw, Reader, layer_windows, read_config
from octavo.models.decoder import pre_norm_decoder
from octavo.program.program import Program

DEFAULTS = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
IMPLEMENTS = frozenset({"sliding_window", "layer_types"})


def build(config: Raw, *, block_size: int, kv_dtype: str, max_length: int | None = None) -> Program:
    c = read_config(
        config, defaults=DEFAULTS, windows=upper_windows, implements=IMPLEMENTS, max_length=max_length
    )
    return pre_norm_decoder(c, block_size=block_size, kv_dtype=kv_dtype, qkv_bias=True)


def upper_windows(r: Reader, layers: int) -> list[int]:
    """`sliding_window` acts only with `use_sliding_window`, from layer `max_window_layers` on, unless
    `layer_types` says which layers slide."""
    slides = r.flag("use_sliding_window") and r.config.get("sliding_window", 4096) is not None
    window = r.count("sliding_window") if slides else 0
    if r.config.get("layer_types") is not None:
        return layer_windows(r, layers, window)
    first = r.get("max_window_layers")
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise ConfigError(f"max_window_layers is {first!r}, allowed is an integer from 0 on")
    return [window if layer >= first else 0 for layer in range(layers)]
