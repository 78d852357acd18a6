"""Reported faults of other servers: what a request may hold, tokenising, defaults. Names hold the case id."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.fakes.api_world import USER, sse, world
from tests.fakes.toy_codec import ToyCodec

from octavo.wire.messages import EngineRequest

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":2,"b":2}'}}


@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {"content": []}, {}])
async def test_bb_048_content_may_be_absent_beside_tool_calls(content: dict[str, object]) -> None:
    messages = [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", **content, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
    ]
    async with world() as w:
        answer = await w.chat(messages=messages, return_prompt_text=True)
    assert answer.status_code == 200
    assert "<|im_start|>assistant\n<|im_end|>\n" in answer.json()["prompt_text"]


async def test_tool_arguments_reach_the_template_as_an_object() -> None:
    calls = "{% for c in m.tool_calls %}{{ c.function.arguments.a }}{% endfor %}"
    template = "{% for m in messages %}{{ m.content }}" + calls + "{% endfor %}"
    async with world(template=template) as w:
        messages = [*USER, {"role": "assistant", "tool_calls": [CALL]}]
        assert (await w.chat(messages=messages, return_prompt_text=True)).json()["prompt_text"] == "Say it.2"


@pytest.mark.parametrize(
    "tools", [{"tools": None, "tool_choice": None}, {"tool_choice": "none"}, {"tools": None}]
)
async def test_bb_050_null_tools_are_absent(tools: dict[str, object]) -> None:
    async with world() as w:
        answer = await w.chat(**tools)
    assert answer.status_code == 200
    assert "warnings" not in answer.json()


async def test_bb_052_messages_may_have_a_name() -> None:
    async with world() as w:
        answer = await w.chat(messages=[{"role": "user", "name": "ann", "content": "hello"}])
    assert answer.status_code == 200


async def test_bb_054_max_completion_tokens_acts_on_both_routes() -> None:
    async with world("Hello world ok ok ok") as w:
        assert (await w.chat(max_completion_tokens=3)).json()["usage"]["completion_tokens"] == 3
        assert (await w.complete(max_completion_tokens=3)).json()["usage"]["completion_tokens"] == 3
        assert (await w.chat(max_completion_tokens=2, max_tokens=4)).json()["usage"]["completion_tokens"] == 2


async def test_bb_056_absurd_n_is_refused_at_once() -> None:
    async with world() as w:
        began = time.perf_counter()
        answers = await asyncio.gather(w.chat(n=100_000_000, max_tokens=1), w.chat())
        many = await w.complete(prompt=["a"] * 1000, n=1000, max_tokens=1)
        assert len(w.engine.seen) == 1
    assert time.perf_counter() - began < 30
    assert [a.status_code for a in answers] == [400, 200]
    assert "16384" in answers[0].json()["error"]["message"]
    assert many.status_code == 400


async def test_bb_058_ids_outside_the_vocabulary_are_refused() -> None:
    size = ToyCodec().vocab_size
    bad = [
        {"logit_bias": {str(size): 1}},
        {"allowed_token_ids": [size]},
        {"stop_token_ids": [-1]},
        {"bad_words": [""]},
        {"bad_words": ["x"] * 129},
        {"bad_words": ["x" * 600]},
        {"logit_bias": {"a": 1}},
        {"logit_bias": {"1_0": 1}},
        {"logit_bias": {"5": 1, "05": 2}},
        {"allowed_token_ids": []},
    ]
    async with world() as w:
        for body in bad:
            answer = await w.chat(**body)
            assert answer.status_code == 400, body
            assert answer.json()["error"]["param"] == next(iter(body))
        for prompt in ([size], [-1], [[1], [size]]):
            assert (await w.complete(prompt=prompt)).status_code == 400
        assert w.engine.seen == []


async def test_bad_words_are_encoded_with_and_without_a_space() -> None:
    async with world() as w:
        await w.chat(bad_words=["ok"])
        ids = w.engine.seen[0].params.bad_words_ids
    assert sorted(ids) == sorted([ToyCodec().encode("ok", False), ToyCodec().encode(" ok", False)])


async def test_bb_060_equal_request_ids_do_not_mix() -> None:
    def script(request: EngineRequest) -> list[int]:
        return request.prompt

    async with world(script, delay_s=0.001) as w:
        answers = await asyncio.gather(
            *(
                w.post("/v1/completions", {"prompt": p}, **{"X-Request-Id": "same-id"})
                for p in ("first", "second")
            )
        )
        assert len({r.id for r in w.engine.seen}) == 2
        assert "same-id" not in {r.id for r in w.engine.seen}
    assert [a.json()["choices"][0]["text"] for a in answers] == ["first", "second"]
    assert [a.json()["id"] for a in answers] == ["cmpl-same-id"] * 2
    assert [a.headers["x-request-id"] for a in answers] == ["same-id"] * 2


async def test_bb_062_the_context_error_has_the_right_numbers() -> None:
    async with world() as w:
        refused = await w.complete(prompt="abcdefgh", max_tokens=2045)
        accepted = await w.complete(prompt="abcdefgh", max_tokens=2040)
        too_long = await w.complete(prompt="a" * 2048)
        hopeless = await w.complete(prompt="a" * 100_000)
        empty = await w.complete(prompt="")
    message = refused.json()["error"]["message"]
    assert refused.status_code == 400
    assert all(number in message for number in ("2048", " 8 ", "2045"))
    assert accepted.status_code == 200
    assert too_long.status_code == hopeless.status_code == empty.status_code == 400
    assert too_long.json()["error"]["message"].count("2048") == 2


async def test_defaults_are_cut_to_the_context_but_requests_are_not() -> None:
    async with world(lambda _: [20] * 3000) as w:
        assert (await w.complete(prompt="a" * 2040)).json()["usage"]["completion_tokens"] == 8
        assert (await w.chat()).json()["usage"]["total_tokens"] == 2048


async def test_bb_064_an_unknown_model_is_404_in_openais_shape() -> None:
    async with world() as w:
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
            body = (
                {"model": "no-such-model", "messages": USER}
                if "chat" in path
                else {"model": "no-such-model", "prompt": "a"}
            )
            answer = await w.post(path, body)
            error = answer.json()["error"]
            assert answer.status_code == error["code"] == 404
            assert set(error) == {"message", "type", "param", "code"}
            assert error["type"] == "NotFoundError"
            assert "toy, alias" in error["message"]
        assert (await w.chat(model="alias")).json()["model"] == "alias"


async def test_bb_066_both_names_of_reasoning_render_the_same() -> None:
    turn = "{{ m.role }}:{{ m.reasoning }}|{{ m.reasoning_content }}|{{ m.content }};"
    template = "{% for m in messages %}" + turn + "{% endfor %}"
    texts = set()
    async with world(template=template) as w:
        for name in ("reasoning", "reasoning_content"):
            history = [*USER, {"role": "assistant", name: "because", "content": "4"}, *USER]
            texts.add((await w.chat(messages=history, return_prompt_text=True)).json()["prompt_text"])
    (text,) = texts
    assert "assistant:because|because|4;" in text


async def test_bb_072_defaults_are_shown_and_requests_win() -> None:
    config = {"temperature": 0.6, "top_p": 0.9, "max_new_tokens": 5}
    async with world("Hello world ok ok ok ok ok ok", generation_config=config) as w:
        shown = (await w.http.get("/v1/models")).json()["data"][0]["sampling_defaults"]
        body = (await w.chat()).json()
        await w.chat(temperature=0.2, top_p=0.5)
        await w.chat(temperature=0)
        params = [r.params for r in w.engine.seen]
        table = {row[0]: row[1:] for row in (await w.http.get("/server_info")).json()["table"]}
    assert table["sampling"][0] == "temperature 0.6, top_p 0.9, max_new_tokens 5"
    assert (shown["temperature"], shown["top_p"]) == (0.6, 0.9)
    assert (params[0].temperature, params[0].top_p) == (0.6, 0.9)
    assert (params[1].temperature, params[1].top_p) == (0.2, 0.5)
    assert params[2].is_greedy
    assert (params[2].top_p, params[2].top_k) == (1.0, 0)
    assert body["usage"]["completion_tokens"] == 5


async def test_an_operators_cap_holds_whatever_is_asked_for() -> None:
    config = {"max_new_tokens": 5, "max_tokens_cap": 5}
    async with world(lambda _: [20] * 30, generation_config=config) as w:
        for ask in (w.chat, w.complete):
            for fields in ({}, {"max_tokens": 4}, {"max_tokens": 9}, {"max_completion_tokens": 9}):
                body = (await ask(ignore_eos=True, **fields)).json()
                most = 4 if fields == {"max_tokens": 4} else 5
                assert body["usage"]["completion_tokens"] == most
                assert ("cut to 5" in str(body.get("warnings"))) == (9 in fields.values())
        assert (await w.chat(min_tokens=6, max_tokens=9)).status_code == 400


async def test_bb_139_one_bos_on_every_path() -> None:
    codec = ToyCodec(add_bos=True)
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    async with world(codec=codec, template=template) as w:
        await w.chat()
        await w.chat(add_special_tokens=True)
        await w.complete(prompt="<|im_start|>Say it.")
        chat = (await w.post("/tokenize", {"messages": USER})).json()["tokens"]
        text = (await w.post("/tokenize", {"prompt": "Say it."})).json()["tokens"]
        seen = [r.prompt for r in w.engine.seen]
    assert seen[0] == seen[1] == seen[2] == chat == text
    assert seen[0].count(codec.bos_id) == 1


async def test_p012_unknown_fields_are_reported_or_refused() -> None:
    async with world() as w:
        answer = await w.chat(temperatur=0.5, user="me")
        streamed = await w.chat(temperatur=0.5, stream=True)
    assert answer.status_code == 200
    assert len(answer.json()["warnings"]) == 2
    assert "temperatur" in answer.headers["x-octavo-warnings"]
    chunks, _ = sse(streamed.text)
    assert "temperatur" in chunks[0]["warnings"][0]
    assert not any("warnings" in c for c in chunks[1:])
    async with world(strict=True) as w:
        refused = await w.chat(temperatur=0.5)
        assert (await w.chat()).status_code == 200
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "temperatur"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("guided_json", {"type": "object"}),
        ("prompt_embeds", "AAAA"),
        ("suffix", "tail"),
        ("best_of", 2),
        ("thinking_token_budget", 10),
        ("watermarking", True),
        ("length_penalty", 1.2),
        ("kv_transfer_params", {"a": 1}),
        ("mm_processor_kwargs", {"a": 1}),
        ("functions", [{"name": "f"}]),
        ("detokenize", False),
        ("extra_args", {"a": 1}),
        ("flat_logprobs", True),
        ("prompt_logprob_token_ids", [[1]]),
        ("prompt_logprob_start", 0),
        ("trace_decode_token_ids", [1]),
    ],
)
async def test_fields_that_do_not_act_are_refused_by_name(field: str, value: object) -> None:
    async with world() as w:
        for answer in (await w.chat(**{field: value}), await w.complete(**{field: value})):
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == field
            assert field in answer.json()["error"]["message"]


async def test_a_request_may_leave_the_prefix_cache_alone() -> None:
    async with world() as w:
        for fields in ({}, {"skip_reading_prefix_cache": True}, {"prompt_logprobs": 0}):
            assert (await w.complete(**fields)).status_code == 200
        refused = await w.chat(skip_reading_prefix_cache=False, prompt_logprobs=1)
        assert [r.skip_reading_prefix_cache for r in w.engine.seen] == [False, True, True]
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "skip_reading_prefix_cache"


async def test_values_that_ask_for_nothing_are_fine() -> None:
    neutral = {
        "response_format": {"type": "text"}, "use_beam_search": False, "suffix": None, "best_of": 1,
        "length_penalty": 1.0, "logit_bias": None, "n": None, "stop": None, "stream": None, "service_tier": "auto",
    }  # fmt: skip
    async with world() as w:
        for answer in (await w.chat(**neutral), await w.complete(**neutral)):
            assert answer.status_code == 200
            assert "warnings" not in answer.json()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"stream": "yes"}, "stream"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"seed": 2**64}, "seed"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_p": 1.5}, "min_p"),
        ({"top_k": -2}, "top_k"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 5000}, "truncate_prompt_tokens"),
        ({"cache_salt": "a/b"}, "cache_salt"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 9000}, "max_completion_tokens"),
    ],
)
async def test_errors_name_the_field(body: dict[str, object], param: str) -> None:
    async with world() as w:
        answer = await w.chat(**body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert set(error) == {"message", "type", "param", "code"}


async def test_bodies_that_are_no_json_objects() -> None:
    async with world() as w:
        for content, kind in ((b"{", "application/json"), (b"[]", "application/json"), (b"{}", "text/plain")):
            answer = await w.http.post("/v1/completions", content=content, headers={"Content-Type": kind})
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == 400
        deep = b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        answer = await w.http.post(
            "/v1/completions", content=deep, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 400


async def test_truncation_is_reported() -> None:
    async with world() as w:
        left = (await w.complete(prompt="abcdef", truncate_prompt_tokens=2)).json()
        right = (await w.complete(prompt="abcdef", truncate_prompt_tokens=2, truncation_side="right")).json()
        codec = ToyCodec()
        assert codec.decode(w.engine.seen[0].prompt, False) == "ef"
        assert codec.decode(w.engine.seen[1].prompt, False) == "ab"
    assert "truncated from 6" in left["warnings"][0]
    assert "first 2" in right["warnings"][0]


async def test_many_prompts_and_choices_are_indexed_in_order() -> None:
    def script(request: EngineRequest) -> list[int]:
        return request.prompt

    async with world(script) as w:
        body = (await w.complete(prompt=["ab", "cde"], n=2)).json()
        ids = (await w.complete(prompt=[ToyCodec().encode(p, False) for p in ("ab", "cde")])).json()
    assert [(c["index"], c["text"]) for c in body["choices"]] == [
        (0, "ab"),
        (1, "ab"),
        (2, "cde"),
        (3, "cde"),
    ]
    assert body["usage"]["prompt_tokens"] == 5
    assert [c["text"] for c in ids["choices"]] == ["ab", "cde"]


async def test_echo_and_scoring_without_output() -> None:
    async with world("Hello world") as w:
        echoed = (await w.complete(prompt="abc ok", echo=True)).json()["choices"][0]["text"]
        scored = (await w.complete(prompt="abc ok", echo=True, max_tokens=0, logprobs=1)).json()
        zero = await w.complete(max_tokens=0)
        chat = (await w.chat(echo=True)).json()["choices"][0]["message"]["content"]
    assert echoed == "abc okHello world"
    choice = scored["choices"][0]
    assert choice["text"] == "abc ok"
    assert choice["logprobs"]["tokens"] == ["a", "b", "c", " ok"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.25, -0.25, -0.25]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]
    assert choice["finish_reason"] == "length"
    assert scored["usage"]["completion_tokens"] == 0
    assert zero.status_code == 400
    assert chat == "Say it.Hello world"


async def test_token_ids_are_returned_on_request() -> None:
    async with world("Hello world") as w:
        chat = (await w.chat(return_token_ids=True)).json()
        text = (await w.complete(prompt="ok", return_token_ids=True)).json()["choices"][0]
        prompt = w.engine.seen[0].prompt
    ids = [*ToyCodec().encode("Hello world", False), 2]
    assert (chat["prompt_token_ids"], chat["choices"][0]["token_ids"]) == (prompt, ids)
    assert (text["prompt_token_ids"], text["token_ids"]) == (ToyCodec().encode("ok", False), ids)


async def test_seeds_are_random_unless_given() -> None:
    """BB-071, P151."""
    async with world() as w:
        for seed in (None, None, -1, 7):
            await w.chat(seed=seed)
        seeds = [r.seed for r in w.engine.seen]
    assert len(set(seeds)) == 4
    assert seeds[3] == 7


async def test_priority_says_when_it_does_nothing() -> None:
    async with world() as w:
        assert "priority" in (await w.chat(priority=3)).json()["warnings"][0]
    async with world(policy="priority") as w:
        assert "warnings" not in (await w.chat(priority=3)).json()
        assert w.engine.seen[0].priority == 3


async def test_tokenize_and_detokenize() -> None:
    async with world() as w:
        body = (await w.post("/tokenize", {"prompt": "Hello 中", "return_token_strs": True})).json()
        back = (await w.post("/detokenize", {"tokens": body["tokens"]})).json()
        bad = await w.post("/detokenize", {"tokens": [10**6]})
        await w.chat()
        chat = (await w.post("/tokenize", {"messages": USER})).json()
        assert chat["tokens"] == w.engine.seen[0].prompt
    assert (body["count"], body["max_model_len"]) == (len(body["tokens"]), 2048)
    assert "".join(body["token_strs"]) == back["prompt"] == "Hello 中"
    assert bad.status_code == 400


async def test_parts_of_a_field_that_do_not_act_are_refused_too() -> None:
    async with world() as w:
        for options in ({"include_obfuscation": True}, {"include_usag": True}):
            answer = await w.chat(stream=True, stream_options=options)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"].startswith("stream_options")
        assert "spaces" in (await w.chat(spaces_between_special_tokens=True)).json()["warnings"][0]
