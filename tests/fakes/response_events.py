"""A client's side of a Responses stream: reads frames, checks their order strictly, adds them up."""

from __future__ import annotations

import json
from typing import Any

import pydantic
from openai.types.responses import Response, ResponseStreamEvent

_EVENT: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponseStreamEvent)
_RESPONSE = pydantic.TypeAdapter(Response)
ENDS = ("response.completed", "response.incomplete", "response.failed")


def read_events(text: str) -> list[dict[str, Any]]:
    """Events of a stream; the name of each frame is the type of its event, and there is no [DONE]."""
    events = []
    for frame in text.split("\n\n")[:-1]:
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert text.endswith("\n\n")
    return events


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def check_response(response: dict[str, Any]) -> None:
    """Every field that OpenAI's own types ask for is there and of their type."""
    _RESPONSE.validate_python(response)


def fold(events: list[dict[str, Any]], *, first: int = 0) -> dict[str, Any]:
    """The response that the pieces add up to, checked against what the events of the end repeat."""
    assert [e["sequence_number"] for e in events] == list(range(first, first + len(events)))
    for event in events:
        _EVENT.validate_python(event)
    names = types(events)
    assert names[0] == "created"
    assert names[1] in ("in_progress", "queued")
    assert [n for n in names if f"response.{n}" in ENDS] == names[-1:], "one end, and it is last"
    output: list[dict[str, Any]] = []
    is_open = False
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert not is_open
            assert event["output_index"] == len(output)
            assert event["item"]["status"] == "in_progress"
            output.append(json.loads(json.dumps(event["item"])))
            is_open = True
        elif "output_index" in event:
            assert is_open
            assert event["output_index"] == len(output) - 1
            is_open = not _add(kind, event, output[-1])
    assert not is_open
    last = events[-1]["response"]
    check_response(last)
    assert last["output"] == output
    return {**last, "output": output}


def _add(kind: str, event: dict[str, Any], item: dict[str, Any]) -> bool:
    """Puts a piece into its item; true when the item is done."""
    if kind == "output_item.done":
        status = event["item"]["status"]
        assert status in ("completed", "incomplete")
        item["status"] = status
        assert event["item"] == item
        return True
    assert event["item_id"] == item["id"]
    if kind == "content_part.added":
        assert event["content_index"] == len(item["content"])
        item["content"].append(json.loads(json.dumps(event["part"])))
    elif kind == "content_part.done":
        assert event["part"] == item["content"][event["content_index"]]
    elif kind in ("output_text.delta", "reasoning_text.delta"):
        part = item["content"][event["content_index"]]
        part["text"] += event["delta"]
        if kind == "output_text.delta":
            part["logprobs"] += event["logprobs"]
    elif kind in ("output_text.done", "reasoning_text.done"):
        part = item["content"][event["content_index"]]
        assert event["text"] == part["text"]
        assert event.get("logprobs", []) == part.get("logprobs", [])
    elif kind == "function_call_arguments.delta":
        item["arguments"] += event["delta"]
    else:
        assert kind == "function_call_arguments.done"
        assert event["arguments"] == item["arguments"]
    return False


def plain(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs between two runs of one request: ids and times."""
    text = json.dumps({k: v for k, v in response.items() if k not in ("created_at", "completed_at")})
    return dict(json.loads(text.replace(response["id"].removeprefix("resp_"), "ID")))
