"""An executor without arithmetic: the drawn token is a function of the history that the batch shows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from octavo.executors.base import StepBatch, StepOutput, nothing


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
