"""Reported faults of other servers: stop strings, unicode, logprobs, usage, finish reasons. Names hold the case id."""

from __future__ import annotations

import pytest
from tests.fakes.api_world import fold_chat, sse, world
from tests.fakes.scripted_engine import FILLER
from tests.fakes.toy_codec import BYTE_0, ToyCodec

from octavo.wire.messages import EngineRequest

ALPHABET = "ABC DEFGHIJ KLM"
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
EMOJI = "😀 中文 ďábel 👩‍🚀"


def by_bytes(text: str) -> object:
    """A script that spells a text byte by byte, so that characters span tokens."""
    return lambda _: [BYTE_0 + b for b in text.encode()]


# ---- stop ------------------------------------------------------------------------------------------


async def test_bb_001_pieces_of_a_stop_word_do_not_leak() -> None:
    async with world(ALPHABET) as w:
        chunks, done = sse((await w.chat(stop=["DEFGHIJ"], stream=True)).text)
    choice = fold_chat(chunks)[0]
    assert (choice["text"], choice["finish"], choice["stop_reason"], done) == (
        "ABC ",
        ["stop"],
        "DEFGHIJ",
        True,
    )
    assert not any("D" in c["choices"][0]["delta"].get("content", "") for c in chunks)


async def test_bb_003_the_stop_that_fired_is_named_and_may_be_kept() -> None:
    async with world(ALPHABET) as w:
        body = (await w.chat(stop=["ZZZ", "DEFGHIJ"], include_stop_str_in_output=True)).json()
    assert body["choices"][0]["message"]["content"] == "ABC DEFGHIJ"
    assert body["choices"][0]["stop_reason"] == "DEFGHIJ"


async def test_bb_005_the_earliest_start_wins() -> None:
    async with world("ABC DEFGHIJ") as w:
        choice = (await w.chat(stop=["GHI", "EF"])).json()["choices"][0]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("ABC D", "EF")


async def test_bb_009_eos_is_blocked_until_min_tokens() -> None:
    async with world() as w:
        body = (
            await w.complete(logit_bias={"2": 100}, min_tokens=4, max_tokens=32, return_token_ids=True)
        ).json()
    assert body["choices"][0]["token_ids"] == [FILLER] * 4 + [2]
    assert body["usage"]["completion_tokens"] == 5
    assert body["choices"][0]["finish_reason"] == "stop"


async def test_bb_011_every_eos_of_generation_config_is_given_to_the_engine() -> None:
    async with world(generation_config={"eos_token_id": [2, 0]}) as w:
        body = (
            await w.complete(logit_bias={"0": 100}, min_tokens=3, max_tokens=16, return_token_ids=True)
        ).json()
        assert w.engine.seen[0].eos_ids == [0, 2]
        assert body["choices"][0]["token_ids"] == [FILLER] * 3 + [0]
        await w.complete(ignore_eos=True, max_tokens=2)
        assert w.engine.seen[1].eos_ids == []


async def test_a_stop_string_aborts_the_engine_and_ends_the_count() -> None:
    async with world(lambda _: [BYTE_0 + ord(c) for c in "abcENDdefghijk" * 50]) as w:
        body = (await w.chat(stop="END")).json()
        series = await w.metrics()
        assert len(w.engine.aborted) == 1
    assert body["usage"]["completion_tokens"] == 6
    assert body["choices"][0]["message"]["content"] == "abc"
    assert series['vllm:request_success_total{finished_reason="stop"}'] == 1
    assert series["vllm:generation_tokens_total"] == 6


async def test_stop_token_ids_are_reported_and_not_shown() -> None:
    async with world("ABC DEFG") as w:
        stop_id = ToyCodec().encode(" DE", False)[0]
        choice = (await w.chat(stop_token_ids=[stop_id])).json()["choices"][0]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("ABC", stop_id)


