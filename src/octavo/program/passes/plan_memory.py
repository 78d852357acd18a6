"""plan_memory: one arena for all buffers, by liveness.

`Program.arena[b]` is the byte offset of buffer b *per row*: buffer b starts at `arena[b] * max_rows` of
the arena of its kind of rows ("tokens" and "samples" have one arena each), and its rows follow each
other `row_bytes` apart. Ranges that are disjoint per row are disjoint for every number of rows, so one
plan serves every step size. A view has its parent's offset; its columns start `Buffer.offset` elements
into each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from octavo.program.program import Buffer, Program, Rows

ALIGN_BYTES = 64  # a cache line; also the width of an AVX-512 register


def row_bytes(buffer: Buffer) -> int:
    """Distance of two rows of a root buffer: 4 bytes an element, rounded up to a cache line."""
    return -(-buffer.width * 4 // ALIGN_BYTES) * ALIGN_BYTES


def plan_memory(program: Program) -> Program:
    """Buffers that are live at the same op never overlap; the largest are placed first."""
    lives = live_ranges(program)
    offsets: dict[int, int] = {}
    order = sorted(lives, key=lambda b: (-row_bytes(program.buffers[b]), lives[b]))
    placed: dict[Rows, list[int]] = {"tokens": [], "samples": []}
    for buffer in order:
        neighbours = placed[program.buffers[buffer].rows]
        offsets[buffer] = _first_fit(program, buffer, neighbours, offsets, lives)
        neighbours.append(buffer)
    arena = tuple(offsets.get(b.id if b.parent is None else b.parent, 0) for b in program.buffers)
    return replace(program, arena=arena)


def live_ranges(program: Program) -> dict[int, tuple[int, int]]:
    """Root buffer -> (first op that writes it, last op that touches it); outputs live to the end."""
    lives: dict[int, tuple[int, int]] = {}

    def touch(buffer: int, index: int) -> None:
        parent = program.buffers[buffer].parent
        root = buffer if parent is None else parent
        first, _ = lives.get(root, (index, index))
        lives[root] = (first, index)

    for index, op in enumerate(program.ops):
        for buffer in (*op.inputs, *op.outputs):
            touch(buffer, index)
    for buffer in program.outputs.values():
        touch(buffer, len(program.ops))
    return lives


def arena_row_bytes(program: Program) -> Mapping[Rows, int]:
    """Bytes per row of the two arenas."""
    sizes: dict[Rows, int] = {"tokens": 0, "samples": 0}
    if program.arena is None:
        raise ValueError(f"program {program.name!r} has no memory plan: run plan_memory first")
    for buffer in program.buffers:
        if buffer.parent is None:
            sizes[buffer.rows] = max(sizes[buffer.rows], program.arena[buffer.id] + row_bytes(buffer))
    return sizes


def _first_fit(
    program: Program,
    buffer: int,
    placed: list[int],
    offsets: dict[int, int],
    lives: dict[int, tuple[int, int]],
) -> int:
    """Lowest offset where no placed buffer of an intersecting life lies."""
    first, last = lives[buffer]
    taken = sorted(
        (offsets[other], offsets[other] + row_bytes(program.buffers[other]))
        for other in placed
        if lives[other][0] <= last and first <= lives[other][1]
    )
    need = row_bytes(program.buffers[buffer])
    offset = 0
    for start, end in taken:
        if offset + need <= start:
            break
        offset = max(offset, end)
    return offset
