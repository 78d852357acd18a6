"""Blocks of 32 with one scale (and, in the _1 types, a minimum): Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.

Layout: f16 scale, [f16 minimum], [u32 fifth bits], nibbles. Byte i of the nibbles holds element i (low)
and element i + 16 (high); bit i of the fifth bits belongs to element i.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

BLOCKS: dict[str, tuple[int, int]] = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
}


def half(blocks: Bytes, at: int) -> Floats:
    """The f16 at byte `at` of every block, as a column `[blocks, 1]`."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def nibbles(packed: Bytes) -> npt.NDArray[np.int16]:
    """`[n, 16]` bytes -> `[n, 32]` values 0..15."""
    return np.concatenate((packed & 15, packed >> 4), axis=1).astype(np.int16)


def _fifth_bits(packed: Bytes) -> npt.NDArray[np.int16]:
    """`[n, 4]` bytes -> `[n, 32]` values 0 or 16."""
    return np.unpackbits(packed, axis=1, bitorder="little").astype(np.int16) << 4


def q4_0(blocks: Bytes) -> Floats:
    return half(blocks, 0) * (nibbles(blocks[:, 2:]) - 8).astype(np.float32)


def q4_1(blocks: Bytes) -> Floats:
    return half(blocks, 0) * nibbles(blocks[:, 4:]).astype(np.float32) + half(blocks, 2)


def q5_0(blocks: Bytes) -> Floats:
    q = nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return half(blocks, 0) * (q - 16).astype(np.float32)


def q5_1(blocks: Bytes) -> Floats:
    q = nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return half(blocks, 0) * q.astype(np.float32) + half(blocks, 2)


def q8_0(blocks: Bytes) -> Floats:
    return half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


EXPAND: dict[str, Callable[[Bytes], Floats]] = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
}
