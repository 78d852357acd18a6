"""Tiny random checkpoints, written by transformers: the models of tests that need no real weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB = 160
_BASE: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 24},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": True},
    "gemma3_text": {
        "num_hidden_layers": 4,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 16,
    },
}


def write(directory: Path, family: str, *, seed: int = 0, **changes: Any) -> Path:
    """A checkpoint directory of `family` (config.json and model.safetensors), weights of unit-ish scale."""
    config = AutoConfig.for_model(family, **{**_BASE, **FAMILIES[family], **changes})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim == 2:  # wide logits, so that greedy choices and samples are decided
                value.normal_(0, 0.25 if "embed" in name or "lm_head" in name else 0.12)
            elif "norm" in name:
                value.add_(torch.randn_like(value) * 0.1)
            else:
                value.normal_(0, 0.1)
    model.save_pretrained(directory)
    return directory
