"""Tools on a real `octavo serve` with SmolLM2: calls that must be made are made, by the grammar."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tests.multi.launched import Launched, launched

MESSAGES: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 12}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("get_weather", "get_forecast")
]
NAMED: Any = {"type": "function", "function": {"name": "get_forecast"}}


@pytest.fixture(scope="module")
def server(smollm2_path: str) -> Iterator[Launched]:
    with launched(smollm2_path, "--max-model-len", "1024", "--served-model-name", "m") as running:
        yield running


@pytest.fixture
async def client(server: Launched) -> AsyncIterator[openai.AsyncOpenAI]:
    base = f"http://127.0.0.1:{server.port}/v1"
    async with openai.AsyncOpenAI(base_url=base, api_key="x", max_retries=0) as made:
        yield made


def calls_of(answer: ChatCompletion) -> list[tuple[str, str]]:
    calls: list[Any] = list(answer.choices[0].message.tool_calls or [])
    return [(c.function.name, c.function.arguments) for c in calls]


async def added(stream: openai.AsyncStream[ChatCompletionChunk]) -> tuple[list[tuple[str, str]], str | None]:
    calls: list[list[str]] = []
    reason = None
    async for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or []:
            assert call.function is not None
            if call.id is not None:
                calls.append([call.function.name or "", ""])
            calls[call.index][1] += call.function.arguments or ""
        reason = chunk.choices[0].finish_reason or reason
    return [(name, arguments) for name, arguments in calls], reason


@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_bb_031_required_calls_are_real_and_a_cut_says_length(
    client: openai.AsyncOpenAI, choice: Any
) -> None:
    async def ask(*, stream: bool, max_tokens: int) -> Any:
        return await client.chat.completions.create(
            model="m", messages=MESSAGES, tools=TOOLS, tool_choice=choice, temperature=0, parallel_tool_calls=False,
            max_tokens=max_tokens, stream=stream,
        )  # fmt: skip

    whole = await ask(stream=False, max_tokens=80)
    assert whole.choices[0].finish_reason == "tool_calls"
    ((name, arguments),) = calls_of(whole)
    assert choice == "required" or name == "get_forecast"
    assert set(json.loads(arguments)) == {"city"}
    assert len(json.loads(arguments)["city"]) <= 12
    assert await added(await ask(stream=True, max_tokens=80)) == ([(name, arguments)], "tool_calls")
    for max_tokens in (3, 18):
        cut = await ask(stream=False, max_tokens=max_tokens)
        assert cut.choices[0].finish_reason == "length"
        assert await added(await ask(stream=True, max_tokens=max_tokens)) == (calls_of(cut), "length")
