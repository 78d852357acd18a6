"""Clients that were written for other servers, unmodified, each in a process of its own: litellm, langchain, npm's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.clients.runner import run_node, run_python
from tests.fakes.api_world import on_socket, world
from tests.fakes.dialect_worlds import call
from tests.fakes.toy_codec import ToyCodec

from octavo.wire.messages import EngineRequest

HELLO = "Hello world ok"
CITY = {"name": "Oslo", "people": 7}
CALL = ["get_weather", {"city": "Oslo"}]


def script(request: EngineRequest) -> list[int]:
    """A model that calls the tool for the weather, answers by its result, and writes JSON when asked for it."""
    codec = ToyCodec()
    told = codec.decode(request.prompt, skip_special_tokens=False)
    if "as JSON" in told:
        named = call("City", **CITY) if '"City"' in told else '{"name":"Oslo","people":7}'
        return codec.encode(named, False)
    if ": rain" in told:
        return codec.encode("Take an umbrella.", False)
    if "weather in Oslo" in told:
        return codec.encode(call("get_weather", city="Oslo"), False)
    return codec.encode(HELLO, False)


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    async with world(script, server={"api_keys": ("secret",)}) as w, on_socket(w.app) as url:
        yield url


async def test_litellm_over_both_routes() -> None:
    async with served() as url:
        seen = await run_python("litellm_client.py", url)
    for name in ("openai", "anthropic"):
        assert seen[name] == {
            "text": HELLO,
            "finish": "stop",
            "tokens": 4,
            "streamed": HELLO,
            "call": [*CALL, "tool_calls"],
            "streamed_call": CALL,
            "error": "NotFoundError",
        }


async def test_langchain_openai() -> None:
    async with served() as url:
        seen = await run_python("langchain_client.py", url)
    assert seen == {
        "text": HELLO,
        "tokens": 4,
        "streamed": HELLO,
        "call": CALL,
        "last": "Take an umbrella.",
        "streamed_call": CALL,
        "json_schema": CITY,
        "function_calling": CITY,
        "json_mode": CITY,
    }


async def test_npm_openai() -> None:
    async with served() as url:
        seen: dict[str, Any] = await run_node("node_openai.mjs", url)
    assert seen == {
        "text": HELLO,
        "finish": "stop",
        "tokens": 4,
        "streamed": HELLO,
        "call": CALL,
        "last": "Take an umbrella.",
        "error": "NotFoundError",
    }


async def test_npm_ai_with_openai_compatible() -> None:
    async with served() as url:
        seen: dict[str, Any] = await run_node("node_ai.mjs", url)
    assert seen == {
        "text": HELLO,
        "finish": "stop",
        "tokens": 4,
        "streamed": HELLO,
        "streamedTokens": 4,
        "call": CALL,
        "last": "Take an umbrella.",
        "streamedCall": CALL,
        "streamedLast": "Take an umbrella.",
        "object": CITY,
    }
