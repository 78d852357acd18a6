"""For a corpus of bodies: the stream of Anthropic's and of Cohere's API adds up to the answer that is not streamed.

Scripts x tools x thinking x stop strings x max_tokens x how tokens come in groups; ids of calls are set aside.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from tests.fakes.api_world import USER, World, world
from tests.fakes.dialect_worlds import ANTHROPIC_TOOLS, OPENAI_TOOLS, THINK_TEMPLATE, call, named_events

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
_BLOCKS = re.compile(r"S((B(D)*E)+)MX")


def check_order(events: list[dict[str, Any]]) -> None:
    """message_start, whole blocks one after the other with rising indices, message_delta, message_stop."""
    letters = {
        "message_start": "S",
        "content_block_start": "B",
        "content_block_delta": "D",
        "content_block_stop": "E",
        "message_delta": "M",
        "message_stop": "X",
        "ping": "",
    }
    assert _BLOCKS.fullmatch("".join(letters[e["type"]] for e in events))
    indices = [e["index"] for e in events if "index" in e]
    assert indices == sorted(indices)
    assert set(indices) == set(range(max(indices) + 1))


def by_client(events: list[dict[str, Any]]) -> dict[str, Any]:
    snapshot, buffers = None, {}  # type: ignore[var-annotated]
    for event in events:
        if event["type"] != "ping":
            snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)  # type: ignore[arg-type]
    assert snapshot is not None
    return snapshot.to_dict()


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    for block in message["content"]:
        block.pop("parsed_output", None)
        if block["type"] == "tool_use":
            assert block.pop("id")
    return message | {"id": ""}


async def compare_anthropic(w: World, body: dict[str, Any]) -> None:
    whole = await w.post("/v1/messages", body)
    assert whole.status_code == 200, whole.text
    events = named_events((await w.post("/v1/messages", {**body, "stream": True})).text)
    check_order(events)
    ours, theirs = without_ids(whole.json()), without_ids(by_client(events))
    assert {k: theirs[k] for k in ours} == ours


def by_hand(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client gets by adding up Cohere's events."""
    message: dict[str, Any] = {"role": "assistant"}
    end: dict[str, Any] = {}
    for event in events:
        inner = event.get("delta", {}).get("message", {})
        if event["type"] == "content-start":
            message.setdefault("content", []).append(dict(inner["content"]))
        elif event["type"] == "content-delta":
            block = message["content"][event["index"]]
            for key, value in inner["content"].items():
                block[key] += value
        elif event["type"] == "tool-call-start":
            made = inner["tool_calls"]
            message.setdefault("tool_calls", []).append(made | {"function": dict(made["function"])})
        elif event["type"] == "tool-call-delta":
            piece = inner["tool_calls"]["function"]["arguments"]
            message["tool_calls"][event["index"]]["function"]["arguments"] += piece
        elif event["type"] == "message-end":
            end = event["delta"]
    return {"message": message, **end}


async def compare_cohere(w: World, body: dict[str, Any]) -> None:
    answer = await w.post("/cohere/v2/chat", body)
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    events = named_events((await w.post("/cohere/v2/chat", {**body, "stream": True})).text)
    streamed = by_hand(events)
    for side in (whole, streamed):
        for made in side["message"].get("tool_calls", []):
            assert made.pop("id")
    scores = [e["logprobs"] for e in events[:-1] if "logprobs" in e] + events[-1].get("logprobs", [])
    assert scores == whole.get("logprobs", [])
    assert streamed == {k: whole[k] for k in ("message", "finish_reason", "usage")}


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
            await compare_anthropic(w, body)
        for extra in (
            {"thinking": {"type": "adaptive", "display": "omitted"}},
            {"thinking": {"type": "disabled"}},
        ):
            await compare_anthropic(w, {"model": "toy", "max_tokens": 99, "messages": USER, **extra})


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
            await compare_cohere(w, body)
        await compare_cohere(w, {"model": "toy", "max_tokens": 99, "messages": USER, "logprobs": True})
        await compare_cohere(
            w, {"model": "toy", "max_tokens": 99, "messages": USER, "logprobs": True, "tools": OPENAI_TOOLS}
        )
