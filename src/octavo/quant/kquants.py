"""Super-blocks of 256 whose groups have scales (and minima) quantised once more: Q2_K .. Q6_K.

A value is `(d * scale) * q - (dmin * minimum)`, where d and dmin are f16 and the rest small integers;
Q3_K and Q6_K have signed q and no minimum. Groups are of 16 (Q2_K, Q3_K, Q6_K) or 32 (Q4_K, Q5_K).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from octavo.quant.legacy import half

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

BLOCKS: dict[str, tuple[int, int]] = {
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}

_PAIRS = np.array([0, 2, 4, 6], np.uint8)  # shifts of the four 2-bit fields of a byte
_BITS = np.arange(8, dtype=np.uint8)


def _fields(packed: Bytes, shifts: npt.NDArray[np.uint8], mask: int, run: int) -> Bytes:
    """Bytes `[n, k * run]` -> `[n, k, len(shifts), run]`: each run of bytes gives one run of elements a shift."""
    runs = packed.reshape(packed.shape[0], -1, 1, run)
    return (runs >> shifts[None, None, :, None]) & np.uint8(mask)


def _sixes(packed: Bytes) -> tuple[Floats, Floats]:
    """The 8 scales and 8 minima of 6 bits in the 12 bytes of Q4_K and Q5_K, each `[n, 8, 1]`.

    Bytes 0..3 and 4..7 hold scales and minima 0..3 in their low 6 bits; bytes 8..11 hold the low nibbles
    of scales (low) and minima (high) 4..7, whose upper two bits are the top bits of bytes 0..7.
    """
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((a & 63, (c & 15) | (a >> 6 << 4)), axis=1)
    minima = np.concatenate((b & 63, (c >> 4) | (b >> 6 << 4)), axis=1)
    return scales.astype(np.float32)[:, :, None], minima.astype(np.float32)[:, :, None]


def q2_k(blocks: Bytes) -> Floats:
    n = blocks.shape[0]
    scales = (blocks[:, 0:16] & 15).astype(np.float32) * half(blocks, 80)  # [n, 16]
    minima = (blocks[:, 0:16] >> 4).astype(np.float32) * half(blocks, 82)
    q = _fields(blocks[:, 16:80], _PAIRS, 3, 32).reshape(n, 16, 16).astype(np.float32)
    return (scales[:, :, None] * q - minima[:, :, None]).reshape(n, 256)


def q3_k(blocks: Bytes) -> Floats:
    n = blocks.shape[0]
    low = blocks[:, 96:104]  # the 16 scales' low nibbles: 0..7 low, 8..15 high
    low = np.concatenate((low & 15, low >> 4), axis=1)
    high = _fields(blocks[:, 104:108], _PAIRS, 3, 4).reshape(n, 16)
    scales = ((low | (high << 4)).astype(np.int16) - 32).astype(np.float32) * half(blocks, 108)
    q = _fields(blocks[:, 32:96], _PAIRS, 3, 32).reshape(n, 256)
    is_set = _fields(blocks[:, 0:32], _BITS, 1, 32).reshape(n, 256)  # a cleared bit means minus 4
    signed = q.astype(np.int16) - ((is_set ^ 1) << 2)
    return (scales[:, :, None] * signed.reshape(n, 16, 16).astype(np.float32)).reshape(n, 256)


def q4_k(blocks: Bytes) -> Floats:
    n = blocks.shape[0]
    scales, minima = _sixes(blocks[:, 4:16])
    scales, minima = scales * half(blocks, 0)[:, :, None], minima * half(blocks, 2)[:, :, None]
    q = _fields(blocks[:, 16:], _PAIRS[[0, 2]], 15, 32).reshape(n, 8, 32)
    return (scales * q.astype(np.float32) - minima).reshape(n, 256)


def q5_k(blocks: Bytes) -> Floats:
    n = blocks.shape[0]
    scales, minima = _sixes(blocks[:, 4:16])
    scales, minima = scales * half(blocks, 0)[:, :, None], minima * half(blocks, 2)[:, :, None]
    high = _fields(blocks[:, 16:48], _BITS, 1, 32).reshape(n, 8, 32)
    q = _fields(blocks[:, 48:], _PAIRS[[0, 2]], 15, 32).reshape(n, 8, 32) | (high << 4)
    return (scales * q.astype(np.float32) - minima).reshape(n, 256)


def q6_k(blocks: Bytes) -> Floats:
    n = blocks.shape[0]
    low = _fields(blocks[:, 0:128], _PAIRS[[0, 2]], 15, 64).reshape(n, 256)
    high = _fields(blocks[:, 128:192], _PAIRS, 3, 32).reshape(n, 256)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32) * half(blocks, 208)
    q = (low | (high << 4)).astype(np.int16) - 32
    return (scales[:, :, None] * q.reshape(n, 16, 16).astype(np.float32)).reshape(n, 256)


EXPAND: dict[str, Callable[[Bytes], Floats]] = {
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
}
