"""Beam search over HTTP: the rounds, the answer, usage, what is refused, and what happens when things end early."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.fakes.api_world import World, world
from tests.fakes.scripted_engine import ScriptedEngine
from tests.fakes.toy_codec import BYTE_0, ToyCodec

from octavo.api.beam import BeamRules, BeamSearch, Hypothesis
from octavo.wire.messages import EngineRequest, TokenLogprobs

CODEC = ToyCodec()
EOS = 2


def best_next(tokens: Sequence[int]) -> int:
    """The toy model: its best token after a sequence; the engine ranks the ids after it behind it."""
    return BYTE_0 + 97 + (sum((i + 1) * t for i, t in enumerate(tokens)) * 7) % 11


def ending(tokens: Sequence[int]) -> int:
    """The same, but after some sequences the best token is the end."""
    return EOS if len(tokens) > 6 and sum(tokens) % 3 == 0 else best_next(tokens)


def expected(prompt: list[int], rules: BeamRules, model: Any = best_next) -> list[Hypothesis]:
    search = BeamSearch(rules)
    size = CODEC.vocab_size
    while not search.is_over:
        rows = []
        for tokens in search.open():
            best = model([*prompt, *tokens])
            ids = [(best + i) % size for i in range(rules.num_scores)]
            rows.append(TokenLogprobs(best, -0.25, 1, ids, [-0.25 - i for i in range(len(ids))]))
        search.advance(rows)
    return search.best()


def of(width: int, max_tokens: int, penalty: float = 1.0, **more: Any) -> BeamRules:
    return BeamRules(width, max_tokens, penalty, **{"ends": {EOS: None}, **more})


def script(model: Any = best_next) -> Any:
    return lambda request: [model(request.prompt)]


async def beams(w: World, **body: Any) -> Any:
    answer = await w.complete(use_beam_search=True, return_token_ids=True, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("model", [best_next, ending])
@pytest.mark.parametrize(("width", "penalty"), [(1, 1.0), (3, 1.0), (3, -1.0), (4, 2.0)])
async def test_completions_are_the_sequences_of_the_search(model: Any, width: int, penalty: float) -> None:
    prompt = CODEC.encode("Hello", False)
    async with world(script(model)) as w:
        got = await beams(w, n=width, max_tokens=7, length_penalty=penalty)
    wanted = expected(prompt, of(width, 7, penalty), model)
    assert [c["token_ids"] for c in got["choices"]] == [h.token_ids for h in wanted]
    assert [c["finish_reason"] for c in got["choices"]] == [h.finish.text for h in wanted]
    assert [c["index"] for c in got["choices"]] == list(range(width))
    for choice, h in zip(got["choices"], wanted, strict=True):
        assert choice["text"] == CODEC.decode([t for t in h.token_ids if t != EOS], True)
    assert got["usage"]["prompt_tokens"] == len(prompt)
    assert got["usage"]["completion_tokens"] == sum(len(h.token_ids) for h in wanted)


async def test_rounds_are_one_token_requests_with_twice_the_width_of_logprobs() -> None:
    async with world(script()) as w:
        await beams(w, n=3, max_tokens=4, cache_salt="mine")
        seen = w.engine.seen
    assert [len(r.prompt) for r in seen] == [1] + [2] * 3 + [3] * 3 + [4] * 3
    for request in seen:
        assert (request.max_tokens, request.params.n, request.params.logprobs) == (1, 1, 6)
        assert request.params.temperature == 0
        assert request.eos_ids == []
        assert request.salt is not None


async def test_chat_has_it_too_with_logprobs() -> None:
    async with world(script()) as w:
        answer = await w.chat(
            use_beam_search=True, n=2, max_tokens=5, logprobs=True, top_logprobs=2, return_token_ids=True
        )
        got = answer.json()
        prompt = list(w.engine.seen[0].prompt)
    wanted = expected(prompt, of(2, 5, keep=2))
    for choice, h in zip(got["choices"], wanted, strict=True):
        assert choice["token_ids"] == h.token_ids
        content = choice["logprobs"]["content"]
        assert sum(c["logprob"] for c in content) == pytest.approx(h.logprob)
        assert all(len(c["top_logprobs"]) == 2 for c in content)


async def test_several_prompts_are_searched_each_for_itself() -> None:
    ids = [CODEC.encode(t, False) for t in ("Hello", " world", "ABC", "xyz")]
    async with world(script()) as w:
        got = await beams(w, prompt=ids, n=3, max_tokens=5)
    wanted = [h.token_ids for prompt in ids for h in expected(prompt, of(3, 5))]
    assert [c["token_ids"] for c in got["choices"]] == wanted
    assert got["usage"]["prompt_tokens"] == sum(map(len, ids))


async def test_prompt_logprobs_come_from_the_first_round() -> None:
    async with world(script()) as w:
        got = await beams(w, prompt="Hello world", n=2, max_tokens=3, prompt_logprobs=1)
        wanted = [r.params.prompt_logprobs for r in w.engine.seen]
    assert wanted == [1] + [None] * (len(wanted) - 1)
    for choice in got["choices"]:
        assert len(choice["prompt_logprobs"]) == len(choice["prompt_token_ids"]) == 2


async def test_ends_are_stop_token_ids_and_end_of_text_after_min_tokens() -> None:
    prompt = CODEC.encode("Hello", False)
    stop = best_next([*prompt, best_next(prompt)])
    async with world(script()) as w:
        got = await beams(w, n=2, max_tokens=6, stop_token_ids=[stop])
        later = await beams(w, n=2, max_tokens=6, stop_token_ids=[stop], min_tokens=5)
    wanted = expected(prompt, of(2, 6, ends={EOS: None, stop: stop}))
    assert [c["token_ids"] for c in got["choices"]] == [h.token_ids for h in wanted]
    assert [c["stop_reason"] for c in got["choices"]] == [h.stop_reason for h in wanted]
    assert any(c["stop_reason"] == stop and c["finish_reason"] == "stop" for c in got["choices"])
    assert all(len(c["token_ids"]) >= 6 for c in later["choices"])


@pytest.mark.parametrize(
    "given",
    [
        {"stream": True}, {"stop": ["x"]}, {"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1},
        {"presence_penalty": 1.0}, {"frequency_penalty": 1.0}, {"repetition_penalty": 1.1},
        {"logit_bias": {"20": 1.0}}, {"allowed_token_ids": [20]}, {"bad_words": ["x"]}, {"n": 65},
        {"length_penalty": 11.0}, {"repetition_detection": {"max_pattern_size": 3, "min_count": 2}},
    ],
)  # fmt: skip
async def test_what_cannot_act_is_refused_by_name(given: dict[str, Any]) -> None:
    async with world(script()) as w:
        for answer in (
            await w.chat(use_beam_search=True, **{"n": 2, **given}),
            await w.complete(use_beam_search=True, **{"n": 2, **given}),
        ):
            assert answer.status_code == 400, given
            assert answer.json()["error"]["param"] == next(iter(given))
        assert w.engine.seen == []


async def test_what_asks_for_nothing_is_fine_and_the_servers_defaults_have_no_part() -> None:
    neutral = {"temperature": 0, "top_p": 1.0, "top_k": -1, "seed": 3, "logit_bias": {}, "stop": []}
    defaults = {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.2}
    async with world(script(), generation_config=defaults) as w:
        got = await beams(w, n=2, max_tokens=4, **neutral)
        assert all(r.params.repetition_penalty == 1 for r in w.engine.seen)
        refused = await w.complete(length_penalty=1.5)
    wanted = expected(CODEC.encode("Hello", False), of(2, 4))
    assert [c["token_ids"] for c in got["choices"]] == [h.token_ids for h in wanted]
    assert refused.json()["error"]["param"] == "length_penalty"


async def test_metrics_know_the_choices_of_the_client_only() -> None:
    async with world(script()) as w:
        await beams(w, n=3, max_tokens=4)
        found = await w.metrics()
        assert w.client.num_unfinished == w.state.logs.num_open == 0
    assert found['vllm:request_success_total{finished_reason="length"}'] == 3
    assert found["vllm:generation_tokens_total"] == 12


async def test_a_client_that_leaves_ends_the_round() -> None:
    async with world(script()) as w:
        w.engine.hold.clear()
        task = asyncio.ensure_future(w.complete(use_beam_search=True, n=3, max_tokens=30))
        while not w.engine.seen:
            await asyncio.sleep(0.001)
        assert w.state.admission.num_searches == 1  # what a drain waits for
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while w.client.num_unfinished or w.engine.num_running:
            await asyncio.sleep(0.001)
        assert len(w.engine.aborted) == len(w.engine.seen) == 1
        assert w.state.logs.num_open == w.state.admission.num_searches == 0


async def test_an_engine_that_dies_in_a_round_changes_nothing() -> None:
    async with world(script(), delay_s=0.002) as w:
        task = asyncio.ensure_future(beams(w, n=3, max_tokens=6))
        while len(w.engine.seen) < 6:
            await asyncio.sleep(0.001)
        w.engine.kill()
        w.client.on_engine_down()
        second = ScriptedEngine(CODEC, script())
        w.client.on_engine_up(second)
        got = await task
        await second.close()
    wanted = expected(CODEC.encode("Hello", False), of(3, 6))
    assert [c["token_ids"] for c in got["choices"]] == [h.token_ids for h in wanted]


async def test_a_failure_in_a_round_is_the_failure_of_the_request() -> None:
    def fails(request: EngineRequest) -> list[int]:
        return [best_next(request.prompt)]

    async with world(fails, fail_at=1) as w:
        answer = await w.complete(use_beam_search=True, n=2, max_tokens=4)
        assert answer.status_code == 500
        assert w.client.num_unfinished == w.state.logs.num_open == 0


async def test_logits_are_no_probabilities() -> None:
    async with world(script()) as w:
        w.state.engine = msgspec.structs.replace(w.state.engine, logprobs_mode="raw_logits")
        answer = await w.complete(use_beam_search=True, n=2, max_tokens=4)
    assert answer.status_code == 400
    assert "--logprobs-mode" in answer.json()["error"]["message"]
