"""Numbers without blocks: F32, F16, BF16. Every value is exact in float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

BLOCKS: dict[str, tuple[int, int]] = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2)}


def f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4")


def f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def bf16(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


EXPAND: dict[str, Callable[[Bytes], Floats]] = {"F32": f32, "F16": f16, "BF16": bf16}
