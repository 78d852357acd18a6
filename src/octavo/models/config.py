"""A model's configuration in one form, whatever wrote it.

Reads the keys of Hugging Face's config.json in the style of transformers 4 (rope_theta, rope_scaling)
and 5 (rope_parameters, possibly per layer type). Owns defaults, ranges and refusals: a key that would
change the arithmetic and that the family does not implement is a ConfigError. Builds no ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import ConfigError
from octavo.models.rope import Rope, is_positive, make_rope

Raw = Mapping[str, Any]
FULL, SLIDING = "full_attention", "sliding_attention"

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}

# Keys that change the arithmetic -> values that mean "off". A family lists those it implements.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "alibi": (None, False),
    "attention_multiplier": (None, 1.0),
    "attn_logit_softcapping": (None, 0, 0.0),
    "clip_qkv": (None,),
    "embedding_multiplier": (None, 1.0),
    "final_logit_softcapping": (None, 0, 0.0),
    "is_causal": (None, True),
    "kv_lora_rank": (None,),
    "layer_types": (None,),
    "logit_scale": (None, 1.0),
    "logits_scaling": (None, 1.0),
    "no_rope_layers": (None, []),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "qk_layernorm": (None, False),
    "quantization_config": (None,),
    "query_pre_attn_scalar": (None,),
    "residual_multiplier": (None, 1.0),
    "rope_interleaved": (None, False),
    "scale_emb": (None, 1.0),
    "sliding_window": (None,),
    "text_config": (None,),
    "use_bidirectional_attention": (None, False),
    "use_qk_norm": (None, False),
    "vision_config": (None,),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """`windows[i]` is the span of layer i (0 = all), `ropes[i]` its rotation."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    activation: str
    tie_embeddings: bool
    max_position: int
    windows: tuple[int, ...]
    ropes: tuple[Rope, ...]


