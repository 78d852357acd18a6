"""One tensor of a file: its header, and its bytes as they lie there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's header. `type` is "F32", "F16", "BF16" or a GGUF block type ("Q4_K", ...).

    `shape` is outermost first: a matrix is [out, in] and a row of it is contiguous.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    nbytes: int
    file: str
    offset: int  # absolute, in `file`
    row_order: tuple[str, int] | None = None  # ("rope_pairs", heads): rows lie permuted, see weights.names


@dataclass(slots=True)
class RawTensor:
    """Bytes of a tensor as they lie in the file (a read-only view of the memory map)."""

    info: TensorInfo
    data: npt.NDArray[np.uint8]  # [nbytes]
    row_order: npt.NDArray[np.int32] | None = None  # row i of the model's tensor = row row_order[i] of `data`
