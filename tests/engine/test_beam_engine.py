"""Beam search on a whole engine with a real program: equal to transformers' where the rules are the same,
and the same whatever else is in the batch (law 1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.engine.real_engine import RealModel
from tests.models.checkpoints import VOCAB, write
from transformers import AutoModelForCausalLM

from octavo.api.beam import BeamRules, BeamSearch, Hypothesis, search_together
from octavo.core.engine import Engine
from octavo.weights.load import open_model
from octavo.wire.messages import EngineRequest, TokenDelta
from octavo.wire.sampling import SamplingParams
from octavo.worker.worker import Worker

EOS = 2
PROMPTS = [[1, 40, 41, 42, 9], [5, 6, 7], [1, 99, 98, 30, 31, 77, 140, 12], [150], list(range(20, 60))]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("beam"), "llama")


@pytest.fixture(scope="module")
def model(directory: Path) -> Iterator[RealModel]:
    made = RealModel(open_model(str(directory)))
    yield made
    made.close()


class Served:
    """An engine; `strangers` are added to every round, and run on beside the rounds that follow."""

    def __init__(
        self, model: RealModel, *, strangers: bool = False, mode: str = "raw_logprobs", **plan: Any
    ) -> None:
        made = msgspec.structs.replace(model.plan(**plan), logprobs_mode=mode)
        self._worker = Worker(model.executor, made, model.program.kv)
        self._engine = Engine(made, model.program.kv, self._worker)
        self._strangers = strangers
        self._count = 0

    def __call__(self, requests: list[EngineRequest]) -> dict[str, TokenDelta]:
        if self._strangers:
            for i in range(3):
                self._count += 1
                params = SamplingParams(temperature=1.3, max_tokens=40, logprobs=1)
                prompt = [(self._count * 37 + i * j) % VOCAB for j in range(4 + self._count % 23)]
                self._engine.add(
                    EngineRequest(
                        id=f"s{self._count}", prompt=prompt, params=params, max_tokens=7, seed=self._count
                    )
                )
        for request in requests:
            self._engine.add(request)
        wanted, found = {r.id for r in requests}, {}
        while wanted - found.keys():
            for delta in self._engine.pump(timeout_s=60):
                if delta.id in wanted:
                    found[delta.id] = delta
        return found

    def close(self) -> None:
        self._worker.close()


def searched(served: Served, prompts: list[list[int]], rules: BeamRules) -> list[list[Hypothesis]]:
    searches = [(BeamSearch(rules), rules, prompt) for prompt in prompts]
    try:
        search_together(searches, served, lambda: None)
    finally:
        served.close()
    return [search.best() for search, _, _ in searches]


def rules(width: int, max_tokens: int, penalty: float = 1.0, ends: tuple[int, ...] = (EOS,)) -> BeamRules:
    return BeamRules(width, max_tokens, penalty, dict.fromkeys(ends), vocab_size=VOCAB)


@pytest.mark.parametrize("ends", [(EOS,), tuple(range(0, VOCAB, 9))])
@pytest.mark.parametrize(("width", "penalty"), [(2, 1.0), (4, 1.0), (4, 0.0), (3, -1.0), (5, 2.0)])
def test_sequences_and_scores_are_those_of_transformers(
    directory: Path, model: RealModel, width: int, penalty: float, ends: tuple[int, ...]
) -> None:
    """Its defaults: early_stopping False, the end token counted, generated tokens only. Ended ones are padded."""
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    found = searched(Served(model), PROMPTS, rules(width, 12, penalty, ends))
    for prompt, ours in zip(PROMPTS, found, strict=True):
        with torch.no_grad():
            theirs = reference.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                num_beams=width,
                num_return_sequences=width,
                max_new_tokens=12,
                length_penalty=penalty,
                do_sample=False,
                eos_token_id=list(ends),
                pad_token_id=ends[0],
                return_dict_in_generate=True,
                output_scores=True,
            )
        for hypothesis, sequence in zip(ours, theirs.sequences[:, len(prompt) :].tolist(), strict=True):
            length = len(hypothesis.token_ids)
            assert hypothesis.token_ids == sequence[:length]
            assert set(sequence[length:]) <= {ends[0]}
        assert [h.score for h in ours] == pytest.approx(theirs.sequences_scores.tolist(), abs=2e-4)


def test_law_1_the_batch_the_cache_and_preemption_change_nothing(model: RealModel) -> None:
    asked = rules(4, 20)
    together = searched(Served(model), PROMPTS, asked)
    alone = [searched(Served(model), [prompt], asked)[0] for prompt in PROMPTS]
    crowded = searched(Served(model, strangers=True, depth=2), PROMPTS, asked)
    uncached = searched(Served(model, prefix_caching=False, max_tokens=17), PROMPTS, asked)
    tight = searched(Served(model, strangers=True, num_blocks=14), PROMPTS, asked)
    processed = searched(Served(model, mode="processed_logprobs"), PROMPTS, asked)
    assert together == alone == crowded == uncached == tight == processed
