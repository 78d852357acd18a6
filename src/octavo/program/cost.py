"""What a step has to do at least: arithmetic, bytes of weights and KV, bytes of buffers, op by op.

Owns the counting, from shapes alone. Does not know how fast a machine is, nor how an op is computed:
every byte counts once, as if caches were perfect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.program.program import Op, Program, WeightRef
from octavo.quant.formats import FORMATS, natural, packed_bytes
from octavo.weights.source import ModelSource

_UNITS: Mapping[str, str] = {"f32": "f32", "f16": "f32", "bf16": "bf16", "w8": "int8", "w4": "int8"}
_TILE_ROWS = 16
_LEAST_TILE_ROWS = 32


def unit_of(form: str, isa: str, rows: int) -> str:
    """The arithmetic that products of a packed format do, of the kinds that native.compute_speeds measures.

    On tiles w8 multiplies as bf16 (docs/adr/0009), and w4 as integers from 32 rows on, unless more than a sixth of
    the rows would be computed twice (csrc/linear_int_amx.cpp).
    """
    if isa == "avx512_amx":
        if form == "w8":
            return "bf16"
        if form == "w4" and rows >= _LEAST_TILE_ROWS and 6 * (-rows % _TILE_ROWS) <= rows:
            return "int8 tile"
    return _UNITS[form]


@dataclass(frozen=True, slots=True)
class StepShape:
    """`new[i]` tokens of row i are computed behind `context[i]` tokens in the cache; `samples` rows sample."""

    new: tuple[int, ...]
    context: tuple[int, ...]
    samples: int

    @property
    def tokens(self) -> int:
        return sum(self.new)


@dataclass(frozen=True, slots=True)
class Cost:
    """`unit`: the arithmetic of `ops` ("f32", "bf16", "int8", "int8 tile"). A multiply-add is two ops."""

    ops: float = 0.0
    unit: str = "f32"
    streamed_bytes: int = 0  # weights and KV: too large for the nearer caches
    buffer_bytes: int = 0  # inputs and outputs, which a cache may hold


def packed_form(ref: WeightRef, source: ModelSource, choice: str, *, is_vocabulary: bool = False) -> str:
    """The format that a matrix is packed in when `choice` (ExecutorOptions.weights) is asked for.

    The vocabulary matrix keeps 8 bits where the file has more than 4 (executors.native says why).
    """
    if choice != "file":
        return "w8" if is_vocabulary and choice == "w4" else choice
    forms = {natural(source.tensors[name].type) for name in ref.tensors() if name in source.tensors}
    return max(forms, key=lambda form: FORMATS[form].bits)


def cost_of(op: Op, program: Program, source: ModelSource, choice: str, shape: StepShape, isa: str) -> Cost:
    """The least that `op` does in a step of `shape` with the kernels of `isa`."""
    buffers = [program.buffers[i] for i in {*op.inputs, *op.outputs}]
    rows = {"tokens": shape.tokens, "samples": shape.samples}
    moved = sum(4 * b.width * rows[b.rows] for b in buffers)
    attrs: Mapping[str, Any] = op.attrs
    if op.kind == "attend":
        return _attention(attrs, program, shape, moved)
    if op.kind == "embed":
        info = source.tensors[op.weights[0].name]
        return Cost(0, "f32", info.nbytes // info.shape[0] * shape.tokens, moved)
    if op.kind == "kv_write":
        kv = program.kv
        return Cost(0, "f32", shape.tokens * _kv_token_bytes(program), 2 * 4 * kv.kv_heads * kv.head_dim)
    matrices = [ref for ref in op.weights if ref.role == "matrix"]
    if not matrices:
        return Cost(0, "f32", 0, moved)
    ref = matrices[0]
    form = packed_form(ref, source, choice, is_vocabulary=op.kind == "logits")
    outputs, inputs = ref.shape
    num_rows = rows[program.buffers[op.outputs[0]].rows]
    if op.kind == "logits":
        num_rows = shape.samples
    ops = 2.0 * num_rows * outputs * inputs
    return Cost(ops, unit_of(form, isa, num_rows), packed_bytes(form, outputs, inputs), moved)


def _attention(attrs: Mapping[str, Any], program: Program, shape: StepShape, moved: int) -> Cost:
    """Products of queries and keys, and of weights and values, over the positions that each query sees."""
    window = int(attrs["window"])
    pairs = keys = 0
    for new, context in zip(shape.new, shape.context, strict=True):
        seen = [min(context + i + 1, window or context + i + 1) for i in range(new)]
        pairs += sum(seen)
        keys += min(context + new, seen[-1] + new - 1)
    heads, head_dim = int(attrs["heads"]), int(attrs["head_dim"])
    unit = "bf16" if program.kv.dtype == "bf16" else "f32"
    return Cost(4.0 * heads * head_dim * pairs, unit, keys * _kv_token_bytes(program), moved)


def _kv_token_bytes(program: Program) -> int:
    """Of one layer."""
    kv = program.kv
    return 2 * kv.kv_heads * kv.head_dim * {"bf16": 2, "f16": 2, "f32": 4}[kv.dtype]
