"""Loads the native module and translates its errors. Owns no arithmetic.

The core raises ValueError (std::invalid_argument) for what a caller can fix; here it becomes a
WeightError or a ConfigError. A fault while a step runs is a KernelFault (raised by the core itself).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from octavo.errors import ConfigError, WeightError

try:
    from octavo.kernels import _native
except ImportError as error:  # a source tree that has not been built, or a module of another Python
    raise ConfigError(
        f"the native core cannot be loaded: {error}",
        fix="in a checkout `./run setup` builds it; elsewhere install the octavo wheel",
    ) from error

Buffer = _native.Buffer
PackMap = _native.PackMap
Program = _native.Program
Weight = _native.Weight

FORMATS: Final = ("f32", "f16", "bf16", "w8", "w4")

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
# (tensor type, bytes, rows, cols, row order or None): row i of the matrix is row order[i] of the bytes
Part = tuple[str, U8, int, int, I32 | None]


def isas() -> list[str]:
    """Instruction sets that this CPU can run, best last."""
    return _native.available_isas()


def best_isa() -> str:
    """The best set, or the one that OCTAVO_ISA names. Raises ConfigError when the CPU lacks that one."""
    try:
        return _native.best_isa()
    except ValueError as error:
        raise ConfigError(str(error), fix="unset OCTAVO_ISA or name one of these") from error


def tensor_types() -> list[str]:
    """Types of file tensors that can be packed and dequantised."""
    return _native.tensor_types()


def natural_format(type_name: str) -> str:
    """The packed format that keeps a tensor type's own lattice, or comes nearest."""
    try:
        return _native.natural_format(type_name)
    except ValueError as error:
        raise WeightError(str(error)) from error


def is_lossless(type_name: str, fmt: str) -> bool:
    """Whether packing `type_name` as `fmt` keeps every value exactly."""
    try:
        return _native.is_lossless(type_name, fmt)
    except ValueError as error:
        raise WeightError(str(error)) from error


def pack(
    parts: Sequence[Part], fmt: str = "file", *, interleave: bool = False, num_threads: int = 1
) -> _native.Weight:
    """Packs parts stacked by rows, or two parts (gate, up) interleaved, for the linear kernels.

    `fmt` is one of FORMATS, or "file": the natural format of the parts, the wider one when they differ.
    Streams from the parts' bytes (memory maps). Raises WeightError when bytes and shapes do not fit.
    """
    try:
        return _native.pack(list(parts), fmt, interleave, num_threads)
    except ValueError as error:
        raise WeightError(str(error)) from error


def packing_version() -> int:
    """Changes with the packed layouts and with what packing makes of values."""
    return _native.PACKING_VERSION


def map_packs(fd: int, size: int) -> PackMap:
    """The first `size` bytes of a file of packed matrices, mapped to read. Raises OSError."""
    try:
        return PackMap(fd, size)
    except (RuntimeError, ValueError) as error:
        raise OSError(str(error)) from error


def dequantise(
    type_name: str, data: U8, rows: int, cols: int, order: I32 | None = None, num_threads: int = 1
) -> F32:
    """`[rows, cols]` f32, bit-equal to the reference formulas. Raises WeightError when bytes are missing or left."""
    try:
        return _native.dequantise(type_name, data, rows, cols, order, num_threads)
    except ValueError as error:
        raise WeightError(str(error)) from error


def read_speed(num_bytes: int, num_threads: int, at_least_s: float = 0.1) -> float:
    """Bytes per second that the threads read together, again and again, from one piece of memory."""
    return _native.read_speed(num_bytes, num_threads, at_least_s)


def compute_speeds(isa: str, num_threads: int, at_least_s: float = 0.1) -> dict[str, float]:
    """Operations per second (a multiply-add is two) by kind: f32, bf16, int8, and the tile unit's where there is one.

    "bf16" is never below "f32": where the dot product of bf16 is slower, kernels widen to f32.
    """
    kinds = _native.compute_kinds(isa)
    speeds = {kind: _native.compute_speed(kind, isa, num_threads, at_least_s) for kind in kinds}
    return speeds | {"bf16": max(speeds["bf16"], speeds["f32"])}
