"""The torch executor beyond logits: sampler, scoring, weight formats, faults. It is the oracle, so its
parts are checked against what is known of them rather than against another implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.models.harness import Runner, Setup, open_runner
from tests.models.tiny import PROMPTS, VOCAB, Checkpoint
from torch.nn import functional

from octavo.errors import CapacityError, ConfigError, KernelFault, WeightError
from octavo.executors.base import ExecutorOptions, SamplingBatch, StepBatch
from octavo.executors.torch_executor import TorchExecutor
from octavo.executors.torch_executor.sampler import finish_step, philox, sample_row, uniform
from octavo.models.registry import build_program
from octavo.weights.load import open_model

Checkpoints = Callable[[str], Checkpoint]


def test_philox_known_answers() -> None:
    """Vectors of the authors' library (Random123, kat_vectors)."""
    ones = 0xFFFFFFFF
    assert philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((ones,) * 4, (ones,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert philox(pi, (0xA4093822, 0x299F31D0)) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


def test_uniform_is_uniform() -> None:
    values = np.array([uniform(7, p) for p in range(2000)] + [uniform(s << 40, 3) for s in range(2000)])
    assert ((values >= 0) & (values < 1)).all()
    counts, _ = np.histogram(values, 10, (0, 1))
    assert abs(counts - 400).max() < 100
    assert len(set(values)) == len(values)


# ---- the sampler --------------------------------------------------------------------------------


def sampling(rows: int, vocab: int, **changes: object) -> SamplingBatch:
    arrays = {
        name: np.full(rows, value, getattr(SamplingBatch.greedy(rows, vocab), name).dtype)
        if np.isscalar(value) and name != "processed_logprobs"
        else value
        for name, value in changes.items()
    }
    return replace(SamplingBatch.greedy(rows, vocab), **arrays)  # type: ignore[arg-type]


def draws(logits: list[float], count: int, **changes: object) -> np.ndarray:
    """Token frequencies over `count` positions."""
    x = np.array(logits, np.float64)
    s = sampling(count, len(x), **{"temperature": 1.0, "position": np.arange(count), **changes})
    tokens = [sample_row(x, s, row)[0] for row in range(count)]
    return np.bincount(tokens, minlength=len(x)) / count


def test_greedy_takes_the_lowest_of_equals() -> None:
    token, _ = sample_row(np.array([1.0, 3.0, 3.0, 2.0]), sampling(1, 4), 0)
    assert token == 1


def test_frequencies_follow_the_distribution() -> None:
    logits = [0.0, 1.0, 2.0, -1.0]
    for temperature in (0.5, 1.0, 2.0):
        expected = functional.softmax(torch.tensor(logits) / temperature, 0).numpy()
        assert np.abs(draws(logits, 3000, temperature=temperature) - expected).max() < 0.03


def test_top_k_top_p_min_p() -> None:
    logits = np.log([0.1, 0.4, 0.1, 0.25, 0.15]).tolist()
    assert (draws(logits, 400, top_k=2) > 0).tolist() == [False, True, False, True, False]
    assert (draws(logits, 400, top_k=4) > 0).tolist() == [True, True, False, True, True]  # tie: lower id
    assert (draws(logits, 400, top_p=0.6) > 0).tolist() == [False, True, False, True, False]
    assert (draws(logits, 400, top_p=0.89) > 0).tolist() == [True, True, False, True, True]
    assert (draws(logits, 400, min_p=0.3) > 0).tolist() == [False, True, False, True, True]
    assert (draws(logits, 50, top_p=0.0) > 0).tolist() == [False, True, False, False, False]
    both = draws(logits, 400, top_k=2, top_p=0.6)  # of 0.4 and 0.25 the first is 0.615 of the rest
    assert (both > 0).tolist() == [False, True, False, False, False]


def test_masks_biases_and_penalties() -> None:
    x = np.array([3.0, 2.0, 1.0, -1.0])

    def token(**changes: object) -> int:
        return sample_row(x, sampling(1, 4, **changes), 0)[0]

    ids: dict[str, object] = {"bias_start": np.array([0, 1], np.int32)}
    assert token(masks=np.array([[0b1100]], np.uint32), mask_row=0) == 2
    assert token(bias_ids=np.array([3]), bias_values=np.array([5.0]), **ids) == 3
    assert token(bias_ids=np.array([0]), bias_values=np.array([-np.inf]), **ids) == 1
    history: dict[str, object] = {
        "penalty_row": 0,
        "counts": np.array([[2, 0, 0, 0]]),
        "seen": np.array([[0b0010]], np.uint32),
    }
    assert token(**history) == 0
    assert token(presence=1.5, **history) == 1
    assert token(frequency=0.4, **history) == 0
    assert token(frequency=0.6, **history) == 1
    assert token(repetition=4.0, **history) == 2  # 0 was generated, 1 is in the prompt


def test_nothing_to_draw_from() -> None:
    x = np.array([1.0, 2.0])
    assert sample_row(x, sampling(1, 2, masks=np.zeros((1, 1), np.uint32), mask_row=0), 0)[0] == -1
    assert sample_row(np.array([1.0, np.nan]), sampling(1, 2), 0)[0] == -1
    assert sample_row(np.array([1.0, np.inf]), sampling(1, 2), 0)[0] == -1


def step(s: SamplingBatch, targets: list[int], top: int) -> StepBatch:
    rows = len(s.temperature)
    none = np.zeros(0, np.int32)
    return StepBatch(
        none,
        none,
        none,
        none,
        none,
        np.arange(rows, dtype=np.int32),
        s,
        np.arange(len(targets), dtype=np.int32),
        np.array(targets, np.int32),
        top,
    )


def test_logprobs_ranks_and_scores() -> None:
    logits = np.array([[2.0, 2.0, 0.0, 1.0], [0.0, 1.0, 2.0, 3.0], [1.0, 0.0, 1.0, 3.0]], np.float32)
    expected = functional.log_softmax(torch.tensor(logits), 1).numpy()
    s = sampling(2, 4, num_logprobs=np.array([-1, 2], np.int32))
    out = finish_step(logits, step(s, [2], 3))
    assert out.token_ids.tolist() == [0, 3]
    assert out.top_ids.tolist() == [[-1, -1], [3, 2]]
    np.testing.assert_allclose(out.logprobs, [0.0, expected[1, 3]], rtol=1e-6)
    np.testing.assert_allclose(out.top_logprobs[1], expected[1, [3, 2]], rtol=1e-6)
    assert out.ranks.tolist() == [0, 1]
    assert out.score_ranks.tolist() == [3]
    assert out.score_top_ids.tolist() == [[3, 0, 2]]
    np.testing.assert_allclose(out.score_logprobs, [expected[2, 2]], rtol=1e-6)


def test_processed_logprobs_are_those_of_what_is_left() -> None:
    logits = np.log(np.array([[0.5, 0.3, 0.2]], np.float32))
    s = sampling(1, 3, temperature=1.0, top_k=2, num_logprobs=3, processed_logprobs=True)
    out = finish_step(logits, step(s, [], 0))
    assert out.top_ids.tolist() == [[0, 1, -1]]
    np.testing.assert_allclose(np.exp(out.top_logprobs[0, :2]), [0.625, 0.375], rtol=1e-6)


# ---- the executor -------------------------------------------------------------------------------


def test_run_samples_and_scores(checkpoint: Checkpoints) -> None:
    directory, reference = checkpoint("qwen2")
    runner = open_runner("torch", directory)
    prompt = PROMPTS[0]
    batch = runner.batch([(runner.row(prompt), len(prompt))])
    batch.sample_tokens, batch.sampling = batch.sample_tokens[-1:], SamplingBatch.greedy(1, VOCAB)
    batch.score_tokens = np.arange(len(prompt) - 1, dtype=np.int32)
    batch.score_targets = np.array(prompt[1:], np.int32)
    out = runner.executor.run(batch)
    assert out.token_ids.tolist() == [int(reference[0][-1].argmax())]
    expected = functional.log_softmax(torch.tensor(reference[0]), 1).numpy()
    np.testing.assert_allclose(
        out.score_logprobs, expected[np.arange(len(prompt) - 1), prompt[1:]], atol=1e-4, rtol=1e-4
    )


def test_a_step_may_sample_nothing(checkpoint: Checkpoints) -> None:
    runner = open_runner("torch", checkpoint("llama")[0])
    batch = runner.batch([(runner.row(PROMPTS[0]), 5)])
    batch.sample_tokens, batch.sampling = batch.sample_tokens[:0], SamplingBatch.greedy(0, VOCAB)
    out = runner.executor.run(batch)
    assert out.token_ids.shape == (0,)
    assert out.top_ids.shape == (0, 0)


@pytest.mark.parametrize(("weights", "bound"), [("bf16", 0.05), ("f16", 0.01), ("file", 1e-4), ("w8", 1e-4)])
def test_weight_formats(weights: str, bound: float, checkpoint: Checkpoints) -> None:
    directory, reference = checkpoint("qwen2")
    runner = open_runner("torch", directory, Setup(weights=weights))
    (logits,) = runner.sequences(PROMPTS[:1])
    error = np.abs(logits - reference[0]).max() / np.abs(reference[0]).max()
    assert error < bound
    rows = {row[0]: row for row in runner.executor.describe()}
    assert rows["matrices"][1] == {"bf16": "bfloat16", "f16": "float16"}.get(weights, "float32")
    assert weights not in ("file", "w8") or "expanded" in rows["matrices"][2]


def test_tied_weights_are_held_once(checkpoint: Checkpoints) -> None:
    tied, apart = (open_runner("torch", checkpoint(name)[0]) for name in ("qwen2", "llama"))
    embedding = VOCAB * 64 * 4
    biases = 2 * (64 + 32 + 32) * 4
    weights = [runner.executor.memory()["weights"] for runner in (tied, apart)]
    assert weights[1] - weights[0] == embedding - biases


def test_float64_agrees_with_float32(checkpoint: Checkpoints) -> None:
    directory, _ = checkpoint("gemma3")
    runner = open_runner("torch", directory)
    sharp = TorchExecutor(dtype="f64")
    sharp.bind(runner.program, runner.source, options())
    sharp.allocate_kv(64)
    batch = runner.batch([(runner.row(PROMPTS[0]), 20)])
    batch.block_tables = np.arange(batch.block_tables.size, dtype=np.int32).reshape(batch.block_tables.shape)
    plain = runner.executor.logits(batch)
    np.testing.assert_allclose(plain, sharp.logits(batch), atol=1e-4, rtol=1e-4)


def options(weights: str = "f32") -> ExecutorOptions:
    return ExecutorOptions(
        weights=weights, max_tokens=64, max_rows=64, max_blocks_per_row=16, num_threads=1, isa="torch"
    )


def test_faults_say_where(checkpoint: Checkpoints) -> None:
    runner: Runner = open_runner("torch", checkpoint("llama")[0])
    with pytest.raises(KernelFault, match=r"op 'embed' at program position 0"):
        runner.step([(runner.row([VOCAB + 5]), 1)])


def test_a_step_that_is_too_large_is_refused(checkpoint: Checkpoints) -> None:
    runner = open_runner("torch", checkpoint("llama")[0], Setup(max_tokens=8))
    with pytest.raises(CapacityError, match="a step of 9 tokens was given; 8 are allowed"):
        runner.step([(runner.row(PROMPTS[0]), 9)])


def test_errors_of_life(checkpoint: Checkpoints) -> None:
    source = open_model(checkpoint("llama")[0])
    executor = TorchExecutor()
    with pytest.raises(ConfigError, match="no program is bound"):
        executor.allocate_kv(4)
    program = build_program(source.config, block_size=8, kv_dtype="f32")
    with pytest.raises(ConfigError, match="allowed: f32, f16"):
        executor.bind(program, source, options("int3"))
    executor.bind(program, source, options())
    with pytest.raises(CapacityError, match="no KV memory"):
        executor.read_blocks([0])
    wider = build_program({**source.config, "vocab_size": VOCAB + 1}, block_size=8, kv_dtype="f32")
    with pytest.raises(WeightError, match=r"the model needs \[201, 64\]"):
        executor.bind(wider, source, options())
    with pytest.raises(ConfigError, match="no instruction set 'avx2'"):
        executor.bind(program, source, replace(options(), isa="avx2"))
    with pytest.raises(ConfigError, match="not in 'f8'"):
        TorchExecutor(dtype="f8")
    executor.close()
    assert executor.memory()["weights"] == 0