# ---- unicode ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [EMOJI, by_bytes(EMOJI)])
async def test_bb_012_no_replacement_characters_in_any_delta(script: object) -> None:
    async with world(script) as w:
        chunks, _ = sse((await w.chat(stream=True)).text)
        whole = (await w.chat()).json()
    assert fold_chat(chunks)[0]["text"] == EMOJI == whole["choices"][0]["message"]["content"]
    for chunk in chunks:
        text = chunk["choices"][0]["delta"].get("content", "")
        assert "\ufffd" not in text
        text.encode("utf-8", "strict")


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 6, 7])
async def test_bb_014_a_cut_inside_a_character_drops_it_in_both_modes(max_tokens: int) -> None:
    async with world(by_bytes("😀😀")) as w:
        chunks, _ = sse((await w.chat(stream=True, max_tokens=max_tokens)).text)
        whole = (await w.chat(max_tokens=max_tokens)).json()["choices"][0]
    folded = fold_chat(chunks)[0]
    assert folded["text"] == whole["message"]["content"] == "😀" * (max_tokens // 4)
    assert folded["finish"] == [whole["finish_reason"]] == ["length"]


async def test_p024_a_prompt_of_ids_that_ends_inside_a_character() -> None:
    smile = "😀".encode()
    async with world(lambda _: [BYTE_0 + b for b in smile[2:]]) as w:
        prompt = [*ToyCodec().encode("long prompt ", False), *(BYTE_0 + b for b in smile[:2])]
        body = (await w.complete(prompt=prompt)).json()
    assert body["choices"][0]["text"] == "😀"


# ---- logprobs --------------------------------------------------------------------------------------


async def test_bb_016_bytes_of_logprobs_are_the_true_bytes() -> None:
    async with world(by_bytes("😀")) as w:
        content = (await w.chat(logprobs=True, top_logprobs=2)).json()["choices"][0]["logprobs"]["content"]
    assert [b for t in content for b in t["bytes"]] == [240, 159, 152, 128]


@pytest.mark.parametrize("script", [" 中文 ok", by_bytes(" 中文 ok")])
async def test_bb_018_tokens_join_to_the_text(script: object) -> None:
    async with world(script) as w:
        choice = (await w.chat(logprobs=True)).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert "".join(t["token"] for t in content) == choice["message"]["content"] == " 中文 ok"
    assert bytes(b for t in content for b in t["bytes"]) == " 中文 ok".encode()


async def test_bb_020_chat_logprobs_have_the_chat_layout() -> None:
    async with world("Hello world ok ok") as w:
        body = (await w.chat(logprobs=True, top_logprobs=2, max_tokens=3)).json()
    logprobs = body["choices"][0]["logprobs"]
    assert set(logprobs) == {"content"}
    assert len(logprobs["content"]) == body["usage"]["completion_tokens"] == 3
    for item in logprobs["content"]:
        assert set(item) == {"token", "logprob", "bytes", "top_logprobs"}
        assert len(item["top_logprobs"]) == 2


async def test_logprobs_without_top_logprobs() -> None:
    """P026."""
    async with world() as w:
        content = (await w.chat(logprobs=True)).json()["choices"][0]["logprobs"]["content"]
        refused = await w.chat(top_logprobs=2)
    assert [t["top_logprobs"] for t in content] == [[], []]
    assert refused.json()["error"]["param"] == "top_logprobs"


@pytest.mark.parametrize("start", [BYTE_0 + 0xE0, BYTE_0 + 0x20, 0])
async def test_bb_022_twenty_alternatives_whatever_their_bytes(start: int) -> None:
    async with world(lambda _: [start]) as w:
        answer = await w.complete(prompt="🌶 ’ “", logprobs=20, max_tokens=1)
        too_many = await w.complete(logprobs=21, max_tokens=1)
    assert answer.status_code == 200
    logprobs = answer.json()["choices"][0]["logprobs"]
    assert len(logprobs["top_logprobs"][0]) in (20, 21)
    assert logprobs["tokens"][0] in logprobs["top_logprobs"][0]
    assert too_many.status_code == 400
    assert "at most 20" in too_many.json()["error"]["message"]


async def test_tokens_as_ids() -> None:
    async with world() as w:
        chat = (await w.chat(logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True)).json()
        text = (await w.complete(logprobs=1, return_tokens_as_token_ids=True)).json()
    hello = ToyCodec().encode("Hello", False)[0]
    assert chat["choices"][0]["logprobs"]["content"][0]["token"] == f"token_id:{hello}"
    assert text["choices"][0]["logprobs"]["tokens"][0] == f"token_id:{hello}"


async def test_prompt_logprobs_in_both_modes() -> None:
    async with world() as w:
        body = (await w.complete(prompt="Hello ok", prompt_logprobs=1)).json()["choices"][0]
        chunks, _ = sse((await w.complete(prompt="Hello ok", prompt_logprobs=1, stream=True)).text)
        assert all(r.skip_reading_prefix_cache for r in w.engine.seen)
    assert body["prompt_logprobs"][0] is None
    (entry,) = body["prompt_logprobs"][1].values()
    assert entry == {"logprob": -0.25, "rank": 1, "decoded_token": " ok"}
    streamed = [c["choices"][0]["prompt_logprobs"] for c in chunks if "prompt_logprobs" in c["choices"][0]]
    assert streamed == [body["prompt_logprobs"]]


# ---- usage and finish reasons ----------------------------------------------------------------------


@pytest.mark.parametrize("route", ["chat", "complete"])
async def test_bb_026_usage_comes_once_and_last(route: str) -> None:
    async with world("Hello world ok ok ok") as w:
        ask = w.chat if route == "chat" else w.complete
        chunks, done = sse(
            (await ask(stream=True, stream_options={"include_usage": True}, max_tokens=5)).text
        )
        without, _ = sse((await ask(stream=True, max_tokens=5)).text)
    assert done
    assert [c for c in chunks if c.get("usage")] == [chunks[-1]]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 5
    assert not any(c.get("usage") for c in without)


async def test_continuous_usage_counts_up() -> None:
    async with world("Hello world ok") as w:
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks, _ = sse((await w.chat(stream=True, stream_options=options)).text)
        refused = await w.chat(stream_options=options)
    counts = [c["usage"]["completion_tokens"] for c in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 4
    assert refused.status_code == 400


async def test_bb_028_usage_counts_all_choices_and_each_ends_once() -> None:
    def script(request: EngineRequest) -> list[int]:
        return ToyCodec().encode("Hello" + " ok" * (request.seed % 3 + 1), False)

    async with world(script) as w:
        answer = await w.chat(
            n=3, seed=1, temperature=1, stream=True, stream_options={"include_usage": True}, max_tokens=8
        )
        chunks, _ = sse(answer.text)
        assert [r.seed for r in w.engine.seen] == [1, 2, 3]
    folded = fold_chat(chunks)
    assert sorted(folded) == [0, 1, 2]
    assert all(len(c["finish"]) == 1 for c in folded.values())
    usage = chunks[-1]["usage"]
    assert usage["completion_tokens"] == (1 + 2 + 1) + (1 + 3 + 1) + (1 + 1 + 1)
    assert usage["prompt_tokens"] == len(w.engine.seen[0].prompt)


async def test_p007_cached_tokens_are_always_there() -> None:
    async with world(num_cached=16) as w:
        assert (await w.chat()).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}
        body = (await w.chat(n=2)).json()
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}


