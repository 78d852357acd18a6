"""Reported faults of other servers, tried on real `octavo serve` processes. Names hold the case ids.

The same cases stand on scripted tokens in tests/api and on the engine alone in tests/engine; here is
what only the whole has: real text, real batches, several starts, a pool that is really full.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.multi.launched import Launched, launched
from tests.multi.traffic import Answer, Body, Traffic, change, success, traffic

GREEDY: Body = {"temperature": 0, "ignore_eos": True}
COUNTING = "1, 2, 3, 4, 5, 6,"  # goes on with " 7, 8, 9, 10, 11, 12", and nothing else comes near
USER: list[Any] = [{"role": "user", "content": "Name a colour."}]
EOS = 2
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
}


@pytest.fixture(scope="module")
def server(smollm2_path: str) -> Iterator[Launched]:
    """Nothing but the file, and no way out."""
    with launched(smollm2_path, "--max-model-len", "2048", "--served-model-name", "m", **OFFLINE) as running:
        yield running


@pytest.fixture(scope="module")
def second_server(smollm2_path: str) -> Iterator[Launched]:
    with launched(smollm2_path, "--no-enable-prefix-caching", "--served-model-name", "m") as running:
        yield running


@pytest.fixture(scope="module")
def tight_server(smollm2_path: str) -> Iterator[Launched]:
    """64 blocks for all; defaults of sampling as a generation_config.json would give them."""
    defaults = {"eos_token_id": [EOS, 0], "temperature": 0.6, "top_p": 0.9}
    small = ("--num-blocks", "64", "--max-num-seqs", "6", "--seed", "5", "--served-model-name", "m")
    with launched(smollm2_path, *small, "--override-generation-config", json.dumps(defaults)) as running:
        yield running


@pytest.fixture
async def calls(server: Launched) -> AsyncIterator[Traffic]:
    async with traffic(server) as running:
        yield running


@pytest.fixture
async def second(second_server: Launched) -> AsyncIterator[Traffic]:
    async with traffic(second_server) as running:
        yield running


@pytest.fixture
async def tight(tight_server: Launched) -> AsyncIterator[Traffic]:
    async with traffic(tight_server) as running:
        yield running


@pytest.fixture
async def client(server: Launched) -> AsyncIterator[openai.AsyncOpenAI]:
    base = f"http://127.0.0.1:{server.port}/v1"
    async with openai.AsyncOpenAI(base_url=base, api_key="x", max_retries=0) as made:
        yield made


async def both_ways(calls: Traffic, body: Body) -> Answer:
    """The answer of a body, streamed and whole, which must be equal."""
    streamed, whole = await calls.all([{**body, "stream": True}, body])
    assert streamed == whole
    assert whole.status == 200, whole.error
    return whole


# ---- stop -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "is_included", "text", "reason"),
    [
        (["10, 11"], False, " 7, 8, 9, ", "10, 11"),
        (["ZZZ", "10, 11"], True, " 7, 8, 9, 10, 11", "10, 11"),
        (["0, 1", "10"], False, " 7, 8, 9, ", "10"),
    ],
)
async def test_bb_001_bb_003_bb_005_stop_strings(
    calls: Traffic, stop: list[str], is_included: bool, text: str, reason: str
) -> None:
    body = {**GREEDY, "prompt": COUNTING, "max_tokens": 30, "stop": stop}
    answer = await both_ways(calls, {**body, "include_stop_str_in_output": is_included})
    assert (answer.only.text, answer.only.finish, answer.only.stop_reason) == (text, ["stop"], reason)
    streamed = await calls.send({**body, "stream": True})
    assert "1" not in "".join(streamed.only.pieces)


async def test_bb_009_min_tokens_holds_eos_back_exactly(calls: Traffic) -> None:
    body = {"prompt": "Hello", "temperature": 0, "logit_bias": {str(EOS): 100}}
    answer = await both_ways(calls, {**body, "min_tokens": 4, "max_tokens": 32})
    assert answer.usage is not None
    assert answer.usage[1] == 5
    assert EOS not in answer.only.token_ids[:4]
    assert answer.only.finish == ["stop"]


async def test_bb_011_min_tokens_holds_back_every_end(tight: Traffic) -> None:
    body = {"prompt": "Hello", "temperature": 0, "logit_bias": {"0": 100}}
    answer = await both_ways(tight, {**body, "min_tokens": 3, "max_tokens": 16})
    assert answer.usage is not None
    assert answer.usage[1] == 4
    assert 0 not in answer.only.token_ids[:3]
    assert answer.only.finish == ["stop"]


# ---- unicode and logprobs ---------------------------------------------------------------------------


async def test_bb_014_an_answer_cut_inside_a_character(calls: Traffic) -> None:
    """One token, the first of an emoji's bytes, is all that is allowed; the answer ends in the middle."""
    ids = (await calls.http.post("/tokenize", json={"prompt": "😀"})).json()["tokens"]
    assert len(ids) > 1
    answer = await both_ways(
        calls, {**GREEDY, "prompt": "x", "allowed_token_ids": ids[:1], "max_tokens": 2, "logprobs": 1}
    )
    assert answer.only.token_ids == [ids[0]] * 2
    assert answer.only.finish == ["length"]


