"""Qwen 3 (dense): Llama with norms on the heads of q and k, and Qwen 2's optional window."""

from __future__ import annotations

from octavo.models.config import Raw, Reader, read_config
from octavo.models.decoder import pre_norm_decoder
from octavo.models.qwen2 import DEFAULTS as QWEN2_DEFAULTS
from octavo.models.qwen2 import IMPLEMENTS, upper_windows
from octavo.program.program import Program

DEFAULTS = {**QWEN2_DEFAULTS, "head_dim": 128, "attention_bias": False}


def build(config: Raw, *, block_size: int, kv_dtype: str, max_length: int | None = None) -> Program:
    r = Reader(config, DEFAULTS)
    c = read_config(
        config, defaults=DEFAULTS, windows=upper_windows, implements=IMPLEMENTS, max_length=max_length
    )
    bias = r.flag("attention_bias")
    return pre_norm_decoder(
        c, block_size=block_size, kv_dtype=kv_dtype, qkv_bias=bias, out_bias=bias, qk_norm=True
    )
