"""An executor without arithmetic: the drawn token is a function of the history that the batch shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from octavo.executors.base import StepBatch, StepOutput, nothing

I32 = npt.NDArray[np.int32]


class CountingExecutor:
    """Draws (sum of the row's last token and its position) mod vocab, and keeps every batch it saw."""

    def __init__(self, vocab_size: int = 97) -> None:
        self.vocab_size = vocab_size
        self.batches: list[StepBatch] = []
        self.fail_with: Exception | None = None

    def run(self, batch: StepBatch, on_start: Callable[[], None] = nothing) -> StepOutput:
        on_start()
        if self.fail_with is not None:
            raise self.fail_with
        self.batches.append(batch)
        drawn = (
            batch.token_ids[batch.sample_tokens] + batch.positions[batch.sample_tokens]
        ) % self.vocab_size
        wanted = max(int(batch.sampling.num_logprobs.max(initial=0)), 0)
        scored, top = len(batch.score_tokens), batch.score_top
        return StepOutput(
            token_ids=drawn.astype(np.int32),
            logprobs=np.full(len(drawn), -0.5, np.float32),
            ranks=np.ones(len(drawn), np.int32),
            top_ids=np.tile(np.arange(wanted, dtype=np.int32), (len(drawn), 1)),
            top_logprobs=np.zeros((len(drawn), wanted), np.float32),
            score_logprobs=-batch.score_targets.astype(np.float32),
            score_ranks=np.ones(scored, np.int32),
            score_top_ids=np.zeros((scored, top), np.int32),
            score_top_logprobs=np.zeros((scored, top), np.float32),
        )


class KeepingExecutor(CountingExecutor):
    """One that can run on; `fails(batch)` are rows for which nothing can be drawn. Counts how often it ran on."""

    def __init__(
        self, vocab_size: int = 97, fails: Callable[[StepBatch], npt.NDArray[np.bool_]] | None = None
    ) -> None:
        super().__init__(vocab_size)
        self.fails = fails
        self.num_run_on = 0
        self._drawn: I32 = np.zeros(0, np.int32)

    def run(self, batch: StepBatch, on_start: Callable[[], None] = nothing) -> StepOutput:
        output = super().run(batch, on_start)
        if self.fails is not None:
            output.token_ids[self.fails(batch)] = -1
        self._drawn = output.token_ids
        return output

    def run_on(
        self, new_blocks: list[tuple[int, int, int, list[int]]], on_start: Callable[[], None] = nothing
    ) -> list[int]:
        self.num_run_on += 1
        last = self.batches[-1]
        tables = np.zeros((*last.block_tables.shape[:2], 32), np.int32)
        tables[:, :, : last.block_tables.shape[2]] = last.block_tables
        for row, group, first, ids in new_blocks:
            tables[group, row, first : first + len(ids)] = ids
        batch = replace(
            last,
            token_ids=self._drawn,
            positions=last.positions + 1,
            context_lens=last.context_lens + 1,
            block_tables=tables,
            sampling=replace(last.sampling, position=last.sampling.position + 1),
        )
        drawn: list[int] = self.run(batch, on_start).token_ids.tolist()
        return drawn