@pytest.mark.parametrize("seed", range(4))
async def test_bb_012_bb_016_bb_018_tokens_join_to_the_text(calls: Traffic, seed: int) -> None:
    """Whatever comes at a high temperature after emoji: names, bytes and text agree."""
    messages = [{"role": "user", "content": "Answer in emoji: 😀 中文 ďábel 👩‍🚀 🌶"}]
    body = {"messages": messages, "temperature": 1.4, "seed": seed, "max_tokens": 40}
    answer = await both_ways(calls, {**body, "logprobs": True, "top_logprobs": 2})
    rows = answer.only.logprobs
    assert answer.usage is not None
    assert len(rows) == answer.usage[1]
    assert "".join(r["token"] for r in rows) == answer.only.text
    joined = bytes(b for r in rows for b in r["bytes"])
    assert joined.decode(errors="replace") == answer.only.text
    assert all(len(r["top_logprobs"]) == 2 for r in rows)


async def test_bb_020_chat_logprobs_have_the_layout_of_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="m",
        messages=USER,
        logprobs=True,
        top_logprobs=2,
        max_tokens=3,
        temperature=0,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert answer.usage is not None
    assert len(logprobs.content) == answer.usage.completion_tokens == 3
    assert logprobs.content[0].logprob == logprobs.content[0].top_logprobs[0].logprob
    assert set(logprobs.model_dump(exclude_none=True)) == {"content"}


