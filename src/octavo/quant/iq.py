"""Blocks whose nibbles index a table of levels: IQ4_NL (32 elements, one f16 scale)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from octavo.quant.legacy import half, nibbles

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

BLOCKS: dict[str, tuple[int, int]] = {"IQ4_NL": (32, 18)}

LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)  # the format's sixteen levels; part of its definition


def iq4_nl(blocks: Bytes) -> Floats:
    return half(blocks, 0) * LEVELS.astype(np.float32)[nibbles(blocks[:, 2:])]


EXPAND: dict[str, Callable[[Bytes], Floats]] = {"IQ4_NL": iq4_nl}
