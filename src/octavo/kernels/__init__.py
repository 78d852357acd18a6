"""The typed face of the native core (csrc/). Knows numpy and the core's formats, no model and no request."""

from __future__ import annotations

from octavo.kernels.native import (
    FORMATS,
    Buffer,
    Program,
    Weight,
    best_isa,
    compute_speeds,
    dequantise,
    is_lossless,
    isas,
    natural_format,
    pack,
    read_speed,
    tensor_types,
)

__all__ = [
    "FORMATS",
    "Buffer",
    "Program",
    "Weight",
    "best_isa",
    "compute_speeds",
    "dequantise",
    "is_lossless",
    "isas",
    "natural_format",
    "pack",
    "read_speed",
    "tensor_types",
]
