"""Grammars together with everything that pulls the other way, on a real server whose KV pool is far too small.

Every answer is the same alone and whole, in a crowd and streamed, and when the engine is killed in the middle.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.multi.launched import Launched, launched
from tests.multi.traffic import Answer, Body, Traffic, change, traffic

ASK = [{"role": "user", "content": "Answer in JSON: who are you, and what do you like?"}]
NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
    "required": ["v", "next"],
    "additionalProperties": False,
}
NESTED = {"$defs": {"n": NODE}, "$ref": "#/$defs/n"}
NAMES = {
    "type": "array",
    "items": {"type": "string", "minLength": 3, "maxLength": 9},
    "minItems": 2,
    "maxItems": 5,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"names": NAMES},
            "required": ["names"],
            "additionalProperties": False,
        },
    },
}
BALANCED = 'root ::= "(" root ")" root | "[a-z]" | [a-z]+ | ""'


def chat(number: int, **more: Any) -> Body:
    return {
        "messages": ASK,
        "temperature": 1,
        "seed": number,
        "max_tokens": 48,
        "cache_salt": f"c{number % 3}",
        **more,
    }


def outputs(number: int, **constraint: Any) -> Body:
    body: Body = {"prompt": "Say: ", "temperature": 1, "seed": number, "max_tokens": 48}
    return body | {"structured_outputs": constraint}


MIXED: list[Body] = [
    chat(0, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": NESTED}}),
    chat(1, response_format={"type": "json_object"}, logprobs=True, top_logprobs=2),
    chat(2, tools=[TOOL], tool_choice="required", max_tokens=60),
    chat(3, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, n=3, stop=["e"]),
    chat(
        4,
        tools=[TOOL],
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": NAMES}},
    ),
    chat(5, structured_outputs={"json": NAMES, "disable_any_whitespace": False}, n=2, min_tokens=20),
    {**outputs(6, regex="([a-z]+ ){12}"), "n": 3, "stop": ["a ", "zz"], "include_stop_str_in_output": True},
    {**outputs(7, regex="[a-z ]{30,}"), "min_tokens": 12, "frequency_penalty": 1.5, "logprobs": 3},
    {**outputs(8, grammar=BALANCED), "logit_bias": {str(i): -100 for i in range(50, 90)}, "echo": True},
    {**outputs(9, choice=["yes", "yes, but", "no"]), "max_tokens": 1, "prompt_logprobs": 2},
    {**outputs(10, choice=[f"word {i}" for i in range(4_000)]), "prompt_logprobs": 1, "echo": True},
    {**outputs(11, regex="(a|aa|aaa){1,60}b"), "bad_words": ["aa", "aaa"], "stop_token_ids": [65]},
    {**outputs(12, json=NESTED), "repetition_detection": {"max_pattern_size": 6, "min_count": 4}, "n": 2},
    {**outputs(13, grammar='start: "<" /[^>]{20,200}/ ">"'), "skip_special_tokens": False, "top_k": 40},
    {
        **outputs(
            14,
            structural_tag=json.dumps(
                {
                    "format": {
                        "type": "sequence",
                        "elements": [
                            {"type": "regex", "pattern": "[a-f]{9}"},
                            {"type": "const_string", "value": "!"},
                        ],
                    }
                }
            ),
        )
    },
]


@pytest.fixture(scope="module")
def server(smollm2_path: str) -> Iterator[Launched]:
    """So few blocks that a third of the requests fit at a time."""
    with launched(
        smollm2_path, "--max-model-len", "256", "--num-blocks", "32", "--served-model-name", "m"
    ) as running:
        yield running


@pytest.fixture
async def calls(server: Launched) -> AsyncIterator[Traffic]:
    async with traffic(server) as running:
        yield running


@pytest.fixture(scope="module")
def alone(server: Launched) -> list[Answer]:
    async def ask() -> list[Answer]:
        async with traffic(server) as running:
            return [await running.send(body) for body in MIXED]

    found = asyncio.run(ask())
    assert [(a.status, a.error) for a in found] == [(200, None)] * len(MIXED)
    return found


def streamed() -> list[Body]:
    return [{**body, "stream": True} for body in MIXED]


async def test_a_crowd_that_preempts_itself_changes_nothing(calls: Traffic, alone: list[Answer]) -> None:
    before = await calls.idle()
    answers = await calls.all(streamed() + MIXED)
    after = await calls.idle()
    assert change(before, after, "vllm:num_preemptions_total") > 0
    for body, expected, first, second in zip(MIXED, alone, answers, answers[len(MIXED) :], strict=False):
        assert first == expected, body
        assert second == expected, body


async def test_a_killed_engine_in_the_middle_of_grammars_changes_nothing(
    calls: Traffic, alone: list[Answer]
) -> None:
    running = asyncio.create_task(calls.all(streamed()))
    await calls.until_chunks(60)
    calls.kill_engine()
    answers = await running
    for body, expected, answer in zip(MIXED, alone, answers, strict=True):
        assert answer == expected, body
    after = await calls.idle()
    assert after["vllm:kv_cache_usage_perc"] == 0


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"ignore_eos": True}, "ignore_eos"),
        ({"use_beam_search": True, "n": 2, "temperature": 0}, "beam"),
        ({"allowed_token_ids": [198]}, "no token may follow"),
        ({"logit_bias": dict.fromkeys(map(str, range(49_152)), -100)}, ""),
        ({"min_tokens": 49}, "min_tokens"),
        ({"n": 4, "temperature": 0}, "n"),
    ],
)
async def test_what_cannot_be_is_refused_and_no_fault(calls: Traffic, more: Body, field: str) -> None:
    """Also where it is found out while drawing: a 400, streamed or not, before anything was sent."""
    pids = calls.server.engine_pids()
    body = {**outputs(1, regex="[0-9]+"), **more}
    for answer in await calls.all([body, {**body, "stream": True}]):
        assert answer.status == 400 or (not field and answer.status == 200), answer
        assert field in str(answer.error)
    assert calls.server.engine_pids() == pids


@pytest.mark.timeout(600)
async def test_many_costly_grammars_keep_nobody_waiting_for_ever(calls: Traffic) -> None:
    """Some are refused for their cost, and those that are not come to an end; what is plain goes on beside them."""
    pids = calls.server.engine_pids()
    costly = [
        outputs(
            i,
            json={
                "type": "object",
                "properties": {f"p{i}_{j}": {"enum": [f"{j}{k}" for k in range(20)]} for j in range(150)},
            },
        )
        for i in range(4)
    ]
    costly += [outputs(i, regex=f"(.*a){{1{i}}}(.*b){{1{i}}}") for i in range(4)]
    costly += [outputs(i, choice=["x" * 200 + str(k * 7 + i) for k in range(3_000)]) for i in range(4)]
    costly += [outputs(i, json={"type": "string", "minLength": 40_000 + i}) for i in range(2)]
    costly += [
        outputs(
            i,
            json={
                "allOf": [{"anyOf": [{"minimum": j} for j in range(9)]}] * 9,
                "type": "integer",
                "maximum": i,
            },
        )
        for i in range(2)
    ]
    plain = [{"prompt": "One, two,", "max_tokens": 8, "temperature": 0} for _ in range(6)]
    answers = await calls.all([*costly, *plain])
    assert {a.status for a in answers[: len(costly)]} <= {200, 400}, [(a.status, a.error) for a in answers]
    assert [a.status for a in answers[len(costly) :]] == [200] * len(plain)
    assert len({a.only.text for a in answers[len(costly) :]}) == 1
    assert calls.server.engine_pids() == pids
    await calls.idle()
