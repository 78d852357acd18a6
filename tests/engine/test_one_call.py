"""Law 2: a step is one native call, whatever is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_core", "runs"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._core, name, value)

    def run(self, *sizes: int) -> None:
        self.runs.append(sizes)
        self._core.run(*sizes)


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
