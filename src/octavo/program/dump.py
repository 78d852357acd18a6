"""A Program as text, for `octavo explain` and for people who debug passes."""

from __future__ import annotations

import re

from octavo.program.passes.plan_memory import arena_row_bytes, row_bytes
from octavo.program.program import Attr, Buffer, Op, Program, WeightRef

_LAYER = re.compile(r"layers\.(\d+)\.")
_BUFFER = re.compile(r"[%@]\d+")


def dump(program: Program, *, fold: bool = False) -> str:
    """One line per op: position, name, kind, operands with widths, weights, attributes.

    `fold`: layers that differ only in their number are shown once.
    """
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
    lines += _folded(program) if fold else _ops(program, 0, len(program.ops))
    lines += [f"output {name} = {_buffer(program.buffers[b])}" for name, b in program.outputs.items()]
    return "\n".join(lines) + "\n"


def _ops(program: Program, start: int, end: int) -> list[str]:
    return [f"{index:5d}  {_op(program, program.ops[index])}" for index in range(start, end)]


def _folded(program: Program) -> list[str]:
    """Each kind of layer where it first comes, under a line that says which layers are of that kind."""
    pieces: list[tuple[str, int, int]] = []  # layer number or "", first op, end
    for index, op in enumerate(program.ops):
        match = _LAYER.match(op.name)
        layer = match[1] if match else ""
        if pieces and pieces[-1][0] == layer:
            pieces[-1] = (layer, pieces[-1][1], index + 1)
        else:
            pieces.append((layer, index, index + 1))
    forms = [_form(program, *piece) if piece[0] else str(piece) for piece in pieces]
    lines: list[str] = []
    for at, (layer, start, end) in enumerate(pieces):
        if forms.index(forms[at]) < at:
            continue
        alike = [
            int(piece[0]) for piece, form in zip(pieces, forms, strict=True) if form == forms[at] and layer
        ]
        if len(alike) > 1:
            lines.append(f"       layers {_ranges(alike)}: this x {len(alike)}")
        lines += _ops(program, start, end)
    return lines


def _form(program: Program, layer: str, start: int, end: int) -> str:
    """What the ops of a layer do, without its number: buffers are named in the order in which they appear."""
    names: dict[str, str] = {}
    text = "\n".join(_op(program, op) for op in program.ops[start:end]) + "\n"
    text = _BUFFER.sub(lambda m: m[0][0] + names.setdefault(m[0][1:], str(len(names))), text)
    text = re.sub(rf" layer={layer}(?=\s)", " layer=*", text)
    # a fused norm after the layer has the weight of the next one
    return text.replace(f"layers.{layer}.", "layers.*.").replace(f"layers.{int(layer) + 1}.", "layers.+.")


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] as "0..2, 5"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}..{b}" for a, b in spans)


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
