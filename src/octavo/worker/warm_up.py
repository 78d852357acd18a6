"""One step before the first request: threads, memory and weights are tried while a refusal is still cheap."""

from __future__ import annotations

import numpy as np

from octavo.errors import KernelFault, WeightError
from octavo.executors.base import Executor, SamplingBatch, StepBatch


def warm_up(executor: Executor, num_groups: int) -> None:
    """Computes one token in block 0, which nobody owns yet. Raises WeightError for a model whose logits
    are not finite: its file is damaged, and every request would fail."""
    try:
        logits = executor.logits(_one_token(num_groups))
    except KernelFault as fault:
        raise WeightError(f"the model does not compute: {fault}", fix="fetch its file again") from fault
    if not np.isfinite(logits).all():
        raise WeightError("the model computes values that are not finite", fix="fetch its file again")


def _one_token(num_groups: int) -> StepBatch:
    zero, one = np.zeros(1, np.int32), np.ones(1, np.int32)
    nothing = np.zeros(0, np.int32)
    return StepBatch(
        token_ids=one,
        positions=zero,
        row_starts=np.asarray([0, 1], np.int32),
        context_lens=zero,
        block_tables=np.zeros((num_groups, 1, 1), np.int32),
        sample_tokens=zero,
        sampling=SamplingBatch.greedy(1),
        score_tokens=nothing,
        score_targets=nothing,
    )
