"""Gemma 3, the text model: norms before and after attention and feed-forward, norms on q and k, local
layers with their own rotation, scaled embeddings.

Checkpoints store w - 1 of each norm; GGUF files store w, and their configuration says so by
`norm_weight_offset` 0.0. The loader takes the text model out of a multimodal checkpoint.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from octavo.errors import ConfigError
from octavo.models import decoder
from octavo.models.config import Raw, Reader, layer_windows, read_config
from octavo.program.program import Program

DEFAULTS: dict[str, Any] = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attention_bias": False,
}
IMPLEMENTS = frozenset(
    {
        "sliding_window",
        "layer_types",
        "query_pre_attn_scalar",
        "attn_logit_softcapping",
        "final_logit_softcapping",
    }
)


def build(config: Raw, *, block_size: int, kv_dtype: str, max_length: int | None = None) -> Program:
    r = Reader(config, DEFAULTS)
    c = read_config(
        config,
        defaults=DEFAULTS,
        windows=_windows,
        implements=IMPLEMENTS,
        activation_keys=("hidden_activation", "hidden_act"),
        max_length=max_length,
    )
    offset = _norm_offset(config)
    bias = r.flag("attention_bias")
    b = decoder.start(c, block_size=block_size, kv_dtype=kv_dtype)
    norm = partial(b.rms_norm, eps=c.eps, offset=offset)
    x = b.embed("embed", "model.embed_tokens", c.hidden_size, scale=_embed_scale(config, c.hidden_size))
    for layer in range(c.num_layers):
        name, module = f"layers.{layer}", f"model.layers.{layer}"
        y = norm(f"{name}.attn.norm", x, f"{module}.input_layernorm")
        y = decoder.attention(
            b,
            c,
            layer,
            y,
            f"{module}.self_attn",
            qkv_bias=bias,
            out_bias=bias,
            qk_norm_offset=offset,
            scale=r.number("query_pre_attn_scalar") ** -0.5,
            softcap=r.cap("attn_logit_softcapping"),
        )
        y = norm(f"{name}.attn.post_norm", y, f"{module}.post_attention_layernorm")
        x = b.add(f"{name}.attn.add", x, y)
        y = norm(f"{name}.mlp.norm", x, f"{module}.pre_feedforward_layernorm")
        y = decoder.feed_forward(b, c, layer, y, f"{module}.mlp")
        y = norm(f"{name}.mlp.post_norm", y, f"{module}.post_feedforward_layernorm")
        x = b.add(f"{name}.mlp.add", x, y)
    softcap = r.cap("final_logit_softcapping")
    return decoder.finish(b, c, x, offset=offset, softcap=softcap)


def _windows(r: Reader, layers: int) -> list[int]:
    window = r.count("sliding_window")
    if r.config.get("layer_types") is not None:
        return layer_windows(r, layers, window)
    pattern = r.config.get("sliding_window_pattern", r.config.get("_sliding_window_pattern", 6))
    if isinstance(pattern, bool) or not isinstance(pattern, int) or pattern < 1:
        raise ConfigError(f"sliding_window_pattern is {pattern!r}, allowed is a positive integer")
    return [0 if (layer + 1) % pattern == 0 else window for layer in range(layers)]


def _norm_offset(config: Raw) -> float:
    offset = config.get("norm_weight_offset", 1.0)
    if offset not in (0.0, 1.0):
        raise ConfigError(f"norm_weight_offset is {offset!r}, allowed: 0.0, 1.0")
    return float(offset)


def _embed_scale(config: Raw, hidden_size: int) -> float:
    """sqrt(d) in the precision of the checkpoint: the model was trained with the rounded number."""
    scale = math.sqrt(hidden_size)
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    if dtype == "bfloat16":
        bits = int(np.float32(scale).view(np.uint32))
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000  # to nearest, ties to even
        return float(np.uint32(rounded).view(np.float32))
    if dtype == "float16":
        return float(np.float16(scale))
    return float(np.float32(scale))