async def test_p010_the_last_delta_is_empty_and_follows_the_text() -> None:
    async with world("Hello world ok ok") as w:
        chunks, done = sse((await w.chat(stream=True, max_tokens=2)).text)
    assert done
    choices = [c["choices"][0] for c in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert choices[-1]["delta"] == {}
    assert choices[-1]["finish_reason"] == "length"
    assert all(c["finish_reason"] is None for c in choices[:-1])


async def test_bb_033_every_stream_has_one_reason_then_done() -> None:
    async with world("It is sunny.") as w:
        for _ in range(20):
            chunks, done = sse((await w.chat(stream=True)).text)
            assert done
            assert fold_chat(chunks)[0]["finish"] == ["stop"]


async def test_bb_042_tool_choice_none_is_plain_text() -> None:
    async with world("I will not call a tool.") as w:
        body = (await w.chat(tools=[TOOL], tool_choice="none")).json()
    assert body["choices"][0]["message"]["content"] == "I will not call a tool."
    assert "tool_calls" not in body["choices"][0]["message"]


# ---- server-sent events ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad", [{"n": 0}, {"temperature": 3}, {"top_p": 0}, {"max_tokens": 0}, {"stop": [""]}]
)
async def test_bb_115_bad_values_are_http_errors_before_the_stream(bad: dict[str, object]) -> None:
    async with world() as w:
        answer = await w.chat(stream=True, **bad)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["param"] == next(iter(bad))


@pytest.mark.parametrize("route", ["chat", "complete"])
async def test_bb_117_a_fault_in_the_middle_is_an_error_event(route: str) -> None:
    async with world("Hello world ok ok ok ok ok ok", fail_at=5) as w:
        chunks, done = sse((await (w.chat if route == "chat" else w.complete)(stream=True)).text)
    assert done
    assert chunks[-1]["error"]["code"] == 500
    assert not any(c["choices"][0]["finish_reason"] for c in chunks[:-1])
    assert "0x7f" not in chunks[-1]["error"]["message"]
    assert "/srv" not in chunks[-1]["error"]["message"]


async def test_a_fault_at_once_is_an_http_error() -> None:
    async with world(lambda _: [3], fail_at=1) as w:
        streamed = await w.chat(stream=True)
        whole = await w.chat()
        series = await w.metrics()
    assert streamed.status_code == whole.status_code == 500
    assert streamed.json()["error"]["type"] == "InternalServerError"
    assert series['vllm:request_success_total{finished_reason="error"}'] == 2


async def test_stream_interval_gathers_tokens() -> None:
    async with world("Hello world ok ok ok ok ok") as w:
        few, _ = sse((await w.chat(stream=True, stream_interval=4)).text)
        many, _ = sse((await w.chat(stream=True)).text)
    assert fold_chat(few)[0]["text"] == fold_chat(many)[0]["text"]
    assert len(few) < len(many)
