"""The unmodified openai client: create, stream, the stream helper, parse, tools, conversations, errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pydantic
import pytest
from tests.fakes.api_world import World, on_socket, world
from tests.fakes.toy_codec import ToyCodec

from octavo.wire.messages import EngineRequest

ADD = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


@asynccontextmanager
async def client_of(script: Any, **options: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, World]]:
    async with (
        world(script, **options) as w,
        on_socket(w.app) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
    ):
        yield client, w


async def test_create_and_stream() -> None:
    async with client_of("Hello world") as (client, _):
        response = await client.responses.create(
            model="toy",
            input="Say it.",
            instructions="Be kind.",
            include=["message.output_text.logprobs"],
            top_logprobs=1,
            metadata={"a": "b"},
        )
        assert response.output_text == "Hello world"
        assert response.status == "completed"
        assert response.usage is not None
        assert response.usage.output_tokens == 3
        assert response.metadata == {"a": "b"}
        text, last = "", None
        stream = await client.responses.create(model="toy", input="Say it.", stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
            last = event
        assert text == "Hello world"
        assert last is not None
        assert last.type == "response.completed"
        assert (await client.responses.retrieve(last.response.id)).output_text == text
        items = await client.responses.input_items.list(last.response.id)
        assert [item.content[0].text for item in items.data] == ["Say it."]  # type: ignore[union-attr]
        counted = await client.responses.input_tokens.count(model="toy", input="Say it.")
        assert last.response.usage is not None
        assert counted.input_tokens == last.response.usage.input_tokens


async def test_the_stream_helper() -> None:
    async with client_of("Hello world") as (client, _):
        async with client.responses.stream(model="toy", input="Say it.") as stream:
            snapshots = [e.snapshot async for e in stream if e.type == "response.output_text.delta"]
            response = await stream.get_final_response()
        assert snapshots == ["Hello", "Hello world"]
        assert response.output_text == "Hello world"


class Point(pydantic.BaseModel):
    x: int
    y: int


async def test_bb_127_parse_gives_the_model_and_the_stream_helper_too() -> None:
    """The schema reaches the engine as a grammar; the scripted answer follows it."""
    async with client_of('{"x":1,"y":2}') as (client, w):
        parsed = await client.responses.parse(model="toy", input="A point.", text_format=Point)
        assert parsed.output_parsed == Point(x=1, y=2)
        spec = w.engine.seen[0].params.structured
        assert spec is not None
        assert json.loads(spec.text)["required"] == ["x", "y"]
        assert parsed.text is not None
        assert parsed.text.format is not None
        assert parsed.text.format.type == "json_schema"
        async with client.responses.stream(model="toy", input="A point.", text_format=Point) as stream:
            final = await stream.get_final_response()
        assert final.output_parsed == Point(x=1, y=2)


async def test_a_round_trip_of_tools() -> None:
    def script(request: EngineRequest) -> list[int]:
        codec = ToyCodec()
        said = codec.decode(request.prompt, skip_special_tokens=False)
        is_told = said.endswith("3<|im_end|>\n<|im_start|>assistant\n")
        return codec.encode("It is 3." if is_told else CALL, False)

    async with client_of(script) as (client, _):
        first = await client.responses.create(model="toy", input="1 + 2?", tools=[ADD])  # type: ignore[list-item]
        call = first.output[0]
        assert call.type == "function_call"
        arguments = json.loads(call.arguments)
        result = {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": str(sum(arguments.values())),
        }
        second = await client.responses.create(
            model="toy",
            previous_response_id=first.id,
            input=[result],  # type: ignore[list-item]
            tools=[ADD],  # type: ignore[list-item]
        )
        assert second.output_text == "It is 3."
        resent = [{"role": "user", "content": "1 + 2?"}, *first.output, result]
        third = await client.responses.create(model="toy", input=resent, tools=[ADD])  # type: ignore[arg-type,list-item]
        assert third.output_text == "It is 3."
        async with client.responses.stream(model="toy", input="1 + 2?", tools=[ADD]) as stream:  # type: ignore[list-item]
            deltas = [e.delta async for e in stream if e.type == "response.function_call_arguments.delta"]
            final = await stream.get_final_response()
        assert "".join(deltas) == call.arguments
        assert final.output[0].type == "function_call"


async def test_errors_are_the_clients_own() -> None:
    async with client_of("ok") as (client, _):
        create = client.responses.create
        with pytest.raises(openai.NotFoundError) as gone:
            await create(model="toy", input="x", previous_response_id="resp_gone")
        assert "resp_gone" in str(gone.value)
        with pytest.raises(openai.NotFoundError):
            await create(model="other", input="x")
        with pytest.raises(openai.BadRequestError) as caught:
            await create(model="toy", input="x", temperature=3)
        assert caught.value.param == "temperature"
        with pytest.raises(openai.BadRequestError) as caught:
            await create(model="toy", input="x", tools=[{"type": "web_search"}])
        assert "web_search" in str(caught.value)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_gone")
    async with client_of("Hello world ok ok", fail_at=2) as (client, _):
        stream = await client.responses.create(model="toy", input="x", stream=True)
        last = [event async for event in stream][-1]
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert last.response.error.code == "server_error"
