"""A Program as text, for `octavo explain` and for people who debug passes."""

from __future__ import annotations

from octavo.program.passes.plan_memory import arena_row_bytes, row_bytes
from octavo.program.program import Attr, Buffer, Op, Program, WeightRef


def dump(program: Program) -> str:
    """One line per op: position, name, kind, operands with widths, weights, attributes."""
    lines = [f"program {program.name}: {len(program.ops)} ops, vocabulary {program.vocab_size}"]
    lines += [
        f"  kv group {g}: {len(group.layers)} layers {_span(group.layers)}, "
        + (f"window {group.window}" if group.window else "full attention")
        for g, group in enumerate(program.kv.groups)
    ]
    lines.append(
        f"  kv block: {program.kv.block_size} tokens, {program.kv.kv_heads} heads of {program.kv.head_dim}, "
        f"{program.kv.dtype}, {program.kv.block_bytes:,} bytes"
    )
    if program.arena is not None:
        sizes = arena_row_bytes(program)
        roots = [b for b in program.buffers if b.parent is None]
        apart = sum(row_bytes(b) for b in roots if b.rows == "tokens")
        lines.append(
            f"  arena: {sizes['tokens']:,} bytes a token (without sharing {apart:,}), "
            f"{sizes['samples']:,} bytes a sampling row"
        )
    lines += [f"{index:5d}  {_op(program, op)}" for index, op in enumerate(program.ops)]
    lines += [f"output {name} = {_buffer(program.buffers[b])}" for name, b in program.outputs.items()]
    return "\n".join(lines) + "\n"


def _op(program: Program, op: Op) -> str:
    inputs = ", ".join(_buffer(program.buffers[b]) for b in op.inputs)
    outputs = ", ".join(_buffer(program.buffers[b]) for b in op.outputs)
    weights = "".join(f"  {_weight(w)}" for w in op.weights)
    attrs = "".join(f" {key}={_attr(value)}" for key, value in op.attrs.items())
    arrow = f" -> {outputs}" if outputs else ""
    return f"{op.name}: {op.kind}({inputs}){arrow}{weights}{attrs}"


def _buffer(buffer: Buffer) -> str:
    place = "" if buffer.parent is None else f"@{buffer.parent}+{buffer.offset}"
    return f"%{buffer.id}{place}[{buffer.rows}, {buffer.width}]"


def _weight(ref: WeightRef) -> str:
    shape = "x".join(str(n) for n in ref.shape)
    if not ref.parts:
        return f"{ref.name}:{shape}"
    joint = " | " if ref.interleave else " + "
    return f"({joint.join(ref.parts)}):{shape}"


def _attr(value: Attr) -> str:
    if isinstance(value, tuple):
        return f"<{len(value)}: {value[0]:.6g} .. {value[-1]:.6g}>" if value else "<0>"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _span(layers: tuple[int, ...]) -> str:
    return f"{layers[0]}..{layers[-1]}" if len(layers) > 1 else str(layers[0])
