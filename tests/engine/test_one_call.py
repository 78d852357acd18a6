"""Law 2: a step is one native call, whatever is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engine.real_engine import RealModel
from tests.models.checkpoints import write

from octavo.kernels import native
from octavo.weights.load import open_model
from octavo.wire.messages import EngineRequest
from octavo.wire.sampling import SamplingParams


class Counting:
    """Stands in for the recorded program and counts the calls that compute."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self.runs: list[tuple[int, ...]] = []
        self.num_run_on = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_core", "runs", "num_run_on"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._core, name, value)

    def run(self, *sizes: int) -> None:
        self.runs.append(sizes)
        self._core.run(*sizes)

    def run_on(self, rows: int) -> None:
        self.runs.append((rows, rows, rows, 0))
        self.num_run_on += 1
        self._core.run_on(rows)


def test_a_step_is_one_native_call(tmp_path: Path) -> None:
    model = RealModel(open_model(str(write(tmp_path, "llama"))), isa=native.best_isa())
    executor: Any = model.executor
    executor.core = counting = Counting(executor.core)
    requests = [
        EngineRequest(
            id=str(i),
            prompt=list(range(3, 10 + 20 * i)),
            params=SamplingParams(temperature=i * 0.5, logprobs=i, prompt_logprobs=1 if i == 2 else None),
            max_tokens=6,
            seed=i,
        )
        for i in range(4)
    ]
    answers = model.serve(model.plan(max_tokens=48, prefix_caching=False), requests)
    assert all(len(answer.token_ids) == 6 for answer in answers.values())
    tokens, rows, samples, scored = (sum(column) for column in zip(*counting.runs, strict=True))
    prompts = sum(len(request.prompt) for request in requests)
    assert tokens == prompts + 4 * 5  # every token once: prompts, then all drawn tokens but the last
    assert samples == 4 * 6 and scored == len(requests[2].prompt) - 1
    assert len(counting.runs) < rows <= tokens  # steps hold several rows; none is computed on its own
    model.close()


def test_steps_that_go_on_give_what_steps_gathered_anew_give(tmp_path: Path) -> None:
    """Rows of several lengths and seeds, long enough to take new blocks; then one asks for what forbids it."""

    def answers(**more: Any) -> tuple[list[list[int]], int]:
        model = RealModel(open_model(str(write(tmp_path, "llama"))), isa=native.best_isa())
        executor: Any = model.executor
        executor.core = counting = Counting(executor.core)
        requests = [
            EngineRequest(
                id=str(i),
                prompt=list(range(3, 10 + 9 * i)),
                params=SamplingParams(temperature=i * 0.6, **(more if i == 0 else {})),
                max_tokens=40,
                seed=i,
            )
            for i in range(3)
        ]
        served = model.serve(model.plan(max_tokens=48, prefix_caching=False), requests)
        model.close()
        return [served[str(i)].token_ids for i in range(3)], counting.num_run_on

    went_on, count = answers()
    gathered, none = answers(logprobs=0)
    assert went_on == gathered
    assert count > 25 and none == 0


def test_only_a_batch_of_single_tokens_that_all_drew_is_gone_on_with(tmp_path: Path) -> None:
    model = RealModel(open_model(str(write(tmp_path, "llama"))), isa=native.best_isa())
    executor: Any = model.executor
    with pytest.raises(ValueError, match="a token a row"):
        executor.run_on([])
    with pytest.raises(ValueError, match="can be run on"):
        executor.core.run_on(2)
    model.close()
