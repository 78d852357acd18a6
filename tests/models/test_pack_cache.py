"""Answers are the same, bit for bit, with weights packed anew and with weights mapped from the pack cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.harness import Runner, Setup
from tests.models.tiny import PROMPTS, Checkpoint

from octavo.config.plan import PackCachePlan
from octavo.kernels import native
from octavo.weights import pack_cache
from octavo.weights.load import open_model


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_cache, "SETTLED_S", -1.0)
    monkeypatch.setattr(pack_cache, "FREE_BYTES", 0)


def start(directory: str, folder: Path | None, **setup: Any) -> tuple[list[Any], str]:
    """Logits of PROMPTS, one chunk and three, and what the table says of the cache."""
    plan = PackCachePlan(folder=str(folder), max_bytes=1 << 30) if folder else PackCachePlan()
    runner = Runner("native", open_model(directory), Setup(pack_cache=plan, **setup))
    logits = runner.sequences(PROMPTS) + runner.sequences(PROMPTS, chunks=(5, 1, 9))
    (row,) = [row for row in runner.executor.describe() if row[0] == "pack cache"]
    runner.executor.close()
    return logits, row[1]


@pytest.mark.parametrize("weights", ["file", "f32", "f16", "bf16", "w8", "w4"])
@pytest.mark.parametrize("name", ["llama-odd-heads-biases", "gemma3"])
def test_logits_are_those_of_fresh_weights(
    name: str, weights: str, checkpoint: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    """One file serves every instruction set."""
    directory, _ = checkpoint(name)
    outcomes = []
    for isa in native.isas():
        fresh, _ = start(directory, None, weights=weights, isa=isa)
        for threads in (1, 2):
            found, outcome = start(directory, tmp_path, weights=weights, isa=isa, num_threads=threads)
            outcomes.append(outcome)
            for a, b in zip(found, fresh, strict=True):
                np.testing.assert_array_equal(a, b)
    assert outcomes == ["miss"] + ["hit"] * (len(outcomes) - 1)
    assert len(list(tmp_path.iterdir())) == 1


def test_unfused_programs_have_a_file_of_their_own(
    checkpoint: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    directory, _ = checkpoint("llama")
    found = [start(directory, tmp_path, level=level)[1] for level in (2, 0, 2, 0)]
    assert found == ["miss", "miss", "hit", "hit"]
