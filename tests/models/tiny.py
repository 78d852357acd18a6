"""Tiny random checkpoints, one or more per family, with transformers' float32 logits of some prompts.

All weights are random, also norms and biases (which transformers starts at 1 and 0), so that each one
matters to the result. Windows are shorter than the longest prompts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

Checkpoint = tuple[str, list[npt.NDArray[np.float32]]]  # (directory, logits of PROMPTS)
VOCAB = 200
PROMPTS = [
    [3, 17, 160, 42, 42, 9, 77, 120, 5, 61, 88, 13, 7, 101, 33, 150, 2, 90, 64, 28, 111, 199, 0, 54, 71, 36]
    + [(13 * i * i + 9 * i + 1) % VOCAB for i in range(31)],
    [(7 * i + 3) % VOCAB for i in range(11)],
    [150],
    [(11 * i * i + 5) % VOCAB for i in range(36)],
]
_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
_GEMMA: dict[str, Any] = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 4,
    "head_dim": 32,
    "query_pre_attn_scalar": 24,
    "sliding_window": 8,
    "num_key_value_heads": 1,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}

CASES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-odd-heads-biases": {
        "model_type": "llama",
        "hidden_size": 144,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
    },
    "llama-llama3-rope": {"model_type": "llama", "rope_parameters": _LLAMA3, "num_key_value_heads": 4},
    "llama-linear-rope-gelu": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
        "hidden_act": "gelu",
    },
    "mistral": {"model_type": "mistral", "sliding_window": 8, "head_dim": 32},
    "mistral-no-window": {"model_type": "mistral", "sliding_window": None, "num_key_value_heads": 1},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2-window-yarn": {
        "model_type": "qwen2",
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
        "rope_parameters": _YARN,
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
    "qwen3-biases": {"model_type": "qwen3", "head_dim": 16, "attention_bias": True, "num_hidden_layers": 4},
    "gemma3": {**_GEMMA, "sliding_window_pattern": 2},
    "gemma3-odd-groups": {
        **_GEMMA,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "final_logit_softcapping": 2.0,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
}


def save(name: str, directory: str) -> list[npt.NDArray[np.float32]]:
    """Writes checkpoint `name`; returns transformers' float32 logits `[len, vocab]` of PROMPTS."""
    case = {**_BASE, **CASES[name]}
    config = transformers.AutoConfig.for_model(case.pop("model_type"), **case)
    make: Any = transformers.AutoModelForCausalLM.from_config
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = make(config, attn_implementation="eager").eval()
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(directory)
        return [model(torch.tensor([prompt])).logits[0].float().numpy() for prompt in PROMPTS]
