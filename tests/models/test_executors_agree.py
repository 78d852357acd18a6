"""One step with every kind of sampling row, run by both executors: same tokens, same log-probabilities."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.models.harness import open_runner
from tests.models.tiny import PROMPTS, VOCAB, Checkpoint

from octavo.executors.base import SamplingBatch, StepOutput

ROWS = 24


def mixed_sampling(mode: str) -> SamplingBatch:
    """Row i differs from its neighbours in every parameter; some rows have it off."""
    rng = np.random.default_rng(5)
    i = np.arange(ROWS)
    words = -(-VOCAB // 32)
    some = rng.random((4, VOCAB)) < 0.6
    bits = np.packbits(np.pad(some, ((0, 0), (0, words * 32 - VOCAB))), axis=1, bitorder="little").view("<u4")
    return SamplingBatch(
        temperature=np.array([0.0, 0.7, 1.0, 1.6], np.float32)[i % 4],
        top_k=np.array([0, 5, 40, 1, 0], np.int32)[i % 5],
        top_p=np.array([1.0, 0.9, 0.5], np.float32)[i % 3],
        min_p=np.array([0.0, 0.0, 0.05, 0.0], np.float32)[i // 2 % 4],
        seed=rng.integers(0, 2**63, ROWS).astype(np.uint64),
        position=i.astype(np.int64) + 100,
        repetition=np.array([1.0, 1.3], np.float32)[i // 3 % 2],
        presence=np.array([0.0, 0.5], np.float32)[i // 4 % 2],
        frequency=np.array([0.0, 0.2], np.float32)[i // 5 % 2],
        penalty_row=np.array([-1, 0, 1], np.int32)[i % 3],
        counts=rng.integers(0, 3, (2, VOCAB)).astype(np.int32),
        seen=np.ascontiguousarray(bits[:2]),
        bias_start=np.arange(0, 2 * ROWS + 1, 2, dtype=np.int32),
        bias_ids=rng.integers(0, VOCAB, 2 * ROWS).astype(np.int32),
        bias_values=np.tile(np.array([-np.inf, 1.5], np.float32), ROWS),
        mask_row=np.array([-1, 0, -1, 1, -1], np.int32)[i % 5],
        masks=np.ascontiguousarray(bits[2:]),
        num_logprobs=np.array([-1, 0, 3, 7], np.int32)[i % 4],
        processed_logprobs=mode.startswith("processed"),
        reports_logits=mode.endswith("logits"),
        chosen_start=np.r_[0, np.cumsum(i % 3)].astype(np.int32),
        chosen_ids=rng.integers(0, VOCAB, int((i % 3).sum())).astype(np.int32),
    )


def outcome(executor: str, directory: str, mode: str) -> StepOutput:
    runner = open_runner(executor, directory)
    batch = runner.batch([(runner.row(prompt), len(prompt)) for prompt in PROMPTS])
    batch.sample_tokens = np.linspace(0, len(batch.token_ids) - 1, ROWS).astype(np.int32)
    batch.sampling = mixed_sampling(mode)
    batch.score_tokens = np.array([0, 5, 50], np.int32)
    batch.score_targets = np.array([17, 199, 0], np.int32)
    batch.score_top = 4
    return runner.executor.run(batch)


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_steps_agree(name: str, mode: str, checkpoint: Callable[[str], Checkpoint]) -> None:
    directory, _ = checkpoint(name)
    expected, found = (outcome(executor, directory, mode) for executor in ("torch", "native"))
    for field in ("token_ids", "ranks", "top_ids", "score_ranks", "score_top_ids"):
        np.testing.assert_array_equal(getattr(found, field), getattr(expected, field), err_msg=field)
    for field in ("logprobs", "score_logprobs", "score_top_logprobs"):
        np.testing.assert_allclose(getattr(found, field), getattr(expected, field), atol=1e-4, err_msg=field)
    asked = mixed_sampling(mode)
    wants = np.repeat(asked.num_logprobs >= 0, np.diff(asked.chosen_start))
    np.testing.assert_allclose(found.chosen_logprobs[wants], expected.chosen_logprobs[wants], atol=1e-4)
    assert np.isneginf(expected.chosen_logprobs[wants]).any() == asked.processed_logprobs
    filled = expected.top_ids >= 0
    np.testing.assert_allclose(found.top_logprobs[filled], expected.top_logprobs[filled], atol=1e-4)
