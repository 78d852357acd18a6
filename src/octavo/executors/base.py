"""What an executor is: bind weights, own KV memory, run a batch. The whole hardware-plugin surface.

Arrays are numpy, owned by the caller unless said otherwise. T = tokens of the step, R = rows
(requests), S = rows that sample, G = KV groups, B = widest block table, P = positions to score.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from octavo.config.plan import PackCachePlan
from octavo.program.program import Program
from octavo.weights.source import ModelSource

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
F32 = npt.NDArray[np.float32]


def _no_ids() -> I32:
    return np.zeros(0, np.int32)


def _no_values() -> F32:
    return np.zeros(0, np.float32)


@dataclass(slots=True)
class SamplingBatch:
    """One entry per sampling row. Applied in this order: raw logprobs are taken first; then mask,
    bias (bans are -inf), penalties, temperature, min_p, top_k, top_p; then the draw."""

    temperature: F32  # [S]; 0 = greedy
    top_k: I32  # [S]; 0 = off
    top_p: F32  # [S]; 1 = off
    min_p: F32  # [S]; 0 = off
    seed: U64  # [S]
    position: I64  # [S] index in the sequence of the token being drawn: the counter of law 1
    repetition: F32  # [S]; 1 = off
    presence: F32  # [S]; 0 = off
    frequency: F32  # [S]; 0 = off
    penalty_row: I32  # [S] row of counts / seen, or -1
    counts: I32  # [penalty rows, vocab] times a token was generated
    seen: U32  # [penalty rows, ceil(vocab / 32)] bit set: token occurs in the prompt
    bias_start: I32  # [S + 1] slices of bias_ids / bias_values
    bias_ids: I32
    bias_values: F32
    mask_row: I32  # [S] row of masks, or -1
    masks: U32  # [mask rows, ceil(vocab / 32)] bit set: token allowed
    num_logprobs: I32  # [S]; -1 = none, 0 = the sampled token, k = also the k best
    processed_logprobs: bool = False  # logprobs of the processed distribution instead of the raw one
    reports_logits: bool = False  # logits wherever logprobs are given, of scored tokens too
    chosen_start: I32 = field(default_factory=_no_ids)  # [S + 1] slices of chosen_ids, if there are any
    chosen_ids: I32 = field(default_factory=_no_ids)  # tokens that rows want logprobs of, drawn or not
    version: int = 0  # equal versions other than 0: equal ROW_SCALARS

    @classmethod
    def greedy(cls, rows: int, vocab_size: int = 0) -> SamplingBatch:
        """The best token of each row: no penalty, no mask, no log-probability."""
        words = -(-vocab_size // 32)
        return cls(
            temperature=np.zeros(rows, np.float32),
            top_k=np.zeros(rows, np.int32),
            top_p=np.ones(rows, np.float32),
            min_p=np.zeros(rows, np.float32),
            seed=np.zeros(rows, np.uint64),
            position=np.zeros(rows, np.int64),
            repetition=np.ones(rows, np.float32),
            presence=np.zeros(rows, np.float32),
            frequency=np.zeros(rows, np.float32),
            penalty_row=np.full(rows, -1, np.int32),
            counts=np.zeros((0, vocab_size), np.int32),
            seen=np.zeros((0, words), np.uint32),
            bias_start=np.zeros(rows + 1, np.int32),
            bias_ids=np.zeros(0, np.int32),
            bias_values=np.zeros(0, np.float32),
            mask_row=np.full(rows, -1, np.int32),
            masks=np.zeros((0, words), np.uint32),
            num_logprobs=np.full(rows, -1, np.int32),
        )


#: Fields of SamplingBatch [S] that stay as they are while the same rows draw.
ROW_SCALARS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "repetition",
    "presence",
    "frequency",
    "num_logprobs",
)


@dataclass(slots=True)
class StepBatch:
    token_ids: I32  # [T]
    positions: I32  # [T]
    row_starts: I32  # [R + 1] first token of each row
    context_lens: I32  # [R] tokens of the row already in the KV cache before this step
    block_tables: I32  # [G, R, B]
    sample_tokens: I32  # [S] index in [0, T) of the token whose logits are sampled
    sampling: SamplingBatch
    score_tokens: I32  # [P] tokens whose logits score the next prompt token
    score_targets: I32  # [P] that next token
    score_top: int = 0  # how many best tokens to report beside each scored target


@dataclass(slots=True)
class StepOutput:
    token_ids: I32  # [S]
    logprobs: F32  # [S] of the sampled token (0 where num_logprobs is -1)
    ranks: I32  # [S] 1 = best
    top_ids: I32  # [S, K] K = largest num_logprobs of the step
    top_logprobs: F32  # [S, K]
    score_logprobs: F32  # [P]
    score_ranks: I32  # [P]
    score_top_ids: I32  # [P, score_top]
    score_top_logprobs: F32  # [P, score_top]
    chosen_logprobs: F32 = field(default_factory=_no_values)  # of SamplingBatch.chosen_ids


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """Resolved: no "auto". `weights`: format of matrices: "f32" "f16" "bf16" "w8" "w4", or "file"
    (keep the lattice of a quantised file where a format can, see quant)."""

    weights: str
    max_tokens: int  # most tokens in one step
    max_rows: int
    max_blocks_per_row: int
    num_threads: int
    isa: str  # native: "generic" | "avx2" | "avx512" | "avx512_bf16" | "avx512_amx" | "neon"; torch: "torch"
    optimization_level: int = 2
    pack_cache: PackCachePlan = field(default_factory=PackCachePlan)  # native


def nothing() -> None:
    pass


class Runs(Protocol):
    """What a worker needs of an executor."""

    def run(self, batch: StepBatch, on_start: Callable[[], None] = nothing) -> StepOutput:
        """`on_start` is called once, when the batch has been read and only computing is left. Raises KernelFault."""
        ...


@runtime_checkable
class RunsOn(Runs, Protocol):
    """An executor that keeps a batch, so that the next step of the same rows need not be written again."""

    def run_on(
        self, new_blocks: list[tuple[int, int, int, list[int]]], on_start: Callable[[], None] = nothing
    ) -> list[int]:
        """The batch before once more, each row one token further: computes what it drew, draws the next.

        For a batch of one token a row, all of which drew one, without scored tokens; all but the contents of tables and
        the positions stays as it was. `new_blocks`: (row, group, first place in its table, ids). Returns the tokens
        `[R]`, -1 as in StepOutput. Raises KernelFault, and ValueError after any other batch.
        """
        ...


@runtime_checkable
class Redraws(Runs, Protocol):
    """An executor that keeps the logits of a step, so that a mask may be made after a draw instead of before."""

    most_redrawn: int  # sampling rows of a step whose logits are kept; none if it scored tokens

    def redraw(self, rows: list[int], mask_rows: list[int], masks: U32) -> list[int]:
        """Draws again for `rows` (sampling rows of the last batch, without mask, bias, penalty and log-probabilities),
        now with `masks[mask_rows[i]]`. Their first draw counts as the first one of `draws_first` (docs/adr/0010), so
        that the tokens are those of a batch with the masks. -1 where a mask allows nothing."""
        ...

    def replace(self, rows: list[int], tokens: list[int]) -> None:
        """What `rows` have drawn is to be `tokens`, should the batch be run on."""
        ...


class Executor(Runs, Protocol):
    """Life: bind -> allocate_kv -> run*. Raises WeightError from `bind`."""

    def bind(self, program: Program, source: ModelSource, options: ExecutorOptions) -> None: ...

    def allocate_kv(self, num_blocks: int) -> None: ...

    def logits(self, batch: StepBatch) -> F32:
        """Raw logits `[S, vocab]` of the sampling rows, without drawing: for tests and scoring tools."""
        ...

    def read_blocks(self, blocks: list[int]) -> npt.NDArray[np.uint8]:
        """`[len(blocks), block_bytes]`: copies of whole blocks (offload, transfer, tests)."""
        ...

    def write_blocks(self, blocks: list[int], data: npt.NDArray[np.uint8]) -> None: ...

    def memory(self) -> dict[str, int]:
        """Bytes by name: weights, kv, arena, sampler."""
        ...

    def describe(self) -> list[list[str]]:
        """Rows [topic, choice, reason] for the table of what actually runs (law 3)."""
        ...

    def close(self) -> None: ...