async def test_bb_022_twenty_alternatives_after_odd_characters(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model="m", prompt="🌶 ’ “", logprobs=20, max_tokens=1, temperature=0
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.top_logprobs is not None
    assert len(logprobs.top_logprobs[0]) == 20


# ---- usage, finish reasons, streams -----------------------------------------------------------------


async def test_bb_026_usage_comes_once_and_last(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="m",
        messages=USER,
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=5,
    )
    chunks = [chunk async for chunk in stream]
    assert [c.usage is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


async def test_bb_028_three_choices_are_counted_together(calls: Traffic) -> None:
    body = {"messages": USER, "n": 3, "seed": 1, "temperature": 1, "max_tokens": 8}
    answer = await both_ways(calls, body)
    assert sorted(answer.choices) == [0, 1, 2]
    assert answer.usage is not None
    assert answer.usage[1] == answer.num_tokens
    assert all(len(c.finish) == 1 for c in answer.choices.values())
    single = await calls.send({"messages": USER, "seed": 1, "max_tokens": 1})
    assert single.usage is not None
    assert answer.usage[0] == single.usage[0]


async def test_bb_033_every_stream_ends_once(calls: Traffic) -> None:
    """Fifty streams; that [DONE] comes, and nothing after it, is checked with each."""
    bodies = [{"messages": USER, "stream": True, "seed": i, "max_tokens": 1 + i % 9} for i in range(50)]
    for answer in await calls.all(bodies):
        assert len(answer.only.finish) == 1
        assert answer.only.finish[0] in ("stop", "length")


async def test_bb_115_errors_come_before_the_stream(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model="m", messages=USER, n=0, stream=True)


# ---- what a request may hold ------------------------------------------------------------------------

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


async def test_bb_007_bb_024_a_stop_string_and_logprobs_beside_tools(calls: Traffic) -> None:
    """The model is shown the tools and counts on: text, reason and logprobs are those of any other answer."""
    counting = [{"role": "user", "content": "Count from 1 to 20, with commas."}]
    body = {"messages": counting, "tools": [TOOL], "tool_choice": "auto", "temperature": 0, "max_tokens": 60}
    body |= {"logprobs": True, "top_logprobs": 2}
    free = await both_ways(calls, body)
    assert free.usage is not None
    assert len(free.only.logprobs) == free.usage[1]
    assert all(len(row["top_logprobs"]) == 2 for row in free.only.logprobs)
    stop = free.only.text[8:14]
    assert len(stop) == 6
    cut = await both_ways(calls, {**body, "stop": [stop]})
    assert cut.only.text == free.only.text[: free.only.text.index(stop)]
    assert (cut.only.finish, cut.only.stop_reason) == (["stop"], stop)
    streamed = await calls.send({**body, "stop": [stop], "stream": True})
    assert "".join(streamed.only.pieces) == cut.only.text


async def test_bb_031_bb_033_a_call_that_is_cut_says_length_and_every_stream_ends_once(
    calls: Traffic,
) -> None:
    ask: Body = {"messages": USER, "tools": [TOOL], "temperature": 0}
    for max_tokens in (1, 4, 12):
        cut = await both_ways(calls, {**ask, "tool_choice": "required", "max_tokens": max_tokens})
        assert cut.only.finish == ["length"]
    bodies = [
        {**ask, "temperature": 1, "stream": True, "seed": i, "max_tokens": 1 + i % 9} for i in range(50)
    ]
    for answer in await calls.all(bodies):
        assert len(answer.only.finish) == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"grammar": 'root ::= "x"'}, "grammar"),
    ],
)
async def test_what_cannot_act_is_refused_by_name(
    calls: Traffic, fields: Body, param: str, stream: bool
) -> None:
    answer = await calls.send({"messages": USER, "stream": stream, **fields})
    assert answer.status == 400
    assert answer.error is not None
    assert answer.error["param"] == param
    assert param in answer.error["message"]


@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {"content": []}, {}])
async def test_bb_048_an_assistant_turn_without_content(calls: Traffic, content: Body) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":2,"b":2}'}}
    messages = [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", **content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
    ]
    answer = await calls.send({"messages": messages, "max_tokens": 1})
    same = await calls.send({"messages": [messages[0], {**messages[1], "content": ""}, messages[2]]})
    assert answer.status == 200
    assert answer.prompt_ids == same.prompt_ids


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None, "tool_choice": None},
        {"messages": [{"role": "user", "name": "ann", "content": "hello"}]},
        {"max_completion_tokens": 3, "max_tokens": None},
        {
            "messages": [
                *USER,
                {"role": "assistant", "reasoning_content": "so", "content": "Red."},
                *USER,
            ]
        },
    ],
)
async def test_bb_050_bb_052_bb_054_bb_066_fields_of_real_clients(calls: Traffic, fields: Body) -> None:
    answer = await calls.send({"messages": USER, "max_tokens": 3, "ignore_eos": True, **fields})
    assert answer.status == 200
    assert answer.usage is not None
    assert answer.usage[1] == 3


async def test_bb_056_absurd_n_is_refused_and_delays_nobody(calls: Traffic) -> None:
    absurd = {"prompt": "x", "n": 100_000_000, "max_tokens": 1}
    refused, served = await calls.all([absurd, {**GREEDY, "prompt": COUNTING, "max_tokens": 5}])
    assert refused.status == 400
    assert refused.error is not None
    assert "16384" in refused.error["message"]
    assert served.only.text == " 7, 8"


