"""For a corpus of bodies: the stream of Anthropic's and of Cohere's API adds up to the answer that is not streamed.

Scripts x tools x thinking x stop strings x max_tokens x how tokens come in groups; ids of calls are set aside.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.fakes.api_world import USER, World, world
from tests.fakes.dialect_worlds import ANTHROPIC_TOOLS, OPENAI_TOOLS, THINK_TEMPLATE, call
from tests.fakes.folds import compare

SCRIPTS = {
    "text": "Hello world 😀 ok",
    "nothing": "",
    "thought": "<think>\nwell, well\n</think>\n\nHello world",
    "only a thought": "<think>\nwell, well",
    "call": call("now"),
    "calls": "Look: " + call("get_weather", city="Ósló") + "\n" + call("now"),
    "all": "<think>\nok\n</think>\n\nLook: " + call("get_weather", city="Oslo") + " and so",
    "no call": "<tool_call>\nnot json at all\n</tool_call>",
}
LENGTHS = (1, 3, 9, 40, 70, 300)
STOPS: tuple[list[str], ...] = ([], ["o"], ["</tool", "ll,"])


async def check(w: World, name: str, body: dict[str, Any]) -> None:
    assert await compare(w.post, name, body) == 200


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("name", SCRIPTS)
async def test_anthropic(name: str, group: int) -> None:
    async with world(SCRIPTS[name], template=THINK_TEMPLATE, group=group, num_cached=3) as w:
        for length, stops, has_tools in itertools.product(LENGTHS, STOPS, (False, True)):
            body: dict[str, Any] = {
                "model": "toy",
                "max_tokens": length,
                "messages": USER,
                "stop_sequences": stops,
            }
            if has_tools:
                body["tools"] = ANTHROPIC_TOOLS
            await check(w, "messages", body)
        for extra in (
            {"thinking": {"type": "adaptive", "display": "omitted"}},
            {"thinking": {"type": "disabled"}},
        ):
            await check(w, "messages", {"model": "toy", "max_tokens": 99, "messages": USER, **extra})


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("name", SCRIPTS)
async def test_cohere(name: str, group: int) -> None:
    async with world(SCRIPTS[name], template=THINK_TEMPLATE, group=group, num_cached=3) as w:
        for length, stops, has_tools in itertools.product(LENGTHS, STOPS, (False, True)):
            body: dict[str, Any] = {
                "model": "toy",
                "max_tokens": length,
                "messages": USER,
                "stop_sequences": stops,
            }
            if has_tools:
                body["tools"] = OPENAI_TOOLS
            await check(w, "cohere", body)
        await check(w, "cohere", {"model": "toy", "max_tokens": 99, "messages": USER, "logprobs": True})
        await check(
            w,
            "cohere",
            {"model": "toy", "max_tokens": 99, "messages": USER, "logprobs": True, "tools": OPENAI_TOOLS},
        )
