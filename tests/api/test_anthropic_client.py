"""Anthropic's own client, unmodified, over a socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from tests.fakes.api_world import USER, World, on_socket, world
from tests.fakes.dialect_worlds import ANTHROPIC_TOOLS, THINK_TEMPLATE, call
from tests.fakes.toy_codec import ToyCodec

from octavo.wire.messages import EngineRequest

ASK: dict[str, Any] = {"model": "toy", "max_tokens": 400, "messages": USER}


@asynccontextmanager
async def served(
    script: Any = "Hello world", **options: Any
) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, World]]:
    async with (
        world(script, **options) as w,
        on_socket(w.app) as url,
        anthropic.AsyncAnthropic(base_url=url, api_key="secret", max_retries=0) as client,
    ):
        yield client, w


async def test_create() -> None:
    async with served(server={"api_keys": ("secret",)}) as (client, _):
        message = await client.messages.create(**ASK)
        beta = await client.beta.messages.create(**ASK, betas=["interleaved-thinking-2025-05-14"])
        assert message._request_id == message.id.removeprefix("msg_")
    for m in (message, beta):
        assert (m.role, m.type, m.model, m.stop_reason) == ("assistant", "message", "toy", "end_turn")
        (block,) = m.content
        assert block.type == "text"
        assert block.text == "Hello world"
        assert m.usage.output_tokens == 3


async def test_the_stream_helper_ends_with_the_message_that_create_returns() -> None:
    script = "<think>\nwell\n</think>\n\nLook:" + call("get_weather", city="Oslo") + call("now")
    async with served(script, template=THINK_TEMPLATE) as (client, _):
        body: Any = {**ASK, "tools": ANTHROPIC_TOOLS, "thinking": {"type": "adaptive"}}
        whole = await client.messages.create(**body)
        async with client.messages.stream(**body) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_message()
    assert {"thinking", "signature", "text", "input_json"} <= set(kinds)
    assert [kinds[0], kinds[-1]] == ["message_start", "message_stop"]
    theirs = final.to_dict()
    theirs.pop("stop_details", None)
    for block in theirs["content"]:  # type: ignore[attr-defined]
        block.pop("parsed_output", None)
    ours = whole.to_dict()
    ids = [[b.pop("id") for b in m["content"] if "id" in b] for m in (ours, theirs)]  # type: ignore[attr-defined]
    assert [len(set(i)) for i in ids] == [2, 2]
    assert theirs | {"id": ""} == ours | {"id": ""}


async def test_text_stream() -> None:
    async with served("Hello world 😀 ok") as (client, _):
        async with client.messages.stream(**ASK) as stream:
            pieces = [text async for text in stream.text_stream]
        raw = await client.messages.create(**ASK, stream=True)
        kinds = [event.type async for event in raw]
    assert "".join(pieces) == "Hello world 😀 ok"
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


async def test_a_loop_of_two_tools() -> None:
    """The model calls two tools, gets their results, and answers."""
    codec = ToyCodec()

    def script(request: EngineRequest) -> list[int]:
        told = codec.decode(request.prompt, skip_special_tokens=False)
        if "rain" in told:
            return codec.encode("Take an umbrella.", False)
        return codec.encode(call("get_weather", city="Oslo") + call("now"), False)

    async with served(script) as (client, w):
        messages: list[Any] = [{"role": "user", "content": "Umbrella?"}]
        first = await client.messages.create(**{**ASK, "messages": messages}, tools=ANTHROPIC_TOOLS)
        assert first.stop_reason == "tool_use"
        uses = [b for b in first.content if b.type == "tool_use"]
        assert [(u.name, u.input) for u in uses] == [("get_weather", {"city": "Oslo"}), ("now", {})]
        results = [{"type": "tool_result", "tool_use_id": u.id, "content": f"{u.name}: rain"} for u in uses]
        messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
        second = await client.messages.create(**{**ASK, "messages": messages}, tools=ANTHROPIC_TOOLS)
        shown = codec.decode(w.engine.seen[-1].prompt, skip_special_tokens=False)
    assert second.stop_reason == "end_turn"
    (block,) = second.content
    assert block.type == "text"
    assert block.text == "Take an umbrella."
    assert shown.index("get_weather: rain") < shown.index("now: rain")


async def test_the_tool_runner_of_the_client() -> None:
    codec = ToyCodec()
    asked = []

    @anthropic.beta_async_tool
    async def get_weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "rain"

    def script(request: EngineRequest) -> list[int]:
        told = codec.decode(request.prompt, skip_special_tokens=False)
        return codec.encode("Wet." if "rain" in told else call("get_weather", city="Oslo"), False)

    async with served(script) as (client, _):
        runner = client.beta.messages.tool_runner(**ASK, tools=[get_weather])
        final = await runner.until_done()
    assert asked == ["Oslo"]
    assert final.content[0].type == "text"
    assert final.content[0].text == "Wet."


async def test_count_tokens() -> None:
    async with served() as (client, _):
        message = await client.messages.create(**ASK, system="be brief")
        count = await client.messages.count_tokens(model="toy", messages=USER, system="be brief")  # type: ignore[arg-type]
    assert count.input_tokens == message.usage.input_tokens


async def test_errors_are_the_classes_of_the_client() -> None:
    async with served(server={"api_keys": ("secret",)}) as (client, _):
        with pytest.raises(anthropic.NotFoundError) as gone:
            await client.messages.create(**{**ASK, "model": "gone"})
        with pytest.raises(anthropic.BadRequestError) as bad:
            await client.messages.create(**ASK, stop_sequences=["a"] * 9)
        with pytest.raises(anthropic.AuthenticationError) as key:
            await client.with_options(api_key="wrong").messages.create(**ASK)
    assert [e.value.type for e in (gone, bad, key)] == [
        "not_found_error",
        "invalid_request_error",
        "authentication_error",
    ]
    assert all(e.value.request_id for e in (gone, bad, key))


async def test_a_fault_in_the_stream_is_an_error_of_the_client() -> None:
    async with served("Hello world ok ok ok", fail_at=3) as (client, _):
        stream = await client.messages.create(**ASK, stream=True)
        with pytest.raises(anthropic.APIStatusError, match="api_error"):
            async for _ in stream:
                pass


async def test_parsed_output() -> None:
    """output_config.format through the client's own helper."""
    from pydantic import BaseModel

    class City(BaseModel):
        name: str

    async with served(json.dumps({"name": "Oslo"}, separators=(",", ":"))) as (client, w):
        message = await client.messages.parse(**ASK, output_format=City)
        assert message.parsed_output == City(name="Oslo")
        assert w.engine.seen[-1].params.structured is not None
