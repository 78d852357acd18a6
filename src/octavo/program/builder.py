"""ProgramBuilder: one method per op, used by the model files.

Owns naming, buffer ids and the checks made while building. Every method returns the buffer (or
buffers) that the op writes; each op writes new buffers, so that passes see values, not places. Does
not know fused ops (passes.fuse makes them) nor where a buffer will lie (passes.plan_memory).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from octavo.errors import ConfigError
from octavo.program.check import fill_attrs, output_rows, output_widths
from octavo.program.ops import Role
from octavo.program.program import Attr, Buffer, Op, Program, Rows, WeightRef
from octavo.wire.layout import KVLayout


class ProgramBuilder:
    """Weights are given by the checkpoint's module name; `.weight` and `.bias` are added here."""

    def __init__(self, name: str, kv: KVLayout, vocab_size: int) -> None:
        self.name = name
        self.kv = kv
        self.vocab_size = vocab_size
        self._buffers: list[Buffer] = []
        self._ops: list[Op] = []
        self._outputs: dict[str, int] = {}

    # ---- weights --------------------------------------------------------------------------------

    @staticmethod
    def _ref(name: str, shape: Sequence[int], role: Role) -> WeightRef:
        if any(n <= 0 for n in shape):
            raise ConfigError(f"weight {name!r} would be {list(shape)}; every size must be positive")
        return WeightRef(name, tuple(shape), role)

    def _matrix(self, module: str, shape: tuple[int, int], bias: bool) -> tuple[WeightRef, ...]:
        refs = (self._ref(f"{module}.weight", shape, "matrix"),)
        return (*refs, self._ref(f"{module}.bias", shape[:1], "vector")) if bias else refs

    # ---- ops ------------------------------------------------------------------------------------

    def embed(self, name: str, module: str, width: int, *, scale: float = 1.0) -> Buffer:
        table = self._ref(f"{module}.weight", (self.vocab_size, width), "embedding")
        return self._one("embed", name, (), (table,), {"scale": scale})

    def linear(
        self, name: str, x: Buffer, module: str, shape: tuple[int, int], *, bias: bool = False
    ) -> Buffer:
        """`shape` is the matrix's [out, in]."""
        return self._one("linear", name, (x,), self._matrix(module, shape, bias), {})

    def add(self, name: str, a: Buffer, b: Buffer) -> Buffer:
        return self._one("add", name, (a, b))

    def mul(self, name: str, a: Buffer, b: Buffer) -> Buffer:
        return self._one("mul", name, (a, b))

    def scale(self, name: str, x: Buffer, factor: float) -> Buffer:
        return self._one("scale", name, (x,), (), {"factor": factor})

    def rms_norm(
        self, name: str, x: Buffer, module: str, *, eps: float, group: int = 0, offset: float = 0.0
    ) -> Buffer:
        weight = self._ref(f"{module}.weight", (group or x.width,), "vector")
        return self._one("rms_norm", name, (x,), (weight,), {"eps": eps, "group": group, "offset": offset})

    def layer_norm(self, name: str, x: Buffer, module: str, *, eps: float, bias: bool = True) -> Buffer:
        refs = [self._ref(f"{module}.weight", (x.width,), "vector")]
        if bias:
            refs.append(self._ref(f"{module}.bias", (x.width,), "vector"))
        return self._one("layer_norm", name, (x,), tuple(refs), {"eps": eps})

    def rope(
        self,
        name: str,
        q: Buffer,
        k: Buffer,
        *,
        head_dim: int,
        inv_freq: tuple[float, ...],
        attention_factor: float = 1.0,
        interleaved: bool = False,
    ) -> tuple[Buffer, Buffer]:
        attrs: dict[str, Attr] = {
            "head_dim": head_dim,
            "rotary_dim": 2 * len(inv_freq),
            "interleaved": interleaved,
            "inv_freq": inv_freq,
            "attention_factor": attention_factor,
        }
        rotated_q, rotated_k = self._emit("rope", name, (q, k), (), attrs)
        return rotated_q, rotated_k

    def kv_write(self, name: str, k: Buffer, v: Buffer, *, layer: int) -> None:
        width = self.kv.kv_heads * self.kv.head_dim
        if k.width != width:
            raise ConfigError(
                f"op {name!r} (kv_write): k is [tokens, {k.width}] but the KV layout holds "
                f"{self.kv.kv_heads} heads of {self.kv.head_dim}, [tokens, {width}]"
            )
        self._emit("kv_write", name, (k, v), (), {"layer": layer})

    def attend(
        self,
        name: str,
        q: Buffer,
        *,
        layer: int,
        heads: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: str | None = None,
    ) -> Buffer:
        """`sinks` is the full name of a vector `[heads]`."""
        group, _ = self.kv.place(layer)
        if self.kv.groups[group].window != window:
            raise ConfigError(
                f"op {name!r} (attend): window {window} but the KV layout keeps "
                f"{self.kv.groups[group].window or 'all'} positions of layer {layer}"
            )
        attrs: dict[str, Attr] = {
            "layer": layer,
            "heads": heads,
            "kv_heads": self.kv.kv_heads,
            "head_dim": self.kv.head_dim,
            "scale": scale,
            "window": window,
            "softcap": softcap,
        }
        refs = (self._ref(sinks, (heads,), "vector"),) if sinks else ()
        return self._one("attend", name, (q,), refs, attrs)

    def silu_mul(self, name: str, gate: Buffer, up: Buffer) -> Buffer:
        return self._one("silu_mul", name, (gate, up))

    def gelu_mul(self, name: str, gate: Buffer, up: Buffer) -> Buffer:
        return self._one("gelu_mul", name, (gate, up))

    def act(self, name: str, x: Buffer, fn: str) -> Buffer:
        return self._one("act", name, (x,), (), {"fn": fn})

    def gather_rows(self, name: str, x: Buffer) -> Buffer:
        return self._one("gather_rows", name, (x,))

    def logits(self, name: str, x: Buffer, module: str, *, softcap: float = 0.0) -> Buffer:
        refs = self._matrix(module, (self.vocab_size, x.width), bias=False)
        return self._one("logits", name, (x,), refs, {"softcap": softcap})

    def soft_cap(self, name: str, x: Buffer, cap: float) -> Buffer:
        return self._one("soft_cap", name, (x,), (), {"cap": cap})

    # ---- the program ----------------------------------------------------------------------------

    def output(self, name: str, buffer: Buffer) -> None:
        self._known(f"output {name!r}", buffer)
        self._outputs[name] = buffer.id

    def build(self) -> Program:
        """The program: every op was checked when it was added."""
        return Program(
            name=self.name,
            buffers=tuple(self._buffers),
            ops=tuple(self._ops),
            kv=self.kv,
            vocab_size=self.vocab_size,
            outputs=dict(self._outputs),
        )

    def _known(self, user: str, buffer: Buffer) -> None:
        if buffer.id >= len(self._buffers) or self._buffers[buffer.id] is not buffer:
            raise ConfigError(f"{user}: buffer {buffer.name!r} belongs to another program")

    def _one(
        self,
        kind: str,
        name: str,
        inputs: tuple[Buffer, ...],
        weights: tuple[WeightRef, ...] = (),
        attrs: Mapping[str, Attr] | None = None,
    ) -> Buffer:
        (output,) = self._emit(kind, name, inputs, weights, attrs or {})
        return output

    def _emit(
        self,
        kind: str,
        name: str,
        inputs: tuple[Buffer, ...],
        weights: tuple[WeightRef, ...],
        attrs: Mapping[str, Attr],
    ) -> list[Buffer]:
        for buffer in inputs:
            self._known(f"op {name!r} ({kind})", buffer)
        op = Op(kind, name, tuple(b.id for b in inputs), (), weights, fill_attrs(kind, name, attrs))
        widths = output_widths(op, inputs)
        rows = cast(Rows, output_rows(op, inputs))
        first = len(self._buffers)
        suffixes = [""] if len(widths) == 1 else [f".{i}" for i in range(len(widths))]
        made = [
            Buffer(first + i, name + suffix, rows, width)
            for i, (suffix, width) in enumerate(zip(suffixes, widths, strict=True))
        ]
        self._buffers += made
        self._ops.append(Op(kind, name, op.inputs, tuple(b.id for b in made), weights, op.attrs))
        return made
