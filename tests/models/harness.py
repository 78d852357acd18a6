"""Runs token sequences through any executor and returns the logits of every position.

Stands in for scheduler and worker: hands out shuffled blocks, builds batches, and points block-table
entries behind a sliding window at a block full of NaN, so that a kernel which reads too far shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from octavo import env
from octavo.config.plan import PackCachePlan
from octavo.executors.base import ExecutorOptions, SamplingBatch, StepBatch
from octavo.executors.registry import create
from octavo.models.registry import build_program, weights_of
from octavo.program.passes import fuse, gather_early, plan_memory
from octavo.program.program import Program
from octavo.util import cpus
from octavo.weights.load import check_tensors, open_model
from octavo.weights.source import ModelSource
from octavo.wire.layout import KVLayout

EXECUTORS = ("torch", "native")
POISON = 0  # block that freed table entries point at
F32 = npt.NDArray[np.float32]


@dataclass
class Row:
    """A sequence: `tokens[:computed]` are in the KV cache. One block table per KV group."""

    tokens: list[int]
    computed: int = 0
    tables: list[list[int]] = field(default_factory=list)


@dataclass
class Setup:
    """`level`: 0 the program as built, 2 all passes (as -O means them)."""

    block_size: int = 16
    kv_dtype: str = "f32"
    weights: str = "f32"
    level: int = 2
    max_tokens: int = 256
    max_rows: int = 256
    num_blocks: int = 256
    max_blocks_per_row: int = 64
    num_threads: int = 1
    isa: str | None = None  # None = the best
    pack_cache: PackCachePlan = field(default_factory=PackCachePlan)


class Runner:
    """One executor with its blocks."""

    def __init__(self, name: str, source: ModelSource, setup: Setup | None = None) -> None:
        self.setup = setup or Setup()
        self.source = source
        self.program = make_program(source, self.setup)
        self.executor = create(name)
        isa = self.setup.isa or ("torch" if name == "torch" else env.isa() or cpus.isas()[-1])
        options = ExecutorOptions(
            weights=self.setup.weights,
            max_tokens=self.setup.max_tokens,
            max_rows=self.setup.max_rows,
            max_blocks_per_row=self.setup.max_blocks_per_row,
            num_threads=self.setup.num_threads,
            isa=isa,
            optimization_level=self.setup.level,
            pack_cache=self.setup.pack_cache,
        )
        self.executor.bind(self.program, source, options)
        self.executor.allocate_kv(self.setup.num_blocks)
        nan = np.full((1, self.layout.block_bytes), 0xFF, np.uint8)
        self.executor.write_blocks([POISON], nan)
        free = np.random.default_rng(0).permutation(np.arange(1, self.setup.num_blocks))
        self._free = [int(b) for b in free]

    @property
    def layout(self) -> KVLayout:
        return self.program.kv

    def row(self, tokens: Sequence[int]) -> Row:
        return Row(list(tokens), tables=[[] for _ in self.layout.groups])

    def take(self) -> int:
        """A free block."""
        return self._free.pop()

    def release(self, row: Row) -> None:
        for table in row.tables:
            self._free += [b for b in table if b != POISON]
        row.tables = [[] for _ in self.layout.groups]

    def step(self, work: Sequence[tuple[Row, int]], keep: int | None = None) -> list[F32]:
        """Computes the next `n` tokens of each row; logits `[n, vocab]` of each, or of those among its
        sequence's last `keep` positions."""
        batch = self.batch(work)
        first = [
            0 if keep is None else max(0, min(n, len(row.tokens) - keep - row.computed)) for row, n in work
        ]
        kept = [
            np.arange(start + skip, start + n)
            for start, skip, (_, n) in zip(batch.row_starts[:-1], first, work, strict=True)
        ]
        batch.sample_tokens = np.concatenate(kept).astype(np.int32)
        batch.sampling = SamplingBatch.greedy(len(batch.sample_tokens), self.program.vocab_size)
        logits = self.executor.logits(batch)
        for row, count in work:
            row.computed += count
        return np.split(logits, np.cumsum([len(part) for part in kept])[:-1])

    def batch(self, work: Sequence[tuple[Row, int]]) -> StepBatch:
        """Every token of the step is a sampling row."""
        for row, count in work:
            self._grow(row, row.computed + count)
        total = sum(count for _, count in work)
        width = max(len(table) for row, _ in work for table in row.tables)
        tables = np.full((len(self.layout.groups), len(work), width), POISON, np.int32)
        for r, (row, _) in enumerate(work):
            for g, table in enumerate(row.tables):
                tables[g, r, : len(table)] = table
        return StepBatch(
            token_ids=np.array(
                [t for row, n in work for t in row.tokens[row.computed : row.computed + n]], np.int32
            ),
            positions=np.array(
                [p for row, n in work for p in range(row.computed, row.computed + n)], np.int32
            ),
            row_starts=np.cumsum([0] + [n for _, n in work]).astype(np.int32),
            context_lens=np.array([row.computed for row, _ in work], np.int32),
            block_tables=tables,
            sample_tokens=np.arange(total, dtype=np.int32),
            sampling=SamplingBatch.greedy(total, self.program.vocab_size),
            score_tokens=np.zeros(0, np.int32),
            score_targets=np.zeros(0, np.int32),
        )

    def _grow(self, row: Row, length: int) -> None:
        """Blocks for `length` tokens; those that no query from `computed` on can see are given back."""
        for group, table in zip(self.layout.groups, row.tables, strict=True):
            while len(table) * self.layout.block_size < length:
                table.append(self.take())
            if group.window:
                unseen = max(0, row.computed - group.window + 1) // self.layout.block_size
                for i in range(unseen):
                    if table[i] != POISON:
                        self._free.append(table[i])
                        table[i] = POISON

    def sequences(
        self, sequences: Sequence[Sequence[int]], chunks: Sequence[int] = (1 << 30,), keep: int | None = None
    ) -> list[F32]:
        """Logits `[len, vocab]` of each sequence, or of its last `keep` positions. All run side by side;
        row i takes chunk sizes from `chunks` in turn, starting at its i-th, so that steps mix prefill
        pieces of all sizes."""
        rows = [self.row(tokens) for tokens in sequences]
        parts: list[list[F32]] = [[] for _ in rows]
        turn = 0
        while any(row.computed < len(row.tokens) for row in rows):
            wanted = [
                (i, min(chunks[(turn + i) % len(chunks)], len(row.tokens) - row.computed))
                for i, row in enumerate(rows)
            ]
            live = [(i, n) for i, n in wanted if n > 0]
            for (i, _), logits in zip(live, self.step([(rows[i], n) for i, n in live], keep), strict=True):
                parts[i].append(logits)
            turn += 1
        for row in rows:
            self.release(row)
        return [np.concatenate(part) for part in parts]


def make_program(source: ModelSource, setup: Setup) -> Program:
    program = build_program(source.config, block_size=setup.block_size, kv_dtype=setup.kv_dtype)
    check_tensors(source, weights_of(program))
    if setup.level >= 2:
        program = fuse(gather_early(program))
    return plan_memory(program)


def open_runner(name: str, path: str, setup: Setup | None = None) -> Runner:
    return Runner(name, open_model(path), setup)
