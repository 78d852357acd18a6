"""gather_early: compute the end of the last layer for the rows that are sampled, not for every token.

Row-wise ops between the last attention and `gather_rows` give each row from the same row of their
inputs, so that gathering first gives the same numbers. Does nothing where a hidden state of all tokens
is an output.
"""

from __future__ import annotations

from dataclasses import replace

from octavo.program.ops import OPS
from octavo.program.passes.draft import Draft
from octavo.program.program import Op, Program


def gather_early(program: Program) -> Program:
    """Run before fuse: a program that already works in place is returned as it is."""
    draft = Draft(program)
    written = [b for op in draft.ops for b in op.outputs]
    gathers = [i for i, op in enumerate(draft.ops) if op.kind == "gather_rows"]
    if len(gathers) != 1 or len(written) != len(set(written)):
        return program
    (gather,) = gathers
    tail = _tail(draft, gather)
    if not tail:
        return program
    head = [op for i, op in enumerate(draft.ops[:gather]) if i not in tail]
    inner = {b for i in tail for b in draft.ops[i].outputs}
    edge = sorted({b for i in tail for b in draft.ops[i].inputs} - inner)
    gathered: dict[int, int] = {}
    gather_name = draft.ops[gather].name
    for buffer in edge:
        source = draft.buffers[buffer]
        rows = draft.new_buffer(f"{gather_name}.{source.name}", "samples", source.width)
        gathered[buffer] = rows.id
        head.append(replace(draft.ops[gather], name=rows.name, inputs=(buffer,), outputs=(rows.id,)))
    for buffer in inner:
        draft.buffers[buffer] = replace(draft.buffers[buffer], rows="samples")
    moved = [_renamed(draft.ops[i], gathered) for i in sorted(tail)]
    last = {draft.ops[gather].outputs[0]: draft.ops[gather].inputs[0]}
    rest = [_renamed(op, last) for op in draft.ops[gather + 1 :]]
    draft.outputs = {name: last.get(b, b) for name, b in draft.outputs.items()}
    draft.ops = [*head, *moved, *rest]
    return draft.finish()


def _tail(draft: Draft, gather: int) -> set[int]:
    """Row-wise ops whose results reach nothing but the gather."""
    readers = draft.readers()
    outputs = {draft.root(b) for b in draft.outputs.values()}
    parents = {b.parent for b in draft.buffers if b.parent is not None}
    tail: set[int] = set()
    for index in range(gather - 1, -1, -1):
        op = draft.ops[index]
        spec = OPS[op.kind]
        if not op.inputs or not op.outputs or spec.reads or spec.effect or not spec.rowwise:
            continue
        views = any(draft.buffers[b].parent is not None or b in parents for b in op.outputs)
        if views or outputs & set(op.outputs):
            continue
        reached = {r for b in op.outputs for r in readers[b]}
        if reached and reached <= tail | {gather}:
            tail.add(index)
    return tail


def _renamed(op: Op, names: dict[int, int]) -> Op:
    return replace(op, inputs=tuple(names.get(b, b) for b in op.inputs))
