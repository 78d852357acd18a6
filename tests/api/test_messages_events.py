"""Anthropic's stream for scripted parts, event by event, and its fold beside what Anthropic's client makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event

from octavo.api.generation import Usage
from octavo.api.text.parts import CallPart, ContentPart, Part, ReasoningPart
from octavo.api.text.pipeline import ChoiceEvent
from octavo.api.writers.messages import MessageFold, MessageOptions, MessageStream, arguments_of
from octavo.api.writers.shapes import usage_shape

USAGE = Usage(20, 16, 7, 3)
OPTIONS = MessageOptions(id="msg_1", model="toy", usage=lambda: USAGE)
START = {"type": "message_start"}
PING = {"type": "ping"}


def event(
    *parts: Part, finish: str | None = None, stop: int | str | None = None, has_calls: bool = False
) -> ChoiceEvent:
    return ChoiceEvent(0, parts=list(parts), finish=finish, stop_reason=stop, has_calls=has_calls)


def streamed(events: list[ChoiceEvent], options: MessageOptions = OPTIONS) -> list[dict[str, Any]]:
    stream = MessageStream(options)
    found = [chunk for e in events for chunk in stream.chunks(e)]
    return found + stream.usage(usage_shape(USAGE))


def folded(events: list[ChoiceEvent], options: MessageOptions = OPTIONS) -> dict[str, Any]:
    fold = MessageFold(options)
    for e in events:
        fold.add(e)
    return fold.result(usage_shape(USAGE))


def by_client(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """What Anthropic's own client adds the events up to."""
    snapshot, buffers = None, {}  # type: ignore[var-annotated]
    for chunk in chunks:
        if chunk["type"] != "ping":
            snapshot = accumulate_event(event=chunk, current_snapshot=snapshot, json_bufs=buffers)  # type: ignore[arg-type]
    assert snapshot is not None
    return snapshot.to_dict()


SEVERAL = [
    event(ReasoningPart("let me "), ReasoningPart("think")),
    event(ReasoningPart("."), ContentPart("Loo")),
    event(ContentPart("king.")),
    event(CallPart(0, id="c0", name="get_weather")),
    event(CallPart(0, '{"city":'), CallPart(0, ' "Oslo"}')),
    event(CallPart(1, "{}", id="c1", name="now")),
    event(finish="stop", has_calls=True),
]


def test_every_event_of_an_answer_in_order() -> None:
    start, *rest = streamed(SEVERAL)
    assert start["type"] == "message_start"
    assert start["message"]["usage"] == {
        "input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 16,
        "output_tokens": 0,
        "service_tier": "standard",
    }

    def begin(index: int, block: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_start", "index": index, "content_block": block}

    def delta(index: int, kind: str, **value: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **value}}

    def end(index: int) -> dict[str, Any]:
        return {"type": "content_block_stop", "index": index}

    signature = next(e["delta"]["signature"] for e in rest if "signature" in e.get("delta", {}))
    assert rest == [
        PING,
        begin(0, {"type": "thinking", "thinking": "", "signature": ""}),
        delta(0, "thinking_delta", thinking="let me "),
        delta(0, "thinking_delta", thinking="think"),
        delta(0, "thinking_delta", thinking="."),
        delta(0, "signature_delta", signature=signature),
        end(0),
        begin(1, {"type": "text", "text": ""}),
        delta(1, "text_delta", text="Loo"),
        delta(1, "text_delta", text="king."),
        end(1),
        begin(2, {"type": "tool_use", "id": "c0", "name": "get_weather", "input": {}}),
        delta(2, "input_json_delta", partial_json='{"city":'),
        delta(2, "input_json_delta", partial_json=' "Oslo"}'),
        end(2),
        begin(3, {"type": "tool_use", "id": "c1", "name": "now", "input": {}}),
        delta(3, "input_json_delta", partial_json="{}"),
        end(3),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {
                "input_tokens": 4,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 16,
                "output_tokens": 7,
                "output_tokens_details": {"thinking_tokens": 3},
            },
        },
        {"type": "message_stop"},
    ]


ANSWERS: list[list[ChoiceEvent]] = [
    SEVERAL,
    [event(ContentPart("Hello")), event(finish="stop")],
    [event(ContentPart("Hello"), finish="length")],
    [event(ContentPart("a"), finish="stop", stop="END")],
    [event(finish="stop")],
    [event(ReasoningPart("only thoughts"), finish="length")],
    [event(ReasoningPart("a")), event(ContentPart("b"), ReasoningPart("c")), event(ContentPart("d"), finish="stop")],
    [event(CallPart(0, '{"path": "/a", "text": "half of', id="c", name="f"), finish="length")],
    [event(CallPart(0, "", id="c", name="f"), finish="length")],
    [event(CallPart(0, '{"a": [1, 2, {"b": nul', id="c", name="f"), finish="length")],
    [event(ContentPart(""), ReasoningPart("")), event(ContentPart("x"), finish="stop", stop=5)],
]  # fmt: skip


@pytest.mark.parametrize("events", ANSWERS)
def test_the_fold_is_what_anthropics_client_makes_of_the_stream(events: list[ChoiceEvent]) -> None:
    theirs, ours = by_client(streamed(events)), folded(events)
    for message in (theirs, ours):
        for block in message["content"]:
            block.pop("parsed_output", None)
    assert {k: theirs[k] for k in ours} == ours


def test_the_fold_does_not_depend_on_how_parts_were_grouped() -> None:
    """Every text one character a piece."""
    fine: list[ChoiceEvent] = []
    for e in SEVERAL:
        for part in e.parts or []:
            if isinstance(part, CallPart):
                fine.append(event(CallPart(part.index, id=part.id, name=part.name)))
                fine += [event(CallPart(part.index, c)) for c in part.arguments]
            else:
                fine += [event(type(part)(c)) for c in part.text]
    assert folded([*fine, event(finish="stop", has_calls=True)]) == folded(SEVERAL)


@pytest.mark.parametrize(
    ("finish", "stop", "is_cut", "reason"),
    [
        ("stop", None, False, "end_turn"),
        ("stop", 7, False, "end_turn"),
        ("stop", "END", False, "stop_sequence"),
        ("length", None, False, "max_tokens"),
        ("length", None, True, "model_context_window_exceeded"),
        ("abort", None, False, "max_tokens"),
        ("repetition", None, False, "max_tokens"),
    ],
)
def test_reasons(finish: str, stop: int | str | None, is_cut: bool, reason: str) -> None:
    options = MessageOptions(id="m", model="toy", usage=lambda: USAGE, is_cut=is_cut)
    message = folded([event(ContentPart("a"), finish=finish, stop=stop)], options)
    assert message["stop_reason"] == reason
    assert message["stop_sequence"] == (stop if reason == "stop_sequence" else None)


def test_the_same_thoughts_get_the_same_signature() -> None:
    def signature(*pieces: str) -> str:
        events = [event(*map(ReasoningPart, pieces)), event(finish="stop")]
        return str(folded(events)["content"][0]["signature"])

    assert signature("a", "b") == signature("ab") != signature("abc")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        ("{}", {}),
        ('{"a": 1}', {"a": 1}),
        ('{"a": 1, "b": "ha', {"a": 1}),
        ("[1]", {"INVALID_JSON": "[1]"}),
        ("city=Oslo", {"INVALID_JSON": "city=Oslo"}),
    ],
)
def test_inputs_are_objects(text: str, value: dict[str, Any]) -> None:
    assert arguments_of(text) == value
