"""Weights of a Program as torch tensors.

Owns stacking and interleaving of parts and the format that matrices are kept in. Does not know file
formats (ModelSource) or block formats (octavo.quant).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from octavo.errors import ConfigError, WeightError
from octavo.program.program import Program, WeightRef
from octavo.quant import dequantise
from octavo.weights.source import ModelSource

# What `options.weights` asks for -> what matrices are kept in. Block formats are expanded: torch has
# no product for them that would be an oracle.
STORED = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "file": torch.float32,
    "w8": torch.float32,
    "w4": torch.float32,
}


def read_floats(source: ModelSource, name: str) -> npt.NDArray[np.float32]:
    """A tensor of the model in its own row order, `shape` f32."""
    raw = source.read(name)
    shape = raw.info.shape
    cols = shape[-1] if shape else 1
    rows = int(np.prod(shape[:-1], dtype=np.int64)) if len(shape) > 1 else 1
    values = dequantise(raw.data, raw.info.type, rows, cols).reshape(shape)
    return values if raw.row_order is None else values[raw.row_order]


class Weights:
    """`dtype` is what ops compute in; matrices are kept as `stored` and widened when used."""

    def __init__(self, stored: str, dtype: torch.dtype, device: torch.device) -> None:
        if stored not in STORED:
            allowed = ", ".join(STORED)
            raise ConfigError(f"weights {stored!r} is not known to the torch executor, allowed: {allowed}")
        self.stored = STORED[stored]
        self.dtype = dtype
        self.device = device
        self._tensors: dict[tuple[object, ...], torch.Tensor] = {}

    def load(self, program: Program, source: ModelSource) -> None:
        for op in program.ops:
            for ref in op.weights:
                key = self._key(ref)
                if key not in self._tensors:
                    self._tensors[key] = self._read(ref, source)

    def get(self, ref: WeightRef, dtype: torch.dtype) -> torch.Tensor:
        return self._tensors[self._key(ref)].to(dtype)

    def rows(self, ref: WeightRef, index: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return self._tensors[self._key(ref)][index].to(dtype)

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self._tensors.values())

    def _key(self, ref: WeightRef) -> tuple[object, ...]:
        """Tied weights are one tensor, unless their roles are kept in different formats."""
        return (ref.parts or (ref.name,), ref.interleave, self._kept(ref))

    def _kept(self, ref: WeightRef) -> torch.dtype:
        return self.stored if ref.role == "matrix" else torch.float32

    def _read(self, ref: WeightRef, source: ModelSource) -> torch.Tensor:
        arrays = []
        for name, shape in ref.tensors().items():
            array = read_floats(source, name)
            if array.shape != shape:
                found = f"{list(array.shape)} in {source.path}"
                raise WeightError(f"tensor {name} is {found}, the model needs {list(shape)}")
            arrays.append(array)
        joined = np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
        if ref.interleave:
            joined = np.stack(arrays, 1).reshape(ref.shape)
        return torch.from_numpy(np.array(joined)).to(device=self.device, dtype=self._kept(ref))