class Reader:
    """Typed reads of a configuration; `defaults` are the family's own (transformers' class defaults)."""

    def __init__(self, config: Raw, defaults: Raw) -> None:
        self.config = config
        self.defaults = defaults
        self.model_type = str(config.get("model_type"))

    def get(self, key: str) -> Any:
        value = self.config.get(key)
        return self.defaults.get(key) if value is None else value

    def count(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._bad(key, value, "a positive integer")
        return value

    def number(self, key: str) -> float:
        value = self.get(key)
        if not is_positive(value):
            raise self._bad(key, value, "a positive number")
        return float(value)

    def cap(self, key: str) -> float:
        """A soft cap: absent or 0 = off = 0.0."""
        return self.number(key) if self.get(key) else 0.0

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if not isinstance(value, bool):
            raise self._bad(key, value, "true or false")
        return value

    def activation(self, *keys: str) -> str:
        """The first of `keys` that is given."""
        given = next((self.config[k] for k in keys if self.config.get(k) is not None), self.get(keys[0]))
        if given not in ACTIVATIONS:
            raise self._bad(keys[0], given, f"one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[given]

    def _bad(self, key: str, value: Any, allowed: str) -> ConfigError:
        given = "is missing" if value is None else f"is {value!r}"
        where = f"in the configuration of this {self.model_type} model"
        return ConfigError(f"{key} {given} {where}, allowed is {allowed}")


Windows = Callable[[Reader, int], list[int]]


def read_config(
    config: Raw,
    *,
    defaults: Raw,
    windows: Windows,
    implements: frozenset[str] = frozenset(),
    activation_keys: tuple[str, ...] = ("hidden_act",),
    max_length: int | None = None,
) -> ModelConfig:
    """Raises ConfigError, naming the key, for a missing or impossible value and for anything that the
    family does not implement. `windows(reader, num_layers)` gives the span of each layer."""
    refuse(config, implements)
    r = Reader(config, defaults)
    layers, hidden = r.count("num_hidden_layers"), r.count("hidden_size")
    heads = r.count("num_attention_heads")
    kv_heads = r.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ConfigError(f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    if r.get("head_dim") is None and hidden % heads:
        raise ConfigError(f"hidden_size {hidden} is no multiple of {heads} heads, and head_dim is missing")
    head_dim = r.count("head_dim", hidden // heads)
    spans = windows(r, layers)
    return ModelConfig(
        model_type=r.model_type,
        vocab_size=r.count("vocab_size"),
        hidden_size=hidden,
        intermediate_size=r.count("intermediate_size"),
        num_layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        eps=r.number("rms_norm_eps"),
        activation=r.activation(*activation_keys),
        tie_embeddings=r.flag("tie_word_embeddings"),
        max_position=r.count("max_position_embeddings"),
        windows=tuple(spans),
        ropes=_ropes(r, spans, head_dim, max_length),
    )


def refuse(config: Raw, implements: frozenset[str]) -> None:
    """Raises ConfigError for keys that would change the arithmetic and are not implemented."""
    for key, neutral in NEUTRAL.items():
        value = config.get(key)
        if key in implements or any(value is n or (value == n and type(value) is type(n)) for n in neutral):
            continue
        if key == "layer_types" and isinstance(value, list) and set(value) <= {FULL}:
            continue
        raise ConfigError(
            f"{key} = {value!r} is not supported for model_type {config.get('model_type')!r}",
            fix=f"only {' or '.join(repr(n) for n in neutral)} is",
        )


def layer_windows(r: Reader, layers: int, window: int | None) -> list[int]:
    """Spans by `layer_types`, where a sliding layer without a window sees everything."""
    types = r.config["layer_types"]
    if not isinstance(types, list) or len(types) != layers:
        raise ConfigError(f"layer_types must be a list of {layers} entries, one for each layer")
    unknown = sorted({str(t) for t in types} - {FULL, SLIDING})
    if unknown:
        raise ConfigError(f"layer_types holds {', '.join(unknown)}, allowed: {FULL}, {SLIDING}")
    return [(window or 0) if t == SLIDING else 0 for t in types]


def all_full(r: Reader, layers: int) -> list[int]:
    return [0] * layers


# ---- rotary parameters --------------------------------------------------------------------------


def _ropes(r: Reader, windows: list[int], head_dim: int, max_length: int | None) -> tuple[Rope, ...]:
    max_position = r.count("max_position_embeddings")
    made: dict[str, Rope] = {}
    ropes = []
    for window in windows:
        kind = SLIDING if window else FULL
        if kind not in made:
            params, theta = _rope_params(r, kind)
            partial = params.get("partial_rotary_factor", r.get("partial_rotary_factor"))
            if partial is not None and not (is_positive(partial) and partial <= 1):
                raise ConfigError(f"partial_rotary_factor is {partial!r}, allowed is a number in (0, 1]")
            dim = head_dim if partial is None else int(head_dim * partial)
            made[kind] = make_rope(
                params, theta=theta, dim=dim, max_position=max_position, max_length=max_length or max_position
            )
        ropes.append(made[kind])
    return tuple(ropes)


def _rope_params(r: Reader, kind: str) -> tuple[Raw, float]:
    """(parameters, theta) of layers of one kind, from whichever style the configuration has."""
    new, old = r.config.get("rope_parameters"), r.config.get("rope_scaling")
    for key, value in (("rope_parameters", new), ("rope_scaling", old)):
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{key} is {value!r}, allowed is a dictionary")
    local = r.get("rope_local_base_freq") if kind == SLIDING else None
    params: dict[str, Any]
    if isinstance(new, Mapping) and (FULL in new or SLIDING in new):
        if set(new) - {FULL, SLIDING}:
            raise ConfigError(f"rope_parameters mixes layer types with other keys: {', '.join(sorted(new))}")
        params = dict(new.get(kind) or {})
    elif local is not None:  # Gemma 3: scaling is for the full layers only
        params = {"rope_theta": local}
    else:
        params = dict(old or new or {})
    theta = params.get("rope_theta")
    if theta is None:
        theta = local if local is not None else r.get("rope_theta")
    if not is_positive(theta):
        raise ConfigError(f"rope_theta is {theta!r}, allowed is a positive number")
    original = r.config.get("original_max_position_embeddings")
    if original is not None and params.get("rope_type", params.get("type")) in ("llama3", "yarn"):
        params["original_max_position_embeddings"] = original
    return _with_factors(r, params), float(theta)


def _with_factors(r: Reader, params: dict[str, Any]) -> dict[str, Any]:
    """GGUF files of Llama 3 hold the result of the scaling instead of its parameters."""
    factors = r.config.get("rope_factors")
    if factors is None:
        return params
    if params.get("rope_type", "default") != "default":
        kind = params["rope_type"]
        raise ConfigError(f"rope_factors and rope_type {kind!r} are both given, allowed is one")
    return {**params, "rope_type": "factors", "factors": factors}