async def test_bb_058_ids_past_the_vocabulary_touch_nobody(calls: Traffic) -> None:
    body = {**GREEDY, "prompt": "The capital of France is", "max_tokens": 24, "logprobs": 2}
    solo = await calls.send(body)
    bad: list[Body] = [
        {"prompt": "x", "allowed_token_ids": [49152]},
        {"prompt": "x", "logit_bias": {"49152": 5}},
        {"prompt": "x", "bad_words": ["y" * 10_000]},
        {"prompt": "x", "stop_token_ids": [-1]},
        {"prompt": [49152]},
    ]
    *refused, beside = await calls.all([*bad, body])
    assert [a.status for a in refused] == [400] * len(bad)
    assert beside == solo


async def test_bb_060_equal_request_ids_do_not_mix(calls: Traffic) -> None:
    bodies = [{**GREEDY, "prompt": p, "max_tokens": 64} for p in (COUNTING, "The capital of France is")]
    expected = [(await calls.send(b)).only.text for b in bodies]
    replies = await asyncio.gather(
        *(calls.http.post("/v1/completions", json=b, headers={"X-Request-Id": "same-id"}) for b in bodies)
    )
    assert [r.json()["choices"][0]["text"] for r in replies] == expected
    assert [r.headers["x-request-id"] for r in replies] == ["same-id"] * 2
    assert (await calls.idle())["vllm:num_requests_running"] == 0


async def test_bb_062_the_context_error_has_the_right_numbers(calls: Traffic) -> None:
    prompt = [504] * 8
    refused = await calls.send({"prompt": prompt, "max_tokens": 2045})
    assert refused.status == 400
    assert refused.error is not None
    assert all(n in refused.error["message"] for n in ("2048", " 8 ", "2045"))
    fits = {"prompt": prompt, "max_tokens": 2040, "temperature": 0, "logit_bias": {str(EOS): 100}}
    assert (await calls.send(fits)).status == 200


async def test_bb_064_an_unknown_model_is_not_found(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="m"):
        await client.chat.completions.create(model="no-such-model", messages=USER)


# ---- determinism and sampling -----------------------------------------------------------------------


async def test_bb_067_a_seed_holds_beside_unseeded_requests(calls: Traffic) -> None:
    seeded: Body = {"prompt": "Once upon a time", "temperature": 0.8, "seed": 42, "max_tokens": 24}
    unseeded: Body = {"prompt": "Once upon a time", "temperature": 0.8, "max_tokens": 24}
    solo = await calls.send(seeded)
    others = set()
    for _ in range(4):
        beside, other = await calls.all([seeded, unseeded])
        assert beside == solo
        others.add(other.only.text)
    assert len(others) > 1


