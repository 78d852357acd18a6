"""Draft: a Program under rewriting. Shared by the passes; knows no particular rewrite."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from octavo.program.check import verify
from octavo.program.program import Buffer, Op, Program, Rows


class Draft:
    """Ops and buffers of a program, to be changed and then made a checked Program by `finish`."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.ops: list[Op] = list(program.ops)
        self.buffers: list[Buffer] = list(program.buffers)
        self.outputs: dict[str, int] = dict(program.outputs)

    def new_buffer(
        self, name: str, rows: Rows, width: int, *, parent: int | None = None, offset: int = 0
    ) -> Buffer:
        buffer = Buffer(len(self.buffers), name, rows, width, "f32", parent, offset)
        self.buffers.append(buffer)
        return buffer

    def root(self, buffer: int) -> int:
        parent = self.buffers[buffer].parent
        return buffer if parent is None else parent

    def readers(self) -> dict[int, list[int]]:
        """Buffer id -> indices of the ops that read it, once per read."""
        found: dict[int, list[int]] = defaultdict(list)
        for index, op in enumerate(self.ops):
            for buffer in op.inputs:
                found[buffer].append(index)
        return found

    def producers(self) -> dict[int, int]:
        """Buffer id -> index of the op that writes it (programs where each buffer is written once)."""
        return {buffer: index for index, op in enumerate(self.ops) for buffer in op.outputs}

    def finish(self) -> Program:
        """The program, without buffers that nothing uses, ids renumbered. Places are forgotten."""
        used = {b for op in self.ops for b in (*op.inputs, *op.outputs)} | set(self.outputs.values())
        used |= {self.root(b) for b in used}
        new_id = {old: new for new, old in enumerate(sorted(used))}
        buffers = tuple(
            replace(b, id=new_id[b.id], parent=None if b.parent is None else new_id[b.parent])
            for b in self.buffers
            if b.id in used
        )
        ops = tuple(
            replace(
                op,
                inputs=tuple(new_id[b] for b in op.inputs),
                outputs=tuple(new_id[b] for b in op.outputs),
            )
            for op in self.ops
        )
        outputs = {name: new_id[b] for name, b in self.outputs.items()}
        program = replace(self._program, buffers=buffers, ops=ops, outputs=outputs, arena=None)
        verify(program)
        return program
