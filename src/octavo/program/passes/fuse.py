"""fuse: fewer, larger ops that compute the same function.

| before | after |
|---|---|
| linears of one input (q, k, v) | one linear; its outputs are views of one buffer |
| linear gate, linear up, silu_mul or gelu_mul | linear_gated |
| linear, add | linear with `residual` |
| add, rms_norm | add_rms_norm |
| an output whose input dies there | the same buffer, where the op table allows it |

Does not know which weights can share a packed form: the caller says so by `can_stack`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from octavo.program.check import overlap
from octavo.program.ops import OPS
from octavo.program.passes.draft import Draft
from octavo.program.program import Op, Program, WeightRef

CanStack = Callable[[tuple[str, ...]], bool]
_GATES = {"silu_mul": "silu", "gelu_mul": "gelu_tanh"}


def fuse(program: Program, can_stack: CanStack | None = None) -> Program:
    """`can_stack(names)`: may these matrices be packed as one? Default: always.

    A program that is fused already (some buffer is written twice) is returned as it is.
    """
    writes = Counter(b for op in program.ops for b in op.outputs)
    if any(count > 1 for count in writes.values()):
        return program
    draft = Draft(program)
    allowed = can_stack or (lambda names: True)
    _fuse_gated(draft, allowed)
    _fuse_siblings(draft, allowed)
    _fuse_residual(draft)
    _fuse_add_norm(draft)
    _work_in_place(draft)
    return draft.finish()


def _joined(names: Sequence[str]) -> str:
    """`a.q`, `a.k` -> `a.q+k`."""
    prefix = names[0].rpartition(".")[0]
    if prefix and all(name.rpartition(".")[0] == prefix for name in names):
        return prefix + "." + "+".join(name.rpartition(".")[2] for name in names)
    return "+".join(names)


def _stack(refs: Sequence[WeightRef], interleave: bool) -> WeightRef:
    rows = tuple(ref.shape[0] for ref in refs)
    return WeightRef(
        name=_joined([ref.name for ref in refs]),
        shape=(sum(rows), *refs[0].shape[1:]),
        role=refs[0].role,
        parts=tuple(ref.name for ref in refs),
        interleave=interleave,
        part_rows=rows,
    )


def _is_plain(op: Op) -> bool:
    """A linear as a model file emits it: one output, no residual, weights not stacked."""
    single = op.kind == "linear" and len(op.inputs) == len(op.outputs) == 1
    return single and not any(w.parts for w in op.weights)


def _can_join(ops: Sequence[Op], can_stack: CanStack) -> bool:
    """One input, biases all or none, and weights that can be packed together."""
    same_input = all(op.inputs == ops[0].inputs for op in ops)
    same_bias = all(len(op.weights) == len(ops[0].weights) for op in ops)
    return same_input and same_bias and can_stack(tuple(op.weights[0].name for op in ops))


def _stack_all(ops: Sequence[Op], interleave: bool) -> tuple[WeightRef, ...]:
    return tuple(_stack(refs, interleave) for refs in zip(*(op.weights for op in ops), strict=True))


def _fuse_gated(draft: Draft, can_stack: CanStack) -> None:
    readers, producers = draft.readers(), draft.producers()
    outputs = set(draft.outputs.values())
    gone: set[int] = set()
    for index, op in enumerate(draft.ops):
        if op.kind not in _GATES:
            continue
        sources = [producers[b] for b in op.inputs]
        gate, up = (draft.ops[s] for s in sources)
        alone = all(len(readers[b]) == 1 and b not in outputs for b in op.inputs)
        if not (alone and _is_plain(gate) and _is_plain(up) and _can_join((gate, up), can_stack)):
            continue
        if gate.weights[0].shape != up.weights[0].shape:
            continue
        weights = _stack_all((gate, up), interleave=True)
        name = _joined((gate.name, up.name))
        draft.ops[index] = Op("linear_gated", name, gate.inputs, op.outputs, weights, {"fn": _GATES[op.kind]})
        gone.update(sources)
    draft.ops = [op for index, op in enumerate(draft.ops) if index not in gone]


def _fuse_siblings(draft: Draft, can_stack: CanStack) -> None:
    families: dict[int, list[int]] = {}
    for index, op in enumerate(draft.ops):
        if _is_plain(op):
            families.setdefault(op.inputs[0], []).append(index)
    gone: set[int] = set()
    for members in families.values():
        ops = [draft.ops[m] for m in members]
        if len(ops) < 2 or not _can_join(ops, can_stack):
            continue
        weights = _stack_all(ops, interleave=False)
        name = _joined([op.name for op in ops])
        first = draft.buffers[ops[0].outputs[0]]
        parent = draft.new_buffer(name, first.rows, weights[0].shape[0])
        offset = 0
        for op in ops:
            child = draft.buffers[op.outputs[0]]
            draft.buffers[child.id] = replace(child, parent=parent.id, offset=offset)
            offset += child.width
        outputs = tuple(op.outputs[0] for op in ops)
        draft.ops[members[0]] = Op("linear", name, ops[0].inputs, outputs, weights, ops[0].attrs)
        gone.update(members[1:])
    draft.ops = [op for index, op in enumerate(draft.ops) if index not in gone]


def _fuse_residual(draft: Draft) -> None:
    readers, producers = draft.readers(), draft.producers()
    outputs = set(draft.outputs.values())
    gone: set[int] = set()
    for index, op in enumerate(draft.ops):
        if op.kind != "add" or op.inputs[0] == op.inputs[1]:
            continue
        for product, residual in (op.inputs, op.inputs[::-1]):
            source = draft.ops[producers[product]]
            if not (source.kind == "linear" and len(source.inputs) == 1 and len(source.outputs) == 1):
                continue
            if len(readers[product]) != 1 or product in outputs:
                continue
            inputs = (source.inputs[0], residual)
            attrs = {**source.attrs, "residual": True}
            draft.ops[index] = Op("linear", source.name, inputs, op.outputs, source.weights, attrs)
            gone.add(producers[product])
            break
    draft.ops = [op for index, op in enumerate(draft.ops) if index not in gone]


def _fuse_add_norm(draft: Draft) -> None:
    readers, producers = draft.readers(), draft.producers()
    gone: set[int] = set()
    for index, op in enumerate(draft.ops):
        if op.kind != "add":
            continue
        norms = [r for r in readers[op.outputs[0]] if _is_whole_norm(draft.ops[r])]
        if not norms:
            continue
        norm = draft.ops[norms[0]]
        # The operand that was made first is the stream that goes on: it can be added to in place.
        residual, x = sorted(op.inputs, key=lambda b: producers[b])
        draft.ops[index] = Op(
            "add_rms_norm",
            op.name,
            (x, residual),
            (op.outputs[0], norm.outputs[0]),
            norm.weights,
            {"eps": norm.attrs["eps"], "offset": norm.attrs["offset"]},
        )
        gone.add(norms[0])
    draft.ops = [op for index, op in enumerate(draft.ops) if index not in gone]


def _is_whole_norm(op: Op) -> bool:
    return op.kind == "rms_norm" and op.attrs["group"] == 0


def _work_in_place(draft: Draft) -> None:
    """Let an op write over an input that nothing reads later."""
    reads: dict[int, list[int]] = {}  # root -> ops that read it or a view of it, in order
    for index, op in enumerate(draft.ops):
        for root in {draft.root(b) for b in op.inputs}:
            reads.setdefault(root, []).append(index)
    parents = {b.parent for b in draft.buffers if b.parent is not None}
    fixed = {draft.root(b) for b in draft.outputs.values()}
    moved: dict[int, int] = {}
    for index, op in enumerate(draft.ops):
        inputs = tuple(moved.get(b, b) for b in op.inputs)
        outputs = list(op.outputs)
        for o, i in OPS[op.kind].in_place:
            if i >= len(inputs) or outputs[o] != op.outputs[o]:
                continue
            target, source = outputs[o], inputs[i]
            whole = draft.buffers[target].parent is None and target not in parents
            if not whole or target in fixed or draft.root(source) in fixed:
                continue
            others = [*inputs[:i], *inputs[i + 1 :], *outputs[:o], *outputs[o + 1 :]]
            if any(overlap(draft.buffers[source], draft.buffers[b]) for b in others):
                continue
            root = draft.root(source)
            if _is_read_later(draft, source, index, reads.get(root, []), moved):
                continue
            moved[target] = outputs[o] = source
            reads[root] = sorted({*reads.get(root, []), *reads.get(target, [])})
        draft.ops[index] = replace(op, inputs=inputs, outputs=tuple(outputs))


def _is_read_later(draft: Draft, source: int, index: int, reads: list[int], moved: dict[int, int]) -> bool:
    here = draft.buffers[source]
    return any(
        overlap(draft.buffers[moved.get(read, read)], here)
        for later in reads[bisect_right(reads, index) :]
        for read in draft.ops[later].inputs
    )
