"""/v1/responses of a real `octavo serve`: the examples of its document, and reported cases."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator

import jsonschema
import openai
import pytest
from tests.examples import run_examples
from tests.fakes.response_events import fold, plain, read_events
from tests.multi.launched import Launched, launched


@pytest.fixture(scope="module")
def server(smollm2_path: str) -> Iterator[Launched]:
    with launched(smollm2_path, "--served-model-name", "m") as running:
        yield running


@pytest.fixture
async def client(server: Launched) -> AsyncIterator[openai.AsyncOpenAI]:
    base = f"http://127.0.0.1:{server.port}/v1"
    async with openai.AsyncOpenAI(base_url=base, api_key="x", max_retries=0) as made:
        yield made


def test_the_examples_of_the_document_print_what_it_says(server: Launched) -> None:
    assert run_examples("responses.md", server.port) >= 7


async def test_bb_125_one_token_is_incomplete(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.create(
        model="m", input="What is 2+2?", max_output_tokens=1, temperature=0
    )
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens == 1


async def test_bb_127_the_text_follows_its_schema(client: openai.AsyncOpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    response = await client.responses.create(
        model="m",
        input="Give me a number.",
        temperature=0,
        text={"format": {"type": "json_schema", "name": "o", "schema": schema}},  # type: ignore[arg-type]
    )
    assert response.status == "completed"
    jsonschema.validate(json.loads(response.output_text), schema)


def test_stream_and_whole_are_one_answer(server: Launched) -> None:
    for body in (
        {"input": "Name a colour.", "max_output_tokens": 30},
        {"input": "Name a colour.", "max_output_tokens": 30, "stop": ["."], "temperature": 0},
        {
            "input": "Name one.",
            "max_output_tokens": 8,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 2,
        },
    ):
        body = {"seed": 3, **body}
        status, whole = server.request("POST", "/v1/responses", body)
        assert status == 200, whole
        _, stream = server.request("POST", "/v1/responses", {**body, "stream": True})
        streamed, waited = plain(fold(read_events(stream))), plain(json.loads(whole))
        for found in (streamed, waited):
            del found["usage"]["input_tokens_details"]  # the second one finds the first one's prefix
        assert streamed == waited
