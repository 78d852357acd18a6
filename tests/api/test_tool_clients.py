"""The unmodified openai client and openai-agents with tools: streamed, not streamed, helpers, a loop of two tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import agents
import openai
import pytest
from openai.types.chat import ChatCompletionFunctionToolParam
from pydantic import BaseModel
from tests.fakes.api_world import USER, on_socket, world
from tests.fakes.toy_codec import ToyCodec

from octavo.wire.messages import EngineRequest

CODEC = ToyCodec()
WEATHER: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
ANSWER = (
    'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city":"Köln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Ulm"}}\n</tool_call>'
)
CALLS = [("get_weather", {"city": "Köln"}), ("get_weather", {"city": "Ulm"})]
THINKS = "{{ tools }}<tool_call>arguments{% for m in messages %}{{ m.content }}{% endfor %}<think>\n"


def client_at(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)


async def test_openai_client_with_tools() -> None:
    async with world(ANSWER) as w, on_socket(w.app) as url, client_at(url) as client:
        whole = await client.chat.completions.create(model="toy", messages=USER, tools=[WEATHER])  # type: ignore[arg-type]
        stream = await client.chat.completions.create(
            model="toy", messages=USER, tools=[WEATHER], stream=True  # type: ignore[arg-type]
        )  # fmt: skip
        calls: dict[int, list[str]] = {}
        text, reasons = "", []
        async for chunk in stream:
            delta = chunk.choices[0].delta
            text += delta.content or ""
            for call in delta.tool_calls or []:
                function = call.function
                assert function is not None
                if call.id is not None:
                    calls[call.index] = [function.name or "", ""]
                calls[call.index][1] += function.arguments or ""
            reasons.append(chunk.choices[0].finish_reason)
    message = whole.choices[0].message
    assert message.tool_calls is not None
    found = [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls]  # type: ignore[union-attr]
    assert found == [(n, json.loads(a)) for n, a in calls.values()] == CALLS
    assert message.content == text == "I look."
    assert whole.choices[0].finish_reason == reasons[-1] == "tool_calls"
    assert reasons[:-1] == [None] * (len(reasons) - 1)


async def test_openai_stream_helper_puts_calls_together() -> None:
    strict: Any = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    messages: Any = USER
    async with (
        world(ANSWER) as w,
        on_socket(w.app) as url,
        client_at(url) as client,
        client.chat.completions.stream(model="toy", messages=messages, tools=[strict]) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert kinds.count("tool_calls.function.arguments.done") == 2
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert [(c.function.name, c.function.parsed_arguments) for c in calls] == CALLS


class Weather(BaseModel):
    """Weather of a city"""

    city: str


async def test_openai_parse_with_a_pydantic_tool() -> None:
    text = '<tool_call>\n{"name": "Weather", "arguments": {"city":"Köln"}}\n</tool_call>'
    async with world(text) as w, on_socket(w.app) as url, client_at(url) as client:
        for choice in ("auto", "required"):
            answer = await client.chat.completions.parse(
                model="toy",
                messages=USER,  # type: ignore[arg-type]
                tools=[openai.pydantic_function_tool(Weather)],
                tool_choice=choice,  # type: ignore[arg-type]
            )
            calls = answer.choices[0].message.tool_calls
            assert calls is not None
            assert calls[0].function.parsed_arguments == Weather(city="Köln")
        assert all(r.params.structured is not None for r in w.engine.seen)  # strict: also with auto


async def test_openai_client_sees_reasoning() -> None:
    async with (
        world("Hm.</think>Yes.", template=THINKS) as w,
        on_socket(w.app) as url,
        client_at(url) as client,
    ):
        whole = await client.chat.completions.create(model="toy", messages=USER)  # type: ignore[arg-type]
        stream = await client.chat.completions.create(model="toy", messages=USER, stream=True)  # type: ignore[arg-type]
        deltas = [chunk.choices[0].delta async for chunk in stream]
    assert whole.choices[0].message.reasoning == "Hm."  # type: ignore[attr-defined]
    assert "".join(getattr(d, "reasoning", None) or "" for d in deltas) == "Hm."
    assert whole.choices[0].message.content == "".join(d.content or "" for d in deltas) == "Yes."
    assert whole.usage is not None
    details = whole.usage.completion_tokens_details
    assert details is not None
    assert details.reasoning_tokens == len(CODEC.encode("Hm.", False))


def call(name: str, /, **arguments: Any) -> str:
    """As the grammar of strict functions has it: compact arguments."""
    compact = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return f'<tool_call>\n{{"name": "{name}", "arguments": {compact}}}\n</tool_call>'


def loop_script(seen: list[str]) -> Callable[[EngineRequest], list[int]]:
    """First one tool, then with its result the other, then an answer of both."""

    def script(request: EngineRequest) -> list[int]:
        prompt = CODEC.decode(request.prompt, False)
        seen.append(prompt)
        if "16 degrees" in prompt:
            return CODEC.encode("Take a coat: 16 degrees.", False)
        if "Köln!" in prompt:
            return CODEC.encode(call("get_weather", city="Köln!"), False)
        return CODEC.encode("Wait.\n" + call("find_city", name="Cologne"), False)

    return script


@pytest.mark.parametrize("streams", [False, True])
async def test_openai_agents_runs_a_loop_of_two_tools(streams: bool) -> None:
    asked: list[str] = []

    @agents.function_tool
    def find_city(name: str) -> str:
        """Finds a city."""
        asked.append(f"find_city {name}")
        return "Köln!"

    @agents.function_tool
    def get_weather(city: str) -> str:
        """Weather of a city."""
        asked.append(f"get_weather {city}")
        return "16 degrees"

    agents.set_tracing_disabled(True)
    prompts: list[str] = []
    async with world(loop_script(prompts)) as w, on_socket(w.app) as url, client_at(url) as client:
        model = agents.OpenAIChatCompletionsModel(model="toy", openai_client=client)
        agent = agents.Agent(
            name="weather", instructions="Help.", model=model, tools=[find_city, get_weather]
        )
        if streams:
            running = agents.Runner.run_streamed(agent, "Do I need a coat in Cologne?")
            async for _ in running.stream_events():
                pass
            output = running.final_output
        else:
            output = (await agents.Runner.run(agent, "Do I need a coat in Cologne?")).final_output
    assert output == "Take a coat: 16 degrees."
    assert asked == ["find_city Cologne", "get_weather Köln!"]
    assert len(prompts) == 3
    assert all("find_city" in p for p in prompts)
