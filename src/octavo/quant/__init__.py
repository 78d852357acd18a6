"""Weight formats as data: how elements lie in the blocks of a file, and how they come back as floats.

One file per family: plain (F32, F16, BF16), legacy (Q4_0 .. Q8_0), kquants (Q2_K .. Q6_K), iq (IQ4_NL);
`formats` holds the forms that executors pack weights into. Knows neither files nor models.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.errors import WeightError
from octavo.quant import iq, kquants, legacy, plain

BLOCKS: dict[str, tuple[int, int]] = {**plain.BLOCKS, **legacy.BLOCKS, **kquants.BLOCKS, **iq.BLOCKS}
"""type -> (elements of a block, bytes of a block)."""

_EXPAND = {**plain.EXPAND, **legacy.EXPAND, **kquants.EXPAND, **iq.EXPAND}
_BLOCKS_AT_ONCE = 1 << 14  # bounds the temporaries to some tens of MB, whatever the matrix


def row_bytes(type: str, cols: int) -> int:
    """Bytes of one row of `cols` elements. Raises WeightError for an unknown type or a broken block."""
    if type not in BLOCKS:
        raise WeightError(f"tensor type {type} is not supported", fix=f"use one of {', '.join(BLOCKS)}")
    elements, nbytes = BLOCKS[type]
    if cols < 1 or cols % elements:
        raise WeightError(f"a row of {cols} elements cannot be {type}, whose blocks hold {elements}")
    return cols // elements * nbytes


def dequantise(data: npt.NDArray[np.uint8], type: str, rows: int, cols: int) -> npt.NDArray[np.float32]:
    """Floats of a tensor's bytes, `[rows, cols]`, each exactly what the format's definition says.

    Products and sums are taken in float32 in the order of the reference definition, so the result is
    bit-equal to that of other readers. Raises WeightError when `data` is not `rows` rows of that type.
    """
    per_row = row_bytes(type, cols)
    if rows < 0 or data.size != rows * per_row:
        raise WeightError(
            f"{rows} rows of {cols} {type} elements take {rows * per_row} bytes, not {data.size}"
        )
    elements, nbytes = BLOCKS[type]
    if nbytes < 16:  # plain numbers: group them, a block of one element is no unit of work
        elements, nbytes = cols, per_row
    blocks = np.ascontiguousarray(data).reshape(-1, nbytes)  # [blocks, nbytes] u8
    out = np.empty((blocks.shape[0], elements), np.float32)  # [blocks, elements] f32
    at_once = max(1, _BLOCKS_AT_ONCE * 256 // elements)
    for start in range(0, blocks.shape[0], at_once):
        out[start : start + at_once] = _EXPAND[type](blocks[start : start + at_once])
    return out.reshape(rows, cols)
