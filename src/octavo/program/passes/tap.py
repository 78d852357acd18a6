"""tap: keep hidden states of chosen layers as outputs (draft heads, pooling, inspection)."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.errors import ConfigError
from octavo.program.check import fill_attrs, overlap
from octavo.program.passes.draft import Draft
from octavo.program.program import Op, Program


def tap(program: Program, names: Sequence[str]) -> Program:
    """Outputs `name` -> first output of the op of that name, or of the last op under `name.`
    ("layers.3" is what layer 3 hands on). Copied where a later op writes over it.

    Raises ConfigError when no op has that name.
    """
    draft = Draft(program)
    for name in names:
        index = _find(draft, name)
        buffer = draft.ops[index].outputs[0]
        here = draft.buffers[buffer]
        if any(overlap(draft.buffers[b], here) for op in draft.ops[index + 1 :] for b in op.outputs):
            copy = draft.new_buffer(f"tap.{name}", here.rows, here.width)
            attrs = fill_attrs("scale", copy.name, {"factor": 1.0})
            draft.ops.insert(index + 1, Op("scale", copy.name, (buffer,), (copy.id,), (), attrs))
            buffer = copy.id
        draft.outputs[name] = buffer
    return draft.finish()


def _find(draft: Draft, name: str) -> int:
    below = f"{name}."
    named = [i for i, op in enumerate(draft.ops) if op.name == name or op.name.startswith(below)]
    found = [i for i in named if draft.ops[i].outputs]
    if not found:
        known = sorted({".".join(op.name.split(".")[:2]) for op in draft.ops})
        raise ConfigError(f"cannot tap {name!r}: no op of that name", fix=f"use one of {', '.join(known)}")
    return found[-1]
