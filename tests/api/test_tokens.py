"""/inference/v1/generate: ids in, ids out, without text unless it is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakes.api_world import World, sse, world
from tests.fakes.toy_codec import ToyCodec

PATH = "/inference/v1/generate"
PROMPT = [20, 21, 22]
HELLO = ToyCodec().encode("Hello world ok", False)


async def generate(w: World, sampling: dict[str, Any] | None = None, **body: Any) -> dict[str, Any]:
    answer = await w.post(PATH, {"token_ids": PROMPT, "sampling_params": sampling or {}, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def test_ids_come_back_and_no_text_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> str:
        raise AssertionError("text was made")

    async with world("Hello world ok", num_cached=2) as w:
        for name in ("push", "peek"):
            monkeypatch.setattr(f"octavo.api.text.detokenise.Detokeniser.{name}", never)
        body = await generate(w, {"logprobs": 2, "prompt_logprobs": 1}, return_token_ids=True)
        assert w.engine.seen[-1].prompt == PROMPT
    (choice,) = body["choices"]
    assert choice["token_ids"] == [*HELLO, 2]
    assert (choice["finish_reason"], choice["stop_reason"], choice["index"]) == ("stop", None, 0)
    assert "text" not in choice
    first = choice["logprobs"]["content"][0]
    assert first == {
        "token_id": HELLO[0],
        "logprob": -0.25,
        "rank": 1,
        "top_logprobs": [
            {"token_id": HELLO[0], "logprob": -0.25},
            {"token_id": HELLO[0] + 1, "logprob": -1.25},
        ],
    }
    assert body["prompt_token_ids"] == PROMPT
    assert body["prompt_logprobs"] == [None, *({str(i): {"logprob": -0.25, "rank": 1}} for i in PROMPT[1:])]
    assert body["usage"]["completion_tokens"] == 4
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 2
    assert (body["model"], body["output_mode"]) == ("toy", "tokens")


@pytest.mark.parametrize("mode", ["tokens", "text"])
@pytest.mark.parametrize(
    "sampling", [{}, {"n": 2, "temperature": 1.0, "logprobs": 1}, {"prompt_logprobs": 0}]
)
async def test_a_stream_adds_up_to_the_answer(mode: str, sampling: dict[str, Any]) -> None:
    async with world("Hello world ok", group=2) as w:
        body: dict[str, Any] = {"output_mode": mode, "return_token_ids": True}
        whole = await generate(w, {**sampling, "seed": 1}, **body)
        streaming = {
            "stream": True,
            "stream_options": {"include_usage": True},
            "sampling_params": {**sampling, "seed": 1},
        }
        chunks, done = sse((await w.post(PATH, {"token_ids": PROMPT, **body, **streaming})).text)
    assert done
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    assert [c["prompt_token_ids"] for c in chunks if "prompt_token_ids" in c] == [PROMPT]
    key = "token_ids" if mode == "tokens" else "text"
    for choice in whole["choices"]:
        pieces = [p for c in chunks for p in c["choices"] if p["index"] == choice["index"]]
        assert [x for p in pieces for x in p[key]] == list(choice[key])
        assert [p["finish_reason"] for p in pieces if p["finish_reason"]] == [choice["finish_reason"]]
        scores = [s for p in pieces if p["logprobs"] for s in p["logprobs"]["content"]]
        assert scores == (choice["logprobs"] or {"content": []})["content"]
    scored = [c["prompt_logprobs"] for c in chunks if "prompt_logprobs" in c]
    assert scored == ([whole["prompt_logprobs"]] if "prompt_logprobs" in whole else [])


async def test_text_is_made_when_asked_and_for_stop_strings() -> None:
    async with world("Hello world ok") as w:
        assert (await generate(w, output_mode="text"))["choices"][0]["text"] == "Hello world ok"
        (choice,) = (await generate(w, {"stop": ["wor"]}))["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "wor")
        assert choice["token_ids"] == HELLO[:2]  # with the token that completed it
        (choice,) = (await generate(w, {"stop_token_ids": [HELLO[1]]}))["choices"]
        assert (choice["token_ids"], choice["stop_reason"]) == (HELLO[:2], HELLO[1])


async def test_unset_max_tokens_are_what_is_left() -> None:
    async with world() as w:
        await generate(w)
        assert w.engine.seen[-1].max_tokens == 2048 - len(PROMPT)
        assert (await generate(w, {"max_tokens": 1}))["choices"][0]["finish_reason"] == "length"


async def test_ids_of_a_request() -> None:
    async with world() as w:
        assert (await generate(w, request_id="mine"))["request_id"] == "mine"
        body = {"token_ids": PROMPT, "sampling_params": {}, "request_id": "mine"}
        answer = await w.post(PATH, body, **{"X-Request-Id": "header"})
        assert answer.json()["request_id"] == "header"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": "Hello"}, "token_ids"),
        ({"token_ids": [-1]}, "token_ids[0]"),
        ({"token_ids": [10**6]}, "token_ids"),
        ({"token_ids": [20] * 3000}, "prompt"),
        ({"sampling_params": None}, "sampling_params"),
        ({"sampling_params": []}, "sampling_params"),
        ({"sampling_params": {"top_p": 3}}, "sampling_params.top_p"),
        ({"sampling_params": {"max_tokens": "x"}}, "sampling_params.max_tokens"),
        ({"sampling_params": {"stream": True}}, "sampling_params.stream"),
        ({"sampling_params": {"use_beam_search": True}}, "sampling_params.use_beam_search"),
        ({"sampling_params": {"stop": ["a"], "detokenize": False}}, "sampling_params.stop"),
        ({"sampling_params": {"detokenize": False}, "output_mode": "text"}, "sampling_params.detokenize"),
        ({"output_mode": "audio"}, "output_mode"),
        ({"features": {"mm_hashes": {"image": ["a"]}}}, "features"),
        ({"content_parts": [{}]}, "content_parts"),
        ({"token_offsets": [[0, 1]]}, "token_offsets"),
        ({"reasoning_ended": True}, "reasoning_ended"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"cache_salt": "a@b"}, "cache_salt"),
    ],
)
async def test_what_cannot_act_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    async with world() as w:
        answer = await w.post(PATH, {"token_ids": PROMPT, "sampling_params": {}, **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_faults_streamed_and_not() -> None:
    async with world("Hello world ok ok", fail_at=3) as w:
        body = {"token_ids": PROMPT, "sampling_params": {}}
        whole = await w.post(PATH, body)
        chunks, done = sse((await w.post(PATH, {**body, "stream": True})).text)
    assert whole.status_code == 500
    assert done
    assert "error" in chunks[-1]
    assert all(c["choices"][0]["finish_reason"] is None for c in chunks[:-1])


async def test_grammars_and_chosen_logprobs_act() -> None:
    async with world('{"a":1}') as w:
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        body = await generate(w, {"structured_outputs": {"json": schema}})
        assert w.state.codec.decode(body["choices"][0]["token_ids"], skip_special_tokens=True) == '{"a":1}'
        assert w.engine.seen[-1].params.structured is not None
        await generate(w, {"logprob_token_ids": [30, 31]})
        assert w.engine.seen[-1].params.logprob_token_ids == [30, 31]
        bad = {"token_ids": PROMPT, "sampling_params": {"structured_outputs": {"regex": "("}}}
        answer = await w.post(PATH, bad)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("sampling_params.structured_outputs")
