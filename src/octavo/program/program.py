"""The Program: what a model file builds, passes rewrite and executors run.

A buffer's leading dimension is the step's token count ("tokens") or its number of sampling rows
("samples"); only the width is stored. A buffer may be a *view*: columns `offset .. offset + width`
of its parent (this is how one product writes q, k and v).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from octavo.wire.layout import KVLayout

Rows = Literal["tokens", "samples"]
Attr = int | float | str | bool | tuple[int, ...] | tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Buffer:
    """`[rows, width]` of `dtype` ("f32" or "i32"), or a view of columns of `parent`."""

    id: int
    name: str
    rows: Rows
    width: int
    dtype: str = "f32"
    parent: int | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class WeightRef:
    """A weight as the checkpoint names it (Hugging Face names, whatever the file format).

    `role` decides the packed form: "matrix" `[out, in]` (linear, logits), "embedding" `[vocab, d]`,
    "vector" (norms, biases: always f32). After fusing, one ref has several `parts`, whose rows are
    stacked in that order, or interleaved row by row when `interleave` (gate and up). `part_rows[i]` is
    the number of rows that part i brings.
    """

    name: str
    shape: tuple[int, ...]
    role: Literal["matrix", "embedding", "vector"]
    parts: tuple[str, ...] = ()  # empty = (name,)
    interleave: bool = False
    part_rows: tuple[int, ...] = ()  # empty = (shape[0],)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Checkpoint tensors behind it, with their shapes."""
        if not self.parts:
            return {self.name: self.shape}
        return {name: (rows, *self.shape[1:]) for name, rows in zip(self.parts, self.part_rows, strict=True)}


@dataclass(frozen=True, slots=True)
class Op:
    kind: str  # a name of ops.OPS
    name: str  # e.g. "layers.3.attn.qkv"; shown by `octavo explain` and in faults
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    weights: tuple[WeightRef, ...] = ()
    attrs: Mapping[str, Attr] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Program:
    """`outputs` maps names ("logits", "hidden") to buffer ids."""

    name: str
    buffers: tuple[Buffer, ...]
    ops: tuple[Op, ...]
    kv: KVLayout
    vocab_size: int
    outputs: Mapping[str, int]
    arena: tuple[int, ...] | None = None  # plan_memory: byte offset per row-unit, see passes.plan_memory
