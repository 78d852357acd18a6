"""Rewritten programs compute what the original computes: random programs, run by the torch executor."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.random_program import random_program

from octavo.executors.base import ExecutorOptions, SamplingBatch, StepBatch
from octavo.executors.torch_executor import TorchExecutor
from octavo.models.registry import weights_of
from octavo.program.passes import fuse, gather_early, plan_memory
from octavo.program.program import Program
from octavo.weights.source import ModelSource, RawTensor, TensorInfo, TokenizerFiles

OPTIONS = ExecutorOptions(
    weights="f32", max_tokens=8, max_rows=8, max_blocks_per_row=4, num_threads=1, isa="torch"
)


@dataclass(slots=True)
class RandomSource(ModelSource):
    """Every tensor that a program wants, with values that follow from its name's place."""

    values: dict[str, np.ndarray] = field(default_factory=dict)

    def read(self, name: str) -> RawTensor:
        value = self.values[name]
        info = TensorInfo(name, value.shape, "F32", value.nbytes, "", 0)
        return RawTensor(info, np.frombuffer(value.tobytes(), np.uint8))


def source_of(program: Program) -> RandomSource:
    rng = np.random.default_rng(0)
    shapes = sorted(weights_of(program).items())
    values = {name: (rng.standard_normal(shape) / 4).astype(np.float32) for name, shape in shapes}
    return RandomSource("", "random", {}, {}, TokenizerFiles(), values=values)


def batch() -> StepBatch:
    """Two rows of 3 and 2 tokens, of which the last of each samples and one scores."""
    return StepBatch(
        token_ids=np.array([3, 1, 20, 7, 7], np.int32),
        positions=np.array([0, 1, 2, 9, 10], np.int32),
        row_starts=np.array([0, 3, 5], np.int32),
        context_lens=np.array([0, 9], np.int32),
        block_tables=np.arange(2 * 4, dtype=np.int32).reshape(1, 2, 4),
        sample_tokens=np.array([2, 4], np.int32),
        sampling=SamplingBatch.greedy(2, 24),
        score_tokens=np.array([0], np.int32),
        score_targets=np.array([1], np.int32),
    )


def outputs(program: Program, source: RandomSource) -> dict[str, np.ndarray]:
    executor = TorchExecutor(dtype="f64")
    executor.bind(program, source, OPTIONS)
    executor.allocate_kv(8)
    return {name: executor.hidden(batch(), name) for name in program.outputs}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**9), length=st.integers(1, 30))
def test_rewritten_programs_compute_the_same(seed: int, length: int) -> None:
    program = random_program(seed, length)
    source = source_of(program)
    expected = outputs(program, source)
    early = gather_early(program)
    for rewritten in (fuse(program), early, plan_memory(fuse(early))):
        found = outputs(rewritten, source)
        for name, value in expected.items():
            assert found[name].shape == value.shape
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
