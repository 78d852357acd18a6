"""An executor with a model in it, for benchmarks that need no server."""

from __future__ import annotations

import numpy as np

from octavo.executors.base import Executor, ExecutorOptions, SamplingBatch, StepBatch
from octavo.executors.registry import create
from octavo.launch.facts import optimise
from octavo.models.registry import build_program
from octavo.program.program import Program
from octavo.weights.source import ModelSource

BLOCK = 16
CHUNK = 64


def load(
    executor_name: str,
    source: ModelSource,
    weights: str,
    *,
    threads: int,
    isa: str,
    kv_dtype: str | None = None,
    max_tokens: int = 512,
    max_rows: int = 64,
    context: int = 4096,
    num_blocks: int = 1024,
) -> tuple[Executor, Program]:
    """Bound, with KV allocated. `kv_dtype` None: f32 for f32 weights, else bf16."""
    dtype = kv_dtype or ("f32" if weights == "f32" else "bf16")
    program = optimise(build_program(source.config, block_size=BLOCK, kv_dtype=dtype), 2)
    executor = create(executor_name)
    executor.bind(
        program,
        source,
        ExecutorOptions(
            weights=weights,
            max_tokens=max_tokens,
            max_rows=max_rows,
            max_blocks_per_row=-(-context // BLOCK),
            num_threads=threads,
            isa=isa,
        ),
    )
    executor.allocate_kv(num_blocks)
    return executor, program


def batch(ids: list[int], start: int, groups: int, first_block: int = 1) -> StepBatch:
    """One row computing `ids` from position `start`, every token sampled; its blocks are consecutive.

    `block_tables` holds distinct blocks per group.
    """
    n = len(ids)
    blocks = -(-(start + n) // BLOCK)
    tables = np.stack([np.arange(blocks, dtype=np.int32) * groups + g + first_block for g in range(groups)])
    return StepBatch(
        token_ids=np.asarray(ids, np.int32),
        positions=np.arange(start, start + n, dtype=np.int32),
        row_starts=np.asarray([0, n], np.int32),
        context_lens=np.asarray([start], np.int32),
        block_tables=tables[:, None, :],
        sample_tokens=np.arange(n, dtype=np.int32),
        sampling=SamplingBatch.greedy(n),
        score_tokens=np.zeros(0, np.int32),
        score_targets=np.zeros(0, np.int32),
    )


def teacher_forced(
    executor_name: str, source: ModelSource, weights: str, ids: list[int], threads: int, isa: str
) -> np.ndarray:
    """[len(ids), vocab] logits of every position, computed in chunks."""
    groups_upper = 8
    executor, program = load(
        executor_name,
        source,
        weights,
        threads=threads,
        isa=isa,
        num_blocks=(len(ids) // BLOCK + 2) * groups_upper,
    )
    try:
        groups = len(program.kv.groups)
        parts = [
            executor.logits(batch(ids[s : s + CHUNK], s, groups)).copy() for s in range(0, len(ids), CHUNK)
        ]
    finally:
        executor.close()
    return np.concatenate(parts)
