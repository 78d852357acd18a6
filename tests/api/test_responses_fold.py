"""Streamed, whole or in the background: one response, however tokens were grouped."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.fakes.api_world import world
from tests.fakes.response_events import check_response, fold, plain, read_events
from tests.fakes.scripted_engine import random_groups
from tests.fakes.toy_codec import ToyCodec

ADD = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ANSWERS = [
    "",
    "Hello world 😀 中文",
    "<think>ABC the</think>Hello ok",
    "<think>never closed",
    f"Hello{CALL}",
    f"<think>ok</think>{CALL}{CALL}",
    f"<think>DEFG</think>ok{CALL} the end",
    '<tool_call>\n{"name": "add", "arguments": {"a": ',
    "<tool_call>not json</tool_call>",
]
ONE_CALL = (ANSWERS[2], '<think>a</think><tool_call>\n{"name": "add", "arguments": {"a":1}}\n</tool_call>')
ANSWERS.append(ONE_CALL[1])
TOOLS: list[dict[str, Any]] = [
    {},
    {"tools": [ADD]},
    {"tools": [ADD], "parallel_tool_calls": False},
    {"tools": [ADD], "tool_choice": "none"},
]
LONG = [{"role": "user", "content": "x" * 900} for _ in range(3)]
INPUTS: list[dict[str, Any]] = [{"input": "Hi"}, {"input": LONG, "truncation": "auto"}]
ENDS: list[dict[str, Any]] = [{}, {"stop": ["ok", "FG"]}, {"max_output_tokens": 7}, {"max_output_tokens": 1}]


def corpus() -> list[dict[str, Any]]:
    """Every answer with every way to end; tools, input and logprobs drawn."""
    rng = random.Random(0)
    cases = []
    for answer in ANSWERS:
        for end in ENDS:
            for tools in rng.sample(TOOLS, 2):
                if "parallel_tool_calls" in tools and answer not in ONE_CALL:
                    continue  # a grammar allows one call, and a script does not follow it
                body = {**rng.choice(INPUTS), **tools, **end}
                if rng.random() < 0.6:
                    body |= {"include": ["message.output_text.logprobs"], "top_logprobs": rng.randint(0, 2)}
                if rng.random() < 0.2:
                    body["include_reasoning"] = False
                cases.append({"answer": answer, "body": body})
    return cases


CASES = corpus()


@pytest.mark.parametrize("answer", range(len(ANSWERS)))
async def test_the_fold_of_the_stream_is_the_whole(answer: int) -> None:
    for number, case in enumerate(c for c in CASES if c["answer"] == ANSWERS[answer]):
        seen: list[dict[str, Any]] = []
        for group in (random_groups(number), 1_000):
            async with world(case["answer"], group=group, server={"reasoning_parser": "deepseek_r1"}) as w:
                whole = await w.post("/v1/responses", case["body"])
                assert whole.status_code == 200, (case, whole.text)
                check_response(whole.json())
                text = (await w.post("/v1/responses", {**case["body"], "stream": True})).text
                seen += [_comparable(whole.json()), _comparable(fold(read_events(text)))]
                if number % 4 == 0:
                    text = (
                        await w.post("/v1/responses", {**case["body"], "background": True, "stream": True})
                    ).text
                    seen.append({**_comparable(fold(read_events(text))), "background": False})
        assert all(one == seen[0] for one in seen), case


def _comparable(response: dict[str, Any]) -> dict[str, Any]:
    """Without ids and times; ids of calls are random, as chat's are."""
    found = plain(response)
    for n, item in enumerate(found["output"]):
        if item["type"] == "function_call":
            item["call_id"] = f"call {n}"
    return found


async def test_random_tokens_fold_alike() -> None:
    rng = random.Random(1)
    size = ToyCodec().vocab_size
    for number in range(12):
        ids = [rng.randrange(size) for _ in range(rng.randint(1, 30))]
        body: dict[str, Any] = {
            "input": "Hi",
            "max_output_tokens": rng.randint(1, 30),
            "stop": ["o", "中"][: rng.randint(0, 2)],
        }
        if number % 2:
            body |= {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
        seen = []
        for group in (1, random_groups(number)):
            async with world(lambda _, ids=ids: ids, group=group) as w:  # type: ignore[misc]
                seen.append(_comparable((await w.post("/v1/responses", body)).json()))
                text = (await w.post("/v1/responses", {**body, "stream": True})).text
                seen.append(_comparable(fold(read_events(text))))
        assert all(one == seen[0] for one in seen), (ids, body)


async def test_a_stream_that_is_left_is_aborted_and_not_stored() -> None:
    async with world("Hello world") as w:
        w.engine.hold.clear()
        task = asyncio.create_task(w.post("/v1/responses", {"input": "x"}))
        while not w.engine.num_running:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(w.state.responses) == 0
