"""Rotary frequencies of every scaling that we know.

Owns the formulas. Does not know which layers use which parameters (models.config). Frequencies are
rounded to float32 where transformers rounds them, so that angles at large positions agree.

| rope_type | inverse frequency i, from f_i = theta^(-2i / dim) |
|---|---|
| default | f_i |
| linear | f_i / factor (Chen et al. 2023, arXiv:2306.15595) |
| dynamic | theta stretched for the longest length that will be served (NTK-aware) |
| llama3 | f_i above a high frequency, f_i / factor below a low one, a blend between |
| yarn | f_i / factor for slow pairs, f_i for fast ones, a blend between (Peng et al. 2023, arXiv:2309.00071) |
| factors | f_i / factors[i], the factors given by the file (GGUF rope_freqs) |

`dynamic` would change all frequencies with the length of the sequence, also for keys that are already
in the cache; law 1 needs one set, so it is taken for `max_length`, once, when the program is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import ConfigError

F32 = npt.NDArray[np.float32]


def is_positive(value: Any) -> bool:
    """A finite number above zero; true and false are no numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


@dataclass(frozen=True, slots=True)
class Rope:
    """`inv_freq` in radians per position, one per rotated pair; `attention_factor` on cosine and sine."""

    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class RopeInput:
    """`params` are the keys of the configuration's rope dictionary. Lengths in tokens."""

    params: Mapping[str, Any]
    theta: float
    dim: int  # rotated columns of a head
    max_position: int  # max_position_embeddings
    max_length: int  # longest sequence that will be served

    def number(self, key: str, default: float | None = None) -> float:
        value = self.params.get(key)
        if value is None:
            value = default
        if value is None or not is_positive(value):
            raise ConfigError(f"rope parameter {key} is {value!r}, allowed is a positive number")
        return float(value)


def _base(rope: RopeInput, theta: float | None = None) -> F32:
    """theta^(2i / dim), `[dim / 2]`; the exponent is rounded to float32 first, as torch does."""
    exponent = (np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)).astype(np.float64)
    return np.power(np.float64(rope.theta if theta is None else theta), exponent).astype(np.float32)


def _one_over(values: F32) -> F32:
    return (np.float32(1.0) / values).astype(np.float32)


def _default(rope: RopeInput) -> tuple[F32, float]:
    return _one_over(_base(rope)), 1.0


def _linear(rope: RopeInput) -> tuple[F32, float]:
    return _one_over(_base(rope)) / np.float32(rope.number("factor")), 1.0


def _dynamic(rope: RopeInput) -> tuple[F32, float]:
    if rope.dim <= 2:
        raise ConfigError(f"rope_type 'dynamic' needs more than 2 rotated columns, not {rope.dim}")
    factor = rope.number("factor")
    length = max(rope.max_length, rope.max_position)
    stretch = factor * length / rope.max_position - (factor - 1)
    return _one_over(_base(rope, rope.theta * stretch ** (rope.dim / (rope.dim - 2)))), 1.0


def _llama3(rope: RopeInput) -> tuple[F32, float]:
    factor, low, high = (rope.number(k) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    if high <= low:
        raise ConfigError(f"rope parameter high_freq_factor {high} must be above low_freq_factor {low}")
    original = rope.number("original_max_position_embeddings", rope.max_position)
    freq = _one_over(_base(rope))
    wavelength = np.float32(2 * math.pi) / freq
    smooth = (np.float32(original) / wavelength - np.float32(low)) / np.float32(high - low)
    blend = (1 - smooth) * freq / np.float32(factor) + smooth * freq
    scaled = np.where(wavelength > original / low, freq / np.float32(factor), blend)
    return np.where(wavelength < original / high, freq, scaled).astype(np.float32), 1.0


def _yarn(rope: RopeInput) -> tuple[F32, float]:
    if rope.theta <= 1:
        raise ConfigError(f"rope_theta is {rope.theta}, yarn needs a number above 1")
    original = rope.number("original_max_position_embeddings", rope.max_position)
    factor = rope.number("factor", rope.max_position / original)
    fast, slow = rope.number("beta_fast", 32), rope.number("beta_slow", 1)

    def dimension(turns: float) -> float:
        """The (fractional) pair whose wave turns that often in the original context."""
        return rope.dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(fast), dimension(slow)
    if rope.params.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001  # no division by zero
    base = _base(rope)
    ramp = (np.arange(rope.dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    keep = (1 - np.clip(ramp, 0, 1)).astype(np.float32)  # share of the unscaled frequency
    freq = _one_over(np.float32(factor) * base) * (1 - keep) + _one_over(base) * keep
    return freq, _yarn_attention(rope, factor)


def _yarn_attention(rope: RopeInput, factor: float) -> float:
    """Given, or 0.1 ln(factor) + 1 (the paper's fit), or a ratio of two such (DeepSeek's mscale)."""
    if rope.params.get("attention_factor") is not None:
        return rope.number("attention_factor")

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if rope.params.get("mscale") and rope.params.get("mscale_all_dim"):
        return mscale(rope.number("mscale")) / mscale(rope.number("mscale_all_dim"))
    return mscale(1.0)


def _factors(rope: RopeInput) -> tuple[F32, float]:
    factors = rope.params["factors"]
    if (
        not isinstance(factors, list | tuple)
        or len(factors) != rope.dim // 2
        or not all(map(is_positive, factors))
    ):
        raise ConfigError(f"rope_factors must be {rope.dim // 2} positive numbers, one for each rotated pair")
    divisors: F32 = np.array([float(f) for f in factors], np.float32)
    return _one_over(_base(rope)) / divisors, 1.0


_SCALED = ("factor", "original_max_position_embeddings")
ROPES: dict[str, tuple[Callable[[RopeInput], tuple[F32, float]], tuple[str, ...]]] = {
    "default": (_default, ()),
    "linear": (_linear, _SCALED),
    "dynamic": (_dynamic, _SCALED),
    "llama3": (_llama3, (*_SCALED, "low_freq_factor", "high_freq_factor")),
    "yarn": (
        _yarn,
        (*_SCALED, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "factors": (_factors, ("factors",)),
}
"""rope_type -> (formula, parameters it reads)."""

_COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


def make_rope(
    params: Mapping[str, Any], *, theta: float, dim: int, max_position: int, max_length: int
) -> Rope:
    """Raises ConfigError for an unknown type, and for any parameter that its formula does not read."""
    kind = params.get("rope_type") or params.get("type") or "default"
    if kind not in ROPES:
        raise ConfigError(f"rope_type {kind!r} is not supported, allowed: {', '.join(ROPES)}")
    formula, keys = ROPES[kind]
    unknown = sorted(set(params) - set(keys) - set(_COMMON))
    if unknown:
        raise ConfigError(
            f"rope parameter(s) {', '.join(unknown)} mean nothing to rope_type {kind!r}, "
            f"which reads {', '.join(keys) or 'none'}"
        )
    original = params.get("original_max_position_embeddings")
    if kind == "dynamic" and original not in (None, max_position):
        raise ConfigError(f"dynamic rope with original_max_position_embeddings {original} is not supported")
    if dim <= 0 or dim % 2:
        raise ConfigError(f"{dim} columns of a head would be rotated; an even, positive number is allowed")
    freq, attention_factor = formula(RopeInput(params, theta, dim, max_position, max_length))
    return Rope(tuple(float(f) for f in freq), float(attention_factor))
