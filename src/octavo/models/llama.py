"""Llama 1 to 3.x, SmolLM2 and other checkpoints of model_type "llama"."""

from __future__ import annotations

from octavo.models.config import Raw, Reader, all_full, read_config
from octavo.models.decoder import pre_norm_decoder
from octavo.program.program import Program

DEFAULTS = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}


def build(config: Raw, *, block_size: int, kv_dtype: str, max_length: int | None = None) -> Program:
    r = Reader(config, DEFAULTS)
    c = read_config(config, defaults=DEFAULTS, windows=all_full, max_length=max_length)
    bias = r.flag("attention_bias")
    return pre_norm_decoder(
        c,
        block_size=block_size,
        kv_dtype=kv_dtype,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=r.flag("mlp_bias"),
    )
