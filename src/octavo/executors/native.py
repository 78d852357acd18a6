"""The native executor: records a Program once into the C++ core, replays it with one call a step.

Owns the translation of ops, the packing of weights and the metadata block; arithmetic is csrc's.
Matrices are packed from the memory map of the file, or mapped as an earlier start packed them; the embedding is
read from the file's map itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo import env
from octavo.errors import CapacityError, WeightError
from octavo.executors.base import F32, ROW_SCALARS, ExecutorOptions, StepBatch, StepOutput, nothing
from octavo.executors.native_ops import RECORDERS, Recorder
from octavo.kernels import native
from octavo.program.passes.plan_memory import row_bytes
from octavo.program.program import Buffer, Program, WeightRef
from octavo.weights.pack_cache import PackCache
from octavo.weights.pack_file import Wanted
from octavo.weights.source import ModelSource, RawTensor

# Arrays of SamplingBatch whose size varies from step to step: handed over by reference.
_VARIABLE = ("counts", "seen", "bias_ids", "bias_values", "masks", "chosen_ids")
# What changes from step to step for the same rows.
_PER_ROW = ("position", "penalty_row", "mask_row")
ARENA_SLACK_BYTES = 4096


class NativeExecutor:
    """Implements executors.base.Executor, RunsOn and Redraws on the CPU."""

    most_redrawn = 64  # LOGITS_ROWS of csrc/ops.h

    def bind(self, program: Program, source: ModelSource, options: ExecutorOptions) -> None:
        self.program, self.options = program, options
        self._formats: Counter[str] = Counter()
        self._weight_bytes = 0
        self._lossy = 0
        self._source = source
        arena_bytes = self._place(program)
        self._cache = pack_cache(program, source, options)
        self._packed = self._cache.load(options.num_threads)
        self._made: dict[str, native.Weight] = {}
        self.core = native.Program(
            max_tokens=options.max_tokens,
            max_rows=options.max_rows,
            num_groups=len(program.kv.groups),
            table_width=options.max_blocks_per_row,
            block_size=program.kv.block_size,
            vocab=program.vocab_size,
            num_threads=options.num_threads,
            isa=options.isa,
            arena_bytes=arena_bytes,
        )
        self.core.adaptive = env.adaptive_team()
        self.core.set_windows([group.window for group in program.kv.groups])
        self.views = {
            b.id: self.core.view(self._offsets[b.id], self._strides[b.id], b.width, b.rows)
            for b in program.buffers
            if b.id in self._offsets
        }
        for op in program.ops:
            RECORDERS[op.kind](Recorder(self, op))
        self._cache.keep(self._made)
        self._packed = None
        self._made = {}
        self._version = 0  # of the sampling scalars in the metadata block
        self._handed: set[str] = set()  # arrays that the core has by reference
        self._steady = 0  # rows of the batch before, if it can be run on
        self._io = {name: self.core.io(name) for name in self.core.io_names()}

    # ---- memory ---------------------------------------------------------------------------------

    def _place(self, program: Program) -> int:
        """Offset and row stride of every buffer; returns the arena's bytes.

        Token buffers follow the program's memory plan. The few buffers of sampling rows follow
        each other; logits are not among them, the core keeps a tile of 64 rows.
        """
        if program.arena is None:
            raise WeightError(
                f"program {program.name!r} has no memory plan", fix="run passes.plan_memory on it"
            )
        tokens, samples = self.options.max_tokens, self.options.max_rows + self.options.max_tokens
        logits = {op.outputs[0] for op in program.ops if op.kind == "logits"}
        self._offsets: dict[int, int] = {}
        self._strides: dict[int, int] = {}
        roots = [b for b in program.buffers if b.parent is None and b.id not in logits]
        end = 0
        for b in roots:
            self._strides[b.id] = row_bytes(b)
            if b.rows == "tokens":
                self._offsets[b.id] = program.arena[b.id] * tokens
                end = max(end, self._offsets[b.id] + row_bytes(b) * tokens)
        for b in roots:
            if b.rows == "samples":
                self._offsets[b.id] = end
                end += row_bytes(b) * samples
        for b in program.buffers:
            if b.parent is not None:
                self._offsets[b.id] = self._offsets[b.parent] + b.offset * 4
                self._strides[b.id] = self._strides[b.parent]
        return end + ARENA_SLACK_BYTES

    def buffer(self, index: int) -> Buffer:
        return self.program.buffers[index]

    # ---- weights --------------------------------------------------------------------------------

    def read(self, name: str) -> RawTensor:
        return self._source.read(name)

    def matrix(self, ref: WeightRef, *, is_vocabulary: bool = False) -> native.Weight:
        """A packed matrix, its parts stacked or interleaved.

        The vocabulary matrix is not packed to 4 bits unless the file has it so: top-1 agreement
        would fall from 95% to 82%.
        """
        key = _key(ref, is_vocabulary)
        weight = self._packed[key] if self._packed is not None else self._pack(ref, is_vocabulary)
        self._made[key] = weight
        self._formats[weight.format] += 1
        self._weight_bytes += weight.nbytes
        self._lossy += not weight.lossless
        return weight

    def _pack(self, ref: WeightRef, is_vocabulary: bool) -> native.Weight:
        wanted = "w8" if is_vocabulary and self.options.weights == "w4" else self.options.weights
        parts = []
        for name in ref.parts or (ref.name,):
            raw = self._source.read(name)
            rows, cols = raw.info.shape
            parts.append((raw.info.type, raw.data, rows, cols, raw.row_order))
        return native.pack(parts, wanted, interleave=ref.interleave, num_threads=self.options.num_threads)

    def vector(self, ref: WeightRef) -> npt.NDArray[np.float32]:
        """f32 values, parts stacked."""
        values = []
        for name in ref.parts or (ref.name,):
            raw = self._source.read(name)
            values.append(native.dequantise(raw.info.type, raw.data, 1, raw.info.shape[-1])[0])
        stacked = np.concatenate(values)
        self._weight_bytes += stacked.nbytes
        return stacked

    # ---- steps ----------------------------------------------------------------------------------

    def allocate_kv(self, num_blocks: int) -> None:
        try:
            self.core.allocate_kv(self.program.kv.block_bytes, num_blocks)
        except MemoryError as error:
            need = self.program.kv.block_bytes * num_blocks
            raise CapacityError(
                f"{num_blocks} KV blocks take {need / 2**20:,.0f} MiB, which the system refuses",
                fix="lower --kv-cache-memory-bytes or --max-model-len",
            ) from error
        self._num_blocks = num_blocks

    def run(self, batch: StepBatch, on_start: Callable[[], None] = nothing) -> StepOutput:
        tokens, rows, samples, scored = self._write(batch)
        wanted = max(int(batch.sampling.num_logprobs.max(initial=0)), 0)
        tops = self._tops(samples, wanted, "")
        score_tops = self._tops(scored, batch.score_top, "score_")
        chosen = np.zeros(len(batch.sampling.chosen_ids), np.float32)
        self._hand("chosen_logprobs", chosen)
        on_start()
        self.core.run(tokens, rows, samples, scored)
        io = self._io
        self._steady = rows if tokens == rows == samples and not scored else 0
        return StepOutput(
            token_ids=io["sampled_ids"][:samples].copy(),
            logprobs=io["logprobs"][:samples].copy(),
            ranks=io["ranks"][:samples].copy(),
            top_ids=tops[0],
            top_logprobs=tops[1],
            score_logprobs=io["score_logprobs"][:scored].copy(),
            score_ranks=io["score_ranks"][:scored].copy(),
            score_top_ids=score_tops[0],
            score_top_logprobs=score_tops[1],
            chosen_logprobs=chosen,
        )

    def run_on(
        self, new_blocks: list[tuple[int, int, int, list[int]]], on_start: Callable[[], None] = nothing
    ) -> list[int]:
        rows = self._steady
        if not rows:
            raise ValueError(
                "the batch before was not one of a token a row, all drawing: it cannot be run on"
            )
        tables = self._io["block_tables"]
        for row, group, first, ids in new_blocks:
            tables[group, row, first : first + len(ids)] = ids
        on_start()
        self.core.run_on(rows)
        tokens: list[int] = self._io["sampled_ids"][:rows].tolist()
        return tokens

    def redraw(self, rows: list[int], mask_rows: list[int], masks: npt.NDArray[np.uint32]) -> list[int]:
        io = self._io
        io["mask_row"][rows] = mask_rows
        self._hand("masks", masks)
        self.core.redraw(rows)
        io["mask_row"][rows] = -1
        tokens: list[int] = io["sampled_ids"][rows].tolist()
        return tokens

    def replace(self, rows: list[int], tokens: list[int]) -> None:
        self._io["sampled_ids"][rows] = tokens

    def logits(self, batch: StepBatch) -> F32:
        tokens, rows, samples, scored = self._write(batch)
        self._tops(samples, 0, "")
        self._tops(scored, 0, "score_")
        out = np.empty((samples + scored, self.program.vocab_size), np.float32)
        self.core.run_logits(tokens, rows, samples, scored, out)
        return out[:samples]

    def _tops(self, rows: int, width: int, prefix: str) -> tuple[npt.NDArray[np.int32], F32]:
        """Result arrays [rows, width] for the best tokens, told to the core."""
        ids, logprobs = np.full((rows, width), -1, np.int32), np.zeros((rows, width), np.float32)
        self._hand(prefix + "top_ids", ids)
        self._hand(prefix + "top_logprobs", logprobs)
        return ids, logprobs

    def _hand(self, name: str, array: npt.NDArray[Any]) -> None:
        """An array that the core reads or writes by reference. One without elements: none."""
        if array.size:
            self.core.set_array(name, array)
            self._handed.add(name)
        elif name in self._handed:
            self.core.set_array(name, None)
            self._handed.remove(name)

    def _write(self, batch: StepBatch) -> tuple[int, int, int, int]:
        """The batch into the metadata block; returns (T, R, S, P)."""
        io = self._io
        self._steady = 0
        tokens, rows = len(batch.token_ids), len(batch.context_lens)
        samples, scored = len(batch.sample_tokens), len(batch.score_tokens)
        io["token_ids"][:tokens] = batch.token_ids
        io["positions"][:tokens] = batch.positions
        io["row_starts"][: rows + 1] = batch.row_starts
        io["context_lens"][:rows] = batch.context_lens
        io["block_tables"][:, :rows, : batch.block_tables.shape[2]] = batch.block_tables
        io["sample_tokens"][:samples] = batch.sample_tokens
        io["sample_tokens"][samples : samples + scored] = batch.score_tokens
        io["score_targets"][:scored] = batch.score_targets
        s = batch.sampling
        if not s.version or s.version != self._version:
            for name in ROW_SCALARS:
                io[name][:samples] = getattr(s, name)
            self._version = s.version
        for name in _PER_ROW:
            io[name][:samples] = getattr(s, name)
        io["bias_start"][: samples + 1] = s.bias_start
        if len(s.chosen_ids):
            io["chosen_start"][: samples + 1] = s.chosen_start
        for name in _VARIABLE:
            self._hand(name, getattr(s, name))
        self.core.processed_logprobs = s.processed_logprobs
        self.core.reports_logits = s.reports_logits
        return tokens, rows, samples, scored

    # ---- the rest -------------------------------------------------------------------------------

    def read_blocks(self, blocks: list[int]) -> npt.NDArray[np.uint8]:
        return np.ascontiguousarray(self.core.kv()[blocks])

    def write_blocks(self, blocks: list[int], data: npt.NDArray[np.uint8]) -> None:
        self.core.kv()[blocks] = data

    def memory(self) -> dict[str, int]:
        return {"weights": self._weight_bytes, **self.core.memory()}

    def describe(self) -> list[list[str]]:
        formats = ", ".join(f"{count} {name}" for name, count in sorted(self._formats.items()))
        lossy = (
            f"{self._lossy} requantised with a loss (docs/formats.md)"
            if self._lossy
            else "every value of the file kept"
        )
        return [
            [
                "kernels",
                self.options.isa,
                f"{self.options.num_threads} threads, one native call a step",
            ],
            ["packed matrices", formats, lossy],
            self._cache.row(),
        ]

    def close(self) -> None:
        """Frees weights, KV and threads, once packed weights are on disk. The executor is of no use afterwards."""
        self._cache.wait()
        self.views.clear()
        self._io.clear()
        del self.core


# ---- the pack cache -----------------------------------------------------------------------------------


def pack_cache(program: Program, source: ModelSource, options: ExecutorOptions) -> PackCache:
    """Where the packed form of a program's matrices lies, or will."""
    wanted = {
        _key(ref, is_vocabulary): Wanted(ref.shape[0], ref.shape[1], ref.interleave)
        for ref, is_vocabulary in _matrices(program)
    }
    return PackCache(options.pack_cache, source, options.weights, wanted)


def _matrices(program: Program) -> Iterator[tuple[WeightRef, bool]]:
    """The matrices that are packed, and whether each is the vocabulary's."""
    for op in program.ops:
        for ref in op.weights:
            if ref.role == "matrix":
                yield ref, op.kind == "logits"


def _key(ref: WeightRef, is_vocabulary: bool) -> str:
    """A name for a matrix and for what packing makes of it."""
    kind = ("" if not ref.interleave else " interleaved") + (" vocabulary" if is_vocabulary else "")
    return "+".join(ref.parts or (ref.name,)) + kind
