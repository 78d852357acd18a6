"""Is a Program well formed? Used by the builder op by op and by `verify` on whole programs.

Owns arity, attribute and shape checks against the op table, and the rules on views and overlap. Does
not know any model. Every failure is a ConfigError that names the op: what a model file builds follows
from the configuration, so a mismatch means that the configuration contradicts itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.errors import ConfigError
from octavo.program.ops import OPS, OpSpec, ShapeError, Shapes
from octavo.program.program import Attr, Buffer, Op, Program

_FIX = "check hidden_size, head_dim and the head counts in the model's configuration"
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float,),
    "bool": (bool,),
    "str": (str,),
    "floats": (tuple,),
}


def _fail(op: Op, message: str) -> ConfigError:
    return ConfigError(f"op {op.name!r} ({op.kind}): {message}", fix=_FIX)


def fill_attrs(kind: str, name: str, given: Mapping[str, Attr]) -> dict[str, Attr]:
    """Every attribute of `kind`, defaults included, in table order. Raises ConfigError."""
    op = Op(kind, name)
    spec = OPS.get(kind)
    if spec is None:
        raise _fail(op, f"no such op, known: {', '.join(OPS)}")
    unknown = sorted(set(given) - set(spec.attrs))
    if unknown:
        raise _fail(op, f"has no attribute {', '.join(unknown)}; it takes {', '.join(spec.attrs) or 'none'}")
    filled: dict[str, Attr] = {}
    for key, attr in spec.attrs.items():
        value = given.get(key, attr.default)
        if value is None:
            raise _fail(op, f"attribute {key} is missing")
        if attr.type == "float" and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, _TYPES[attr.type]) or (attr.type == "int" and isinstance(value, bool)):
            raise _fail(op, f"attribute {key} is {value!r}, allowed is a value of type {attr.type}")
        if attr.choices and value not in attr.choices:
            raise _fail(op, f"attribute {key} is {value!r}, allowed: {', '.join(attr.choices)}")
        filled[key] = value
    return filled


def output_widths(op: Op, inputs: Sequence[Buffer]) -> tuple[int, ...]:
    """Widths of the outputs of `op` (one total when they are views). Raises ConfigError."""
    spec = OPS[op.kind]
    _check_operands(spec, op, inputs)
    try:
        return spec.rule(Shapes(tuple(b.width for b in inputs), tuple(w.shape for w in op.weights), op.attrs))
    except ShapeError as error:
        raise _fail(op, str(error)) from None


def _check_operands(spec: OpSpec, op: Op, inputs: Sequence[Buffer]) -> None:
    fewest, most = spec.arity()
    if not fewest <= len(inputs) <= most:
        raise _fail(op, f"has {len(inputs)} input(s), allowed: {fewest} to {most}")
    required = sum(not w.optional for w in spec.weights)
    if not required <= len(op.weights) <= len(spec.weights):
        raise _fail(op, f"has {len(op.weights)} weight(s), allowed: {required} to {len(spec.weights)}")
    for slot, weight in zip(spec.weights, op.weights, strict=False):
        if weight.role != slot.role:
            raise _fail(op, f"weight {weight.name} has role {weight.role}, {slot.name} must be a {slot.role}")
    first = inputs[0] if inputs else None
    for other in inputs[1:]:
        if first is not None and other.rows != first.rows:
            raise _fail(op, f"{first.name} is [{first.rows}, ..] but {other.name} is [{other.rows}, ..]")
    if spec.reads and first is not None and first.rows != "tokens":  # what it reads is per token
        raise _fail(op, f"{first.name} is [{first.rows}, ..], allowed is [tokens, ..]")


def output_rows(op: Op, inputs: Sequence[Buffer]) -> str:
    if op.kind == "gather_rows":
        return "samples"
    return inputs[0].rows if inputs else "tokens"


def overlap(a: Buffer, b: Buffer) -> bool:
    """Do two buffers share an element? (Same root and intersecting columns.)"""
    root_a = a.id if a.parent is None else a.parent
    root_b = b.id if b.parent is None else b.parent
    return root_a == root_b and a.offset < b.offset + b.width and b.offset < a.offset + a.width


def verify(program: Program) -> None:
    """Raises ConfigError when an op does not fit its operands, reads what nothing wrote, or writes
    over an input in a way that the op table does not allow."""
    written: set[int] = set()
    for index, buffer in enumerate(program.buffers):
        _check_view(program, index, buffer)
    for op in program.ops:
        inputs = [program.buffers[i] for i in op.inputs]
        outputs = [program.buffers[o] for o in op.outputs]
        if dict(op.attrs) != fill_attrs(op.kind, op.name, op.attrs):
            raise _fail(op, "attributes are not all given")
        _check_outputs(op, inputs, outputs)
        for buffer in inputs:
            if not _is_written(buffer, written, program):
                raise _fail(op, f"reads {buffer.name}, which no earlier op wrote")
        written.update(op.outputs)
    for name, out in program.outputs.items():
        if not _is_written(program.buffers[out], written, program):
            raise ConfigError(f"output {name!r} of program {program.name!r} is written by no op")


def _is_written(buffer: Buffer, written: set[int], program: Program) -> bool:
    """Written itself, with its parent, or (a parent) through views that cover it."""
    if buffer.id in written or (buffer.parent is not None and buffer.parent in written):
        return True
    views = [program.buffers[w] for w in written if program.buffers[w].parent == buffer.id]
    return sum(view.width for view in views) >= buffer.width > 0


def _check_view(program: Program, index: int, buffer: Buffer) -> None:
    if buffer.id != index:
        raise ConfigError(f"buffer {buffer.name!r} has id {buffer.id} but lies at {index}")
    if buffer.parent is None:
        return
    parent = program.buffers[buffer.parent]
    if parent.parent is not None or parent.rows != buffer.rows or buffer.offset + buffer.width > parent.width:
        raise ConfigError(
            f"view {buffer.name!r}, columns {buffer.offset} to {buffer.offset + buffer.width}, does not fit "
            f"its parent {parent.name!r} [{parent.rows}, {parent.width}]"
        )


def _check_outputs(op: Op, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
    widths = output_widths(op, inputs)
    rows = output_rows(op, inputs)
    got = tuple(b.width for b in outputs)
    split = op.kind == "linear" and len(outputs) > 1
    if split:
        ends = [(b.parent, b.offset) for b in outputs]
        steps = [(outputs[0].parent, sum(got[:i])) for i in range(len(got))]
        if outputs[0].parent is None or ends != steps:
            raise _fail(op, "its outputs are not neighbouring views of one parent")
        got = (sum(got),)
    if got != widths or any(b.rows != rows for b in outputs):
        raise _fail(op, f"writes [{rows}, {list(widths)}] but its outputs are {list(got)}")
    allowed = set(OPS[op.kind].in_place)
    for o, output in enumerate(outputs):
        for i, source in enumerate(inputs):
            if overlap(output, source) and not (output.id == source.id and (o, i) in allowed):
                raise _fail(op, f"output {output.name} lies over input {source.name}")
