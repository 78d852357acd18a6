"""logprob_token_ids and repetition_detection over HTTP: what is refused, what travels, what comes back."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.test_fold import sse
from tests.fakes.api_world import world
from tests.fakes.toy_codec import ToyCodec

from octavo.wire.sampling import RepetitionDetectionParams

CHOSEN = [70, 65, 104]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"logprob_token_ids": [1] * 129}, "logprob_token_ids", "at most 128"),
        ({"logprob_token_ids": [1, -1]}, "logprob_token_ids", "token id -1"),
        ({"logprob_token_ids": [10**6]}, "logprob_token_ids", "the vocabulary"),
        ({"logprob_token_ids": ["a"]}, "logprob_token_ids[0]", "integer"),
        ({"repetition_detection": {"max_pattern_size": -1}}, "repetition_detection.max_pattern_size", "0 "),
        ({"repetition_detection": {"max_pattern_size": 3}}, "repetition_detection.min_count", "2 and more"),
        (
            {"repetition_detection": {"max_pattern_size": 3, "min_pattern_size": 4, "min_count": 2}},
            "repetition_detection.min_pattern_size",
            "which is 3",
        ),
        ({"repetition_detection": {"max_size": 3}}, "repetition_detection.max_size", "not permitted"),
        ({"repetition_detection": {"max_pattern_size": 2**70}}, "repetition_detection.max_pattern_size", ""),
        ({"repetition_detection": 5}, "repetition_detection", ""),
    ],
)
async def test_what_cannot_act_is_refused_on_both_routes(
    fields: dict[str, Any], param: str, words: str
) -> None:
    async with world() as w:
        for answer in (await w.chat(**fields), await w.complete(**fields)):
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert error["param"] == param and words in error["message"]
        assert not w.engine.seen


async def test_other_logprobs_beside_chosen_ids_are_refused() -> None:
    async with world() as w:
        for answer in (
            await w.chat(logprob_token_ids=CHOSEN, logprobs=True, top_logprobs=2),
            await w.complete(logprob_token_ids=CHOSEN, logprobs=2),
            await w.chat(logprob_token_ids=CHOSEN, logprobs=False),
        ):
            assert answer.status_code == 400 and "logprobs" in answer.json()["error"]["message"]
        for answer in (
            await w.chat(logprob_token_ids=CHOSEN, logprobs=True, top_logprobs=3),
            await w.complete(logprob_token_ids=CHOSEN, logprobs=3),
        ):
            assert answer.status_code == 200


async def test_values_that_ask_for_nothing_leave_nothing_behind() -> None:
    neutral: dict[str, Any] = {"logprob_token_ids": [], "repetition_detection": {}}
    async with world() as w:
        for answer in (await w.chat(**neutral), await w.complete(**neutral)):
            assert answer.status_code == 200
            assert answer.json()["choices"][0]["logprobs"] is None
        assert [r.params.repetition_detection for r in w.engine.seen] == [None, None]


@pytest.mark.parametrize("given", [{}, {"logprobs": True}])
async def test_chat_shows_the_chosen_tokens_in_their_order(given: dict[str, bool]) -> None:
    codec = ToyCodec()
    async with world("Hi", codec=codec) as w:
        whole = await w.chat(logprob_token_ids=CHOSEN, **given)
        streamed = await w.chat(logprob_token_ids=CHOSEN, stream=True, **given)
    content = whole.json()["choices"][0]["logprobs"]["content"]
    assert [[t["logprob"] for t in c["top_logprobs"]] for c in content] == [[-1.5, -2.5, -3.5]] * len(content)
    names = [bytes(t["bytes"]) for t in content[0]["top_logprobs"]]
    assert names == [codec.token_bytes(i) for i in CHOSEN]
    chunks, _ = sse(streamed.text)
    pieces = [
        x
        for c in chunks
        for choice in c["choices"]
        for x in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert pieces == content


async def test_completions_show_the_chosen_tokens_beside_the_drawn_one() -> None:
    async with world("Hi") as w:
        answer = await w.complete(logprob_token_ids=CHOSEN, return_tokens_as_token_ids=True)
        echoed = await w.complete(logprob_token_ids=CHOSEN, echo=True, return_tokens_as_token_ids=True)
    logprobs = answer.json()["choices"][0]["logprobs"]
    for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        assert list(top) == [token, *(n for n in (f"token_id:{i}" for i in CHOSEN) if n != token)]
    shown = echoed.json()["choices"][0]["logprobs"]
    assert len(shown["tokens"]) > len(logprobs["tokens"]), "the prompt too, with its own logprobs"
    assert shown["tokens"][-len(logprobs["tokens"]) :] == logprobs["tokens"]


REPEATED = {"max_pattern_size": 4, "min_count": 3}


@pytest.mark.parametrize("group", [1, 2, 5])
async def test_an_answer_that_repeats_itself_ends_and_says_why(group: int) -> None:
    async with world("so abababab", group=group) as w:
        asked = {"repetition_detection": REPEATED, "max_tokens": 40}
        for chat, text in (
            (await w.chat(**asked), await w.chat(**asked, stream=True)),
            (await w.complete(**asked), await w.complete(**asked, stream=True)),
        ):
            choice = chat.json()["choices"][0]
            assert choice["finish_reason"] == "repetition"
            assert choice["stop_reason"] == "repetition_detected"
            said = choice["text"] if "text" in choice else choice["message"]["content"]
            assert said == "so ababab"
            chunks, _ = sse(text.text)
            last = [c["choices"][0] for c in chunks if c["choices"]][-1]
            assert (last["finish_reason"], last["stop_reason"]) == ("repetition", "repetition_detected")
        wanted = RepetitionDetectionParams(max_pattern_size=4, min_count=3)
        assert all(r.params.repetition_detection == wanted for r in w.engine.seen)
        series = await w.metrics()
    assert series['vllm:request_success_total{finished_reason="repetition"}'] == 4


async def test_a_stop_string_in_the_same_token_wins() -> None:
    async with world("so ababab") as w:
        answer = await w.complete(repetition_detection=REPEATED, stop="babab", max_tokens=40)
    choice = answer.json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"], choice["text"]) == ("stop", "babab", "so a")
