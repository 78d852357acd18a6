"""BB-141 on every prompt of llama_cpp_ids.json: nothing is chosen, and each of llama.cpp's tokens is looked at.

llama.cpp's own answer is given to the model, and at each of its tokens we ask what we would have said. So one
early difference hides nothing behind it. The measure of what a difference means is exact arithmetic: the
file's own weights as float32, activations not rounded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams

NEAR_TIE = 0.25  # nats, in our distribution
WORST = 1.0  # nats
SCORED = 20
PROMPTS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "llama_cpp_ids.json").read_text(encoding="utf-8")
)["prompts"]


@dataclass
class Position:
    """A token of llama.cpp: our rank of it, and how much better we find our own best (nats)."""

    place: str
    rank: int
    gap: float


def positions(path: str, **options: Any) -> list[Position]:
    found = []
    with LLM(path, max_model_len=256, max_num_seqs=8, threads=1, **options) as llm:
        answers = [[*case["prompt_ids"], *case["ids"]] for case in PROMPTS]
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=SCORED)
        for case, got in zip(PROMPTS, llm.generate(answers, params, use_tqdm=False), strict=True):
            rows = (got.prompt_logprobs or [])[len(case["prompt_ids"]) :]
            for i, (row, token) in enumerate(zip(rows, case["ids"], strict=True)):
                best = max(other.logprob for other in (row or {}).values())
                theirs = (row or {})[token]
                found.append(Position(f"{case['prompt']!r} {i}", theirs.rank or 0, best - theirs.logprob))
    return found


@pytest.fixture(scope="module")
def ours(smollm2_path: str) -> list[Position]:
    """What is served: the file's own lattice, activations rounded to int8."""
    return positions(smollm2_path)


@pytest.fixture(scope="module")
def exact(smollm2_path: str) -> list[Position]:
    return positions(smollm2_path, dtype="float32", quantization="none")


def test_bb_141_19_of_20_tokens_of_llama_cpp_are_our_best(
    ours: list[Position], exact: list[Position]
) -> None:
    """Exact arithmetic agrees no more often: the difference is llama.cpp's rounding as much as ours."""
    assert len(ours) == 20 * len(PROMPTS) == 460
    agreeing = sum(p.rank == 1 for p in ours)
    assert agreeing >= 0.95 * len(ours)
    assert agreeing >= sum(p.rank == 1 for p in exact) - 0.02 * len(ours)


def test_bb_141_every_other_token_is_among_our_best(ours: list[Position]) -> None:
    """In 99 of 100 places a near tie or the same. The rest hang on roundings: exact arithmetic finds llama.cpp's
    token up to 0.56 nats worse there, and each instruction set of ours another amount (0.94 was seen)."""
    for p in ours:
        assert p.rank <= 4, p
        assert p.gap < WORST, p
    assert sum(p.gap >= NEAR_TIE for p in ours) <= 0.01 * len(ours)
