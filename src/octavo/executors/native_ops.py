"""How each op of the table is recorded in the C++ core: one short function per op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from octavo.executors.base import F32
from octavo.kernels.native import Buffer, Program, Weight
from octavo.program import program as ir
from octavo.program.program import Op
from octavo.weights.source import RawTensor


class Bound(Protocol):
    """What ops are recorded into: a core, buffers that have a place in it, and weights."""

    @property
    def program(self) -> ir.Program: ...

    @property
    def core(self) -> Program: ...

    @property
    def views(self) -> Mapping[int, Buffer]: ...

    def buffer(self, index: int) -> ir.Buffer: ...

    def read(self, name: str) -> RawTensor: ...

    def matrix(self, ref: ir.WeightRef, *, is_vocabulary: bool = False) -> Weight: ...

    def vector(self, ref: ir.WeightRef) -> F32: ...


class Recorder:
    """One op beside the executor that records it: its operands as the core knows them."""

    def __init__(self, executor: Bound, op: Op) -> None:
        self.executor, self.core, self.op = executor, executor.core, op
        self.name = op.name
        self.inputs = [executor.views[b] for b in op.inputs]
        self.attrs: Any = op.attrs  # the builder checked names and types against the op table

    @property
    def outputs(self) -> list[Buffer]:
        return [self.executor.views[b] for b in self.op.outputs]

    def vector(self, index: int) -> F32 | None:
        return self.executor.vector(self.op.weights[index]) if index < len(self.op.weights) else None

    def required(self, index: int) -> F32:
        values = self.vector(index)
        if values is None:
            raise ValueError(f"op {self.name!r} has no weight {index}")
        return values

    def product(self) -> Buffer:
        """The one buffer that a product fills: the output, or the parent of the outputs."""
        first = self.executor.buffer(self.op.outputs[0])
        return self.executor.views[
            first.id if first.parent is None or len(self.op.outputs) == 1 else first.parent
        ]

    def place(self) -> dict[str, Any]:
        """Where the KV of the op's layer lies."""
        kv = self.executor.program.kv
        group, index = kv.place(self.attrs["layer"])
        return {
            "group": group,
            "index": index,
            "head_dim": kv.head_dim,
            "kv_heads": kv.kv_heads,
            "dtype": kv.dtype,
        }


def _embed(r: Recorder) -> None:
    raw = r.executor.read(r.op.weights[0].name)
    r.core.embed(r.name, r.outputs[0], raw.info.type, raw.data, raw.info.shape[0], r.attrs["scale"])


def _linear(r: Recorder) -> None:
    residual = r.inputs[1] if r.attrs["residual"] else None
    r.core.linear(r.name, r.inputs[0], r.product(), r.executor.matrix(r.op.weights[0]), r.vector(1), residual)


def _linear_gated(r: Recorder) -> None:
    weight = r.executor.matrix(r.op.weights[0])
    r.core.linear(r.name, r.inputs[0], r.outputs[0], weight, r.vector(1), None, r.attrs["fn"])


def _logits(r: Recorder) -> None:
    r.core.logits(
        r.name, r.inputs[0], r.executor.matrix(r.op.weights[0], is_vocabulary=True), r.attrs["softcap"]
    )


def _rms_norm(r: Recorder) -> None:
    a = r.attrs
    r.core.rms_norm(r.name, r.inputs[0], r.outputs[0], r.required(0), a["eps"], a["offset"], a["group"])


def _add_rms_norm(r: Recorder) -> None:
    a = r.attrs
    (x, residual), (total, y) = r.inputs, r.outputs
    r.core.add_rms_norm(r.name, x, residual, total, y, r.required(0), a["eps"], a["offset"])


def _layer_norm(r: Recorder) -> None:
    r.core.layer_norm(r.name, r.inputs[0], r.outputs[0], r.required(0), r.vector(1), r.attrs["eps"])


def _rope(r: Recorder) -> None:
    a = r.attrs
    (q, k), (q_out, k_out) = r.inputs, r.outputs
    r.core.rope(
        r.name,
        q,
        k,
        q_out,
        k_out,
        a["head_dim"],
        a["rotary_dim"],
        list(a["inv_freq"]),
        a["attention_factor"],
        a["interleaved"],
    )


def _kv_write(r: Recorder) -> None:
    k, v = r.inputs
    r.core.kv_write(r.name, k, v, **r.place())


def _attend(r: Recorder) -> None:
    a = r.attrs
    r.core.attend(
        r.name,
        r.inputs[0],
        r.outputs[0],
        heads=a["heads"],
        scale=a["scale"],
        window=a["window"],
        softcap=a["softcap"],
        sinks=r.vector(0),
        **r.place(),
    )


def _gather_rows(r: Recorder) -> None:
    r.core.gather_rows(r.name, r.inputs[0], r.outputs[0])


def _binary(method: Callable[..., None]) -> Callable[[Recorder], None]:
    return lambda r: method(r.core, r.name, *r.inputs, r.outputs[0])


def _unary(method: Callable[..., None], attribute: str) -> Callable[[Recorder], None]:
    return lambda r: method(r.core, r.name, r.inputs[0], r.outputs[0], r.attrs[attribute])


RECORDERS: dict[str, Callable[[Recorder], None]] = {
    "embed": _embed,
    "linear": _linear,
    "linear_gated": _linear_gated,
    "logits": _logits,
    "rms_norm": _rms_norm,
    "add_rms_norm": _add_rms_norm,
    "layer_norm": _layer_norm,
    "rope": _rope,
    "kv_write": _kv_write,
    "attend": _attend,
    "gather_rows": _gather_rows,
    "add": _binary(Program.add),
    "mul": _binary(Program.mul),
    "silu_mul": _binary(Program.silu_mul),
    "gelu_mul": _binary(Program.gelu_mul),
    "scale": _unary(Program.scale, "factor"),
    "soft_cap": _unary(Program.soft_cap, "cap"),
    "act": _unary(Program.act, "fn"),
}