async def test_bb_069_an_answer_does_not_depend_on_its_batch(calls: Traffic) -> None:
    """Ids and log-probabilities, compared for equality, in batches of two to eight others."""
    body = {**GREEDY, "prompt": "List three colours:", "max_tokens": 32, "logprobs": 1}
    solo = await calls.send(body)
    assert len(solo.only.logprobs) == 32
    for size in range(2, 9):
        others: list[Body] = [
            {"prompt": f"{size}.{i} " * (1 + 7 * i), "max_tokens": 20 + i, "temperature": i % 2, "seed": i}
            for i in range(size)
        ]
        answers = await calls.all([*others[: size // 2], body, *others[size // 2 :]])
        assert answers[size // 2] == solo, size


async def test_bb_071_two_starts_differ_unless_a_seed_is_given(
    calls: Traffic, second: Traffic, tight: Traffic
) -> None:
    texts = set()
    for server in (calls, second):
        answer = await server.send({"prompt": "Once upon a time", "temperature": 1, "max_tokens": 16})
        texts.add(answer.only.text)
        (row,) = [r for r in await table(server) if r[0] == "seed"]
        assert "drawn" in row[2]
        assert row[1] in server.server.log  # printed at start
    assert len(texts) == 2
    assert ["seed", "5", "--seed"] in await table(tight)


async def table(calls: Traffic) -> list[list[str]]:
    return list((await calls.http.get("/server_info")).json()["table"])


async def test_bb_072_defaults_of_sampling_are_shown_and_requests_win(tight: Traffic) -> None:
    shown = (await tight.http.get("/v1/models")).json()["data"][0]["sampling_defaults"]
    assert (shown["temperature"], shown["top_p"]) == (0.6, 0.9)
    body: Body = {"prompt": "Once upon a time", "seed": 3, "max_tokens": 24}
    by_default = await tight.send(body)
    assert by_default == await tight.send({**body, "temperature": 0.6, "top_p": 0.9})
    assert by_default != await tight.send({**body, "temperature": 1.6, "top_p": 1.0})
    greedy = [await tight.send({**body, "temperature": 0, "seed": seed}) for seed in (3, 4)]
    assert greedy[0] == greedy[1]


# ---- prefix cache -----------------------------------------------------------------------------------

SHOTS = "".join(f"\nQ: What is {i} plus {i}?\nA: {2 * i}\n\n" for i in range(1, 9))


async def test_bb_092_answers_are_equal_with_the_cache_cold_warm_and_off(
    calls: Traffic, second: Traffic
) -> None:
    targets = [
        {**GREEDY, "prompt": f"{SHOTS}\nQ: {question}\nA:", "max_tokens": 16, "logprobs": 2}
        for question in ("What is 9 plus 9?", "What is the capital of France?")
    ]
    cold = await calls.all([{**t, "cache_salt": f"cold{i}"} for i, t in enumerate(targets)])
    stops = ["\n\n\nQ:", "\nQ:"]
    warm_up = [{**t, "stop": stops, "max_tokens": 40, "ignore_eos": False} for t in targets]
    assert all(a.only.finish for a in await calls.all([{**t, "cache_salt": "warm"} for t in warm_up]))
    warm = await calls.all([{**t, "cache_salt": "warm"} for t in targets])
    off = await second.all(targets)
    assert cold == warm == off
    assert [a.num_cached for a in cold + off] == [0] * 4
    assert all(a.num_cached > 0 for a in warm)


async def test_bb_094_salts_keep_tenants_apart(calls: Traffic) -> None:
    cached = []
    for salt in ("A", "A", "B", None):
        body: Body = {"prompt": "Shared words of a long prompt. " * 12, "max_tokens": 1}
        answer = await calls.send(body if salt is None else {**body, "cache_salt": salt})
        cached.append(answer.num_cached > 0)
    assert cached == [False, True, False, False]
    adapter = await calls.send({"prompt": "Shared words.", "max_tokens": 1, "model": "A"})
    assert adapter.status == 404, "a name that only a salt had is no model"


# ---- scheduler --------------------------------------------------------------------------------------


async def test_bb_096_bb_104_a_full_pool_ends_all_and_counts_no_hits(tight: Traffic) -> None:
    """Eight requests where three fit: all end as they would alone, and recomputing is no cache hit."""
    bodies = [
        {**GREEDY, "prompt": f"{i} and {i * i} make " * 38, "max_tokens": 40, "logprobs": 1} for i in range(8)
    ]
    before = await tight.idle()
    answers = await tight.all([{**b, "cache_salt": "together"} for b in bodies])
    after = await tight.idle()
    assert [a.only.finish for a in answers] == [["length"]] * 8
    assert change(before, after, "vllm:prefix_cache_hits_total") == 0
    assert change(before, after, "octavo:recomputed_tokens_total") > 0
    assert 0 < change(before, after, "vllm:num_preemptions_total") <= 8 * 8
    assert success(before, after) == {"length": 8}
    assert change(before, after, "vllm:time_to_first_token_seconds_count") == 8
    for i, body in enumerate(bodies):
        assert answers[i] == await tight.send({**body, "cache_salt": f"alone{i}"})


async def test_bb_102_small_requests_pass_one_that_does_not_fit(tight: Traffic) -> None:
    """R runs on 20 of 64 blocks, A needs 60 and waits, B to E need 2 each; A's turn comes all the same."""
    running = {**GREEDY, "prompt": [504] * 300, "max_tokens": 200, "stream": True}
    large = {**GREEDY, "prompt": [505] * 940, "max_tokens": 8}
    small = [{**GREEDY, "prompt": [506 + i] * 20, "max_tokens": 8} for i in range(4)]
    first = asyncio.ensure_future(tight.send(running))
    await tight.until_chunks(2)
    waits = asyncio.ensure_future(tight.send(large))
    await until_waiting(tight)
    for answer in await tight.all(small):
        assert answer.only.finish == ["length"]
    assert not waits.done()
    assert not first.done()
    assert (await waits).only.finish == ["length"]
    assert (await first).only.finish == ["length"]


async def until_waiting(calls: Traffic) -> None:
    while (await calls.metrics())["vllm:num_requests_waiting"] < 1:
        await asyncio.sleep(0.01)


async def test_bb_106_cancelled_requests_leak_no_slot(tight: Traffic) -> None:
    """Two hundred requests, each left at a random moment: waiting, in its prefill, decoding."""
    rng = random.Random(106)
    solo = await tight.send({**GREEDY, "prompt": COUNTING, "max_tokens": 8})
    before = await tight.idle()

    async def leave_early(i: int) -> None:
        await asyncio.sleep(rng.uniform(0, 3))
        body = {**GREEDY, "prompt": f"{i} " * rng.randint(5, 200), "max_tokens": 200, "stream": i % 2 == 0}
        task = asyncio.ensure_future(tight.send(body))
        await asyncio.wait({task}, timeout=rng.expovariate(4))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*(leave_early(i) for i in range(200)))
    after = await tight.idle()
    assert after["vllm:kv_cache_usage_perc"] == 0
    assert sum(success(before, after).values()) <= 200  # a few never reached the server
    assert success(before, after)["abort"] > 20
    assert await tight.send({**GREEDY, "prompt": COUNTING, "max_tokens": 8}) == solo


# ---- tokens and GGUF --------------------------------------------------------------------------------


async def test_bb_139_four_paths_to_the_same_ids(calls: Traffic, smollm2_path: str) -> None:
    from transformers import AutoTokenizer

    from octavo import LLM, SamplingParams

    messages = [
        *USER,
        {"role": "assistant", "content": "Red 😀."},
        {"role": "user", "content": "Another 中?"},
    ]
    chat = await calls.send({"messages": messages, "max_tokens": 1})
    tokenized = (await calls.http.post("/tokenize", json={"messages": messages})).json()["tokens"]
    with LLM(smollm2_path, max_model_len=256, max_num_seqs=2, threads=1) as llm:
        (offline,) = llm.chat(messages, SamplingParams(max_tokens=1), use_tqdm=False)
    path = Path(smollm2_path)
    reference = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    wanted = reference.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert chat.prompt_ids == tokenized == offline.prompt_token_ids == wanted


def first_by_alphabet(count: int) -> list[dict[str, Any]]:
    """A choice that looks at nobody's answer. What holds for all prompts is in test_llama_cpp.py."""
    path = Path(__file__).parent / "llama_cpp_ids.json"
    prompts: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["prompts"]
    return sorted(prompts, key=lambda case: str(case["prompt"]))[:count]


@pytest.mark.parametrize("case", first_by_alphabet(3), ids=lambda case: case["prompt"][:24])
async def test_bb_141_greedy_ids_are_those_of_llama_cpp(calls: Traffic, case: dict[str, Any]) -> None:
    answer = await calls.send({**GREEDY, "prompt": case["prompt"], "max_tokens": 20})
    assert answer.prompt_ids == case["prompt_ids"]
    assert answer.only.token_ids == case["ids"]


async def test_bb_141_template_and_ends_come_from_the_file(calls: Traffic) -> None:
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    answer = await calls.send({"messages": messages, "temperature": 0, "max_tokens": 60})
    assert "Paris" in answer.only.text
    assert answer.only.finish == ["stop"]
    assert "<|im_" not in answer.only.text
