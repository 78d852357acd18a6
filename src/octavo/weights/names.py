"""GGUF names and metadata -> Hugging Face tensor names and configuration keys.

One `Family` a GGUF architecture. Knows what keys mean; knows neither the byte layout (weights.gguf)
nor what a model computes. Architectures: llama (Mistral models carry it too), qwen2, qwen3, gemma3.

Row order: converters of the llama architecture store the rows of q and k with the two halves of a head
interleaved, for a rotary embedding over neighbouring pairs. Ours rotates halves, as Hugging Face's does,
so such tensors say `("rope_pairs", heads)` and `rope_pairs()` gives the order that undoes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import WeightError
from octavo.weights.gguf import GGUFFile, GGUFTensor
from octavo.weights.tensor import TensorInfo

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_PRE_NORM = {**_ATTENTION, "ffn_norm": "post_attention_layernorm"}
_QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_SANDWICH_NORM = {
    **_ATTENTION,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")
_ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class Family:
    """How one GGUF architecture maps. `finish` adds the keys that only this family has."""

    model_type: str  # Hugging Face's
    architecture: str
    layer: Mapping[str, str]
    finish: Callable[[dict[str, Any], _Keys], None]
    rope_pairs: bool = False
    activation: str = "silu"


class _Keys:
    """Typed reads of `<architecture>.<key>`; a wrong or missing value is a WeightError that names it."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self.file, self.architecture = file, architecture

    def _raw(self, key: str) -> Any:
        value = self.file.metadata.get(f"{self.architecture}.{key}")
        if isinstance(value, np.ndarray):  # some converters write one entry a layer
            if value.size and (value == value.flat[0]).all():
                return value.flat[0].item()
            raise self._bad(key, "differs from layer to layer, which is not supported")
        return value

    def _bad(self, key: str, problem: str) -> WeightError:
        return WeightError(f"{self.file.path}: metadata key {self.architecture}.{key} {problem}")

    def count(self, key: str, default: int | None = None, *, least: int = 1, most: int = 1 << 31) -> int:
        value = self._raw(key)
        if value is None:
            value = default
        if value is None:
            raise self._bad(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._bad(key, f"is {value!r}; an integer from {least} to {most} is allowed")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._raw(key)
        if value is None:
            value = default
        if value is None:
            raise self._bad(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._bad(key, f"is {value!r}; a number is allowed")
        if not math.isfinite(value) or value <= 0:
            raise self._bad(key, f"is {value!r}; a positive number is allowed")
        return shortest(float(value))

    def text(self, key: str, default: str) -> str:
        value = self._raw(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._bad(key, f"is {value!r}; a string is allowed")
        return value

    def has(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self.file.metadata


def _llama(config: dict[str, Any], keys: _Keys) -> None:
    if keys.has("expert_count") and keys.count("expert_count", least=0):
        raise WeightError(
            f"{keys.file.path} is a mixture-of-experts model, which GGUF loading does not support"
        )
    config["mlp_bias"] = "blk.0.ffn_down.bias" in keys.file.tensors


def _qwen2(config: dict[str, Any], keys: _Keys) -> None:
    config["use_sliding_window"] = False


def _qwen3(config: dict[str, Any], keys: _Keys) -> None:
    config["use_sliding_window"] = False


def _gemma3(config: dict[str, Any], keys: _Keys) -> None:
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    # Gemma 3's one exception: the 27B model (62 layers) scales queries by hidden size over heads.
    config["query_pre_attn_scalar"] = config["hidden_size"] // heads if layers == 62 else config["head_dim"]
    config["sliding_window"] = keys.count("attention.sliding_window", 512)
    config["sliding_window_pattern"] = 6
    config["layer_types"] = [
        "full_attention" if (layer + 1) % 6 == 0 else "sliding_attention" for layer in range(layers)
    ]
    config["rope_local_base_freq"] = keys.number("rope.freq_base_swa", 10000.0)
    config["norm_weight_offset"] = 0.0  # converters of this architecture store 1 + w
    config["final_logit_softcapping"] = (
        keys.number("final_logit_softcapping") if keys.has("final_logit_softcapping") else None
    )
    config["attn_logit_softcapping"] = None


FAMILIES: dict[str, Family] = {
    "llama": Family("llama", "LlamaForCausalLM", _PRE_NORM, _llama, rope_pairs=True),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", _PRE_NORM, _qwen2),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", {**_PRE_NORM, **_QK_NORM}, _qwen3),
    "gemma3": Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        {**_SANDWICH_NORM, **_QK_NORM},
        _gemma3,
        activation="gelu_pytorch_tanh",
    ),
}


def translate(file: GGUFFile) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    """(config, tensors) of a GGUF model in Hugging Face's terms. Raises WeightError with the reason."""
    architecture = file.metadata.get("general.architecture")
    family = FAMILIES.get(architecture) if isinstance(architecture, str) else None
    if family is None or not isinstance(architecture, str):
        raise WeightError(
            f"{file.path} is of the architecture {architecture!r}; supported in GGUF are {', '.join(FAMILIES)}"
        )
    config = _config(file, family, _Keys(file, architecture))
    return config, _tensors(file, family, config)


def _config(file: GGUFFile, family: Family, keys: _Keys) -> dict[str, Any]:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise WeightError(f"{file.path} has no matrix token_embd.weight: it holds a vocabulary but no model")
    hidden, heads = keys.count("embedding_length"), keys.count("attention.head_count", most=1 << 16)
    head_dim = keys.count("attention.key_length", hidden // heads or 1, most=1 << 16)
    if keys.count("attention.value_length", head_dim) != head_dim:
        raise WeightError(f"{file.path} has keys and values of different widths, which is not supported")
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "hidden_size": hidden,
        "num_hidden_layers": keys.count("block_count", most=1 << 12),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.count("attention.head_count_kv", heads, most=1 << 16),
        "head_dim": head_dim,
        "intermediate_size": keys.count("feed_forward_length"),
        "hidden_act": family.activation,
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(keys),
        "max_position_embeddings": keys.count("context_length"),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
    }
    if family.activation == "gelu_pytorch_tanh":
        config["hidden_activation"] = family.activation
    rotary_dim = keys.count("rope.dimension_count", head_dim, most=1 << 16)
    if rotary_dim != head_dim:
        config["partial_rotary_factor"] = rotary_dim / head_dim
    if _ROPE_FACTORS in file.tensors:
        config["rope_factors"] = _small_floats(file, file.tensors[_ROPE_FACTORS], most=head_dim)
    for key, name in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")):
        token = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(token, int) and not isinstance(token, bool):
            config[key] = token
    family.finish(config, keys)
    return config


def _rope_scaling(keys: _Keys) -> dict[str, Any] | None:
    kind = keys.text("rope.scaling.type", "none" if not keys.has("rope.scaling.factor") else "linear")
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": keys.number("rope.scaling.factor")}
    if kind == "yarn":
        scaling: dict[str, Any] = {"rope_type": "yarn", "factor": keys.number("rope.scaling.factor")}
        scaling["original_max_position_embeddings"] = keys.count(
            "rope.scaling.original_context_length", keys.count("context_length")
        )
        for ours, theirs in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
            if keys.has(f"rope.scaling.{theirs}"):
                scaling[ours] = keys.number(f"rope.scaling.{theirs}")
        return scaling
    raise WeightError(
        f"{keys.file.path} scales its rotary embedding by {kind!r}; linear and yarn are supported in GGUF"
    )


def _small_floats(file: GGUFFile, tensor: GGUFTensor, most: int) -> list[float]:
    if tensor.type != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > most:
        raise WeightError(f"{file.path}: {tensor.name} should be at most {most} F32 numbers in a vector")
    with open(file.path, "rb") as data:
        data.seek(tensor.offset)
        floats = np.frombuffer(data.read(tensor.nbytes), "<f4")
    if floats.size != tensor.shape[0] or not np.isfinite(floats).all() or not (floats > 0).all():
        raise WeightError(f"{file.path}: {tensor.name} must hold positive numbers")
    return [float(value) for value in floats]


def _tensors(file: GGUFFile, family: Family, config: dict[str, Any]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for tensor in file.tensors.values():
        if tensor.name == _ROPE_FACTORS:  # became config["rope_factors"]
            continue
        name = hf_name(tensor.name, family)
        row_order: tuple[str, int] | None = None
        if family.rope_pairs and (match := re.search(r"self_attn\.([qk])_proj\.", name)):
            heads = config["num_attention_heads" if match[1] == "q" else "num_key_value_heads"]
            if tensor.shape[0] % (2 * heads):
                raise WeightError(
                    f"{file.path}: {tensor.name} has {tensor.shape[0]} rows, not pairs of {heads} heads"
                )
            row_order = ("rope_pairs", heads)
        tensors[name] = TensorInfo(
            name, tensor.shape, tensor.type, tensor.nbytes, file.path, tensor.offset, row_order
        )
    return tensors


def hf_name(name: str, family: Family) -> str:
    """Hugging Face's name of a GGUF tensor; a name that the family does not know stays as it is."""
    if match := _LAYER.fullmatch(name):
        part = family.layer.get(match[2])
        return f"model.layers.{int(match[1])}.{part}.{match[3]}" if part else name
    stem, dot, kind = name.rpartition(".")
    return f"{_TOP[stem]}.{kind}" if dot and stem in _TOP else name


def rope_pairs(rows: int, heads: int) -> npt.NDArray[np.int32]:
    """`order[model row] = file row` for q or k of `heads` heads, `[rows]` i32.

    In the file, row 2 * j + half of a head is row half * (head_dim / 2) + j of the model's.
    """
    return np.arange(rows, dtype=np.int32).reshape(heads, -1, 2).transpose(0, 2, 1).reshape(-1)


def shortest(value: float) -> float:
    """A number that was stored as float32, as its author wrote it: 1e-05, not 9.99999975e-06."""
    with np.errstate(over="ignore"):
        short = np.float32(value)
    return float(str(short)) if float(short) == value else value


ROW_ORDERS: dict[str, Callable[[int, int], npt.NDArray[np.int32]]] = {"rope_pairs": rope_pairs}
