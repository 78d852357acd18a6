"""Every family against transformers' float32 logits, however the prompts are cut and batched."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.models.harness import Setup, open_runner
from tests.models.tiny import CASES, PROMPTS, Checkpoint

TOLERANCE = 2e-4
SCHEDULES = {
    "one piece": (1 << 30,),
    "token by token": (1,),
    "chunks": (5, 1, 18, 3),
    "prefill then decode": (29, 1, 1, 1, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(
    name: str, executor: str, checkpoint: Callable[[str], Checkpoint]
) -> None:
    directory, reference = checkpoint(name)
    runner = open_runner(executor, directory)
    for schedule, chunks in SCHEDULES.items():
        for prompt, logits, expected in zip(
            PROMPTS, runner.sequences(PROMPTS, chunks), reference, strict=True
        ):
            np.testing.assert_allclose(
                logits,
                expected,
                atol=TOLERANCE,
                rtol=TOLERANCE,
                err_msg=f"{schedule}, prompt of {len(prompt)}",
            )


@pytest.mark.parametrize("name", CASES)
def test_passes_keep_the_function(name: str, executor: str, checkpoint: Callable[[str], Checkpoint]) -> None:
    directory, reference = checkpoint(name)
    runner = open_runner(executor, directory, Setup(level=0))
    for logits, expected in zip(runner.sequences(PROMPTS, (4, 7)), reference, strict=True):
        np.testing.assert_allclose(logits, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("block_size", [32, 48])
def test_block_size_does_not_matter(
    name: str, block_size: int, executor: str, checkpoint: Callable[[str], Checkpoint]
) -> None:
    directory, reference = checkpoint(name)
    runner = open_runner(executor, directory, Setup(block_size=block_size))
    for logits, expected in zip(runner.sequences(PROMPTS, (6, 2)), reference, strict=True):
        np.testing.assert_allclose(logits, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", ["llama-odd-heads-biases", "gemma3"])
def test_bf16_kv_is_close(name: str, executor: str, checkpoint: Callable[[str], Checkpoint]) -> None:
    directory, reference = checkpoint(name)
    runner = open_runner(executor, directory, Setup(kv_dtype="bf16", block_size=16))
    for logits, expected in zip(runner.sequences(PROMPTS, (6, 2)), reference, strict=True):
        assert np.abs(logits - expected).max() < 0.05 * np.abs(expected).max()


def test_blocks_move(executor: str, checkpoint: Callable[[str], Checkpoint]) -> None:
    """A row whose blocks are copied elsewhere goes on as if nothing had happened."""
    directory, reference = checkpoint("gemma3")
    runner = open_runner(executor, directory)
    row = runner.row(PROMPTS[0])
    runner.step([(row, 20)])
    for table in row.tables:
        new = [runner.take() for _ in table]
        runner.executor.write_blocks(new, runner.executor.read_blocks(table))
        runner.executor.write_blocks(table, np.full((len(table), runner.layout.block_bytes), 0xFF, np.uint8))
        table[:] = new
    (logits,) = runner.step([(row, len(row.tokens) - 20)])
    np.testing.assert_allclose(logits, reference[0][20:], atol=TOLERANCE, rtol=TOLERANCE)
