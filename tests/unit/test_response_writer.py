"""The writer of Responses: exact sequences of events, for every mix of thinking, text and calls."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.response_events import fold, plain, types

from octavo.api.generation import Usage
from octavo.api.text.pipeline import (
    Alternative,
    CallPart,
    ChoiceEvent,
    ContentPart,
    ReasoningPart,
    TokenEntry,
)
from octavo.api.writers.responses import ResponseOptions, ResponseWriter
from octavo.api.writers.shapes import UsageShape, usage_shape

ECHO = {"model": "m", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}


def usage(prompt: int = 3, cached: int = 1, completion: int = 5) -> UsageShape:
    return usage_shape(Usage(prompt, cached, completion, 2))


def writer(**more: Any) -> ResponseWriter:
    return ResponseWriter(ResponseOptions(id="resp_0a1b2c3d4e5f", created=7, echo=dict(ECHO), **more))


def written(events: list[ChoiceEvent], **more: Any) -> list[dict[str, Any]]:
    w = writer(**more)
    found = w.opening()
    for event in events:
        found += w.chunks(event)
    found += w.usage(usage())
    decoded: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(found))
    return decoded


def parts(*given: Any, finish: str | None = None) -> ChoiceEvent:
    text = "".join(p.arguments if isinstance(p, CallPart) else p.text for p in given)
    return ChoiceEvent(0, text=text, parts=list(given), finish=finish)


START = ["created", "in_progress"]
MESSAGE_START = ["output_item.added", "content_part.added"]
MESSAGE_END = ["output_text.done", "content_part.done", "output_item.done"]
THOUGHT_END = ["reasoning_text.done", "content_part.done", "output_item.done"]
CALL_END = ["function_call_arguments.done", "output_item.done"]


def test_text() -> None:
    events = written([ChoiceEvent(0, "Hel"), ChoiceEvent(0, "lo", finish="stop")])
    assert types(events) == [*START, *MESSAGE_START, *["output_text.delta"] * 2, *MESSAGE_END, "completed"]
    response = fold(events)
    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == "Hello"
    assert response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 8,
    }
    assert events[0]["response"]["status"] == events[1]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    assert events[0]["response"]["usage"] is None


def test_thinking_text_and_two_calls() -> None:
    events = written(
        [
            parts(ReasoningPart("I ")),
            parts(ReasoningPart("think"), ContentPart("So")),
            parts(ContentPart(":"), CallPart(0, "", "call_1", "f"), CallPart(0, '{"a"')),
            parts(CallPart(0, ":1}"), CallPart(1, "{}", "call_2", "g"), finish="tool_calls"),
        ]
    )
    assert types(events) == [
        *START,
        *MESSAGE_START,
        "reasoning_text.delta",
        "reasoning_text.delta",
        *THOUGHT_END,
        *MESSAGE_START,
        "output_text.delta",
        "output_text.delta",
        *MESSAGE_END,
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        *CALL_END,
        "output_item.added",
        "function_call_arguments.delta",
        *CALL_END,
        "completed",
    ]
    thought, message, first, second = fold(events)["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "I think"}]
    assert (thought["summary"], message["content"][0]["text"]) == ([], "So:")
    assert (first["call_id"], first["name"], first["arguments"]) == ("call_1", "f", '{"a":1}')
    assert (second["call_id"], second["name"], second["arguments"]) == ("call_2", "g", "{}")
    assert len({i["id"] for i in (thought, message, first, second)}) == 4


def test_bb_038_the_end_of_a_call_and_the_next_one_in_one_event() -> None:
    events = written([parts(CallPart(0, "{}", "a", "f"), CallPart(1, "{}", "b", "g"), finish="stop")])
    assert [i["name"] for i in fold(events)["output"]] == ["f", "g"]


@pytest.mark.parametrize(
    ("event", "statuses"),
    [
        (parts(ContentPart("Hi"), finish="length"), ["incomplete"]),
        (parts(ReasoningPart("Hm"), finish="length"), ["incomplete"]),
        (parts(ReasoningPart("Hm"), ContentPart("Hi"), finish="length"), ["completed", "incomplete"]),
        (parts(CallPart(0, '{"a":', "a", "f"), finish="length"), ["incomplete"]),
        (parts(CallPart(0, "{}", "a", "f"), finish="length"), ["completed"]),
        (parts(finish="length"), ["incomplete"]),
    ],
)
def test_what_is_cut_is_incomplete(event: ChoiceEvent, statuses: list[str]) -> None:
    events = written([event])
    assert types(events)[-1] == "incomplete"
    response = fold(events)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["completed_at"] is None
    assert [i["status"] for i in response["output"]] == statuses


def test_an_empty_answer_is_a_message() -> None:
    for event, kinds in (
        (parts(finish="stop"), ["message"]),
        (parts(ReasoningPart("Hm"), finish="stop"), ["reasoning", "message"]),
        (parts(CallPart(0, "", "a", "f"), finish="stop"), ["function_call"]),
    ):
        output = fold(written([event]))["output"]
        assert [i["type"] for i in output] == kinds


def test_a_failure_ends_the_stream_with_what_came_before_it() -> None:
    w = writer()
    events = [*w.opening(), *w.chunks(ChoiceEvent(0, "Hel")), *w.fail("server_error", "it broke")]
    response = fold(msgspec.json.decode(msgspec.json.encode(events)))
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "it broke"}
    assert response["output"][0]["status"] == "incomplete"


def test_an_answer_that_the_server_ended_has_failed() -> None:
    response = fold(written([ChoiceEvent(0, "Hel", finish="abort")]))
    assert response["status"] == "failed"


def test_a_cancelled_one_ends_as_incomplete_with_its_status() -> None:
    w = writer()
    events = [*w.opening(queued=True), *w.starting(), *w.chunks(ChoiceEvent(0, "Hel"))]
    assert w.snapshot()["output"][0]["status"] == "in_progress"
    events += w.cancel(usage())
    assert types(events)[:3] == ["created", "queued", "in_progress"]
    response = fold(msgspec.json.decode(msgspec.json.encode(events)))
    assert response["status"] == "cancelled"
    assert types(events)[-1] == "incomplete"


PARTS = st.one_of(
    st.builds(ContentPart, st.text(max_size=4)),
    st.builds(ReasoningPart, st.text(max_size=4)),
    st.builds(
        lambda n, a: CallPart(n, a, f"c{n}", f"f{n}"), st.integers(0, 3), st.sampled_from(["", "{}", '{"'])
    ),
)


@given(st.lists(PARTS, max_size=12), st.data(), st.sampled_from(["stop", "length", "tool_calls"]))
def test_grouping_changes_nothing_but_the_deltas(
    given_parts: list[Any], data: st.DataObject, finish: str
) -> None:
    """Any split of the parts into events gives one response, and every stream adds up to its own end."""
    one = fold(written([parts(*given_parts, finish=finish)]))
    events, at = [], 0
    while at < len(given_parts):
        size = data.draw(st.integers(1, 3))
        events.append(parts(*given_parts[at : at + size]))
        at += size
    assert plain(fold(written([*events, parts(finish=finish)]))) == plain(one)


# ---- logprobs -------------------------------------------------------------------------------------


def entries(*texts: str, start: int = 0) -> list[TokenEntry]:
    found = []
    for i, text in enumerate(texts):
        top = [Alternative(i, text, text.encode(), -0.5)]
        found.append(TokenEntry(i, text, text.encode(), -0.5, 1, start, top, text))
        start += len(text)
    return found


def tokens_of(item: dict[str, Any]) -> list[str]:
    return [entry["token"] for entry in item["content"][0]["logprobs"]]


def test_logprobs_are_those_of_the_message_alone() -> None:
    """<think>a b</think>Yes !{call}: only "Yes" and " !" are the message's, and what has no text and stands before."""
    raw = ["<think>", "a", " b", "</think>", "", "Yes", " !", "{", "}", ""]
    scored = entries(*raw)
    events = []
    pieces: list[Any] = [None, ReasoningPart("a"), ReasoningPart(" b"), None, None]
    pieces += [ContentPart("Yes", 18), ContentPart(" !", 21)]
    pieces += [CallPart(0, "{", "c", "f"), CallPart(0, "}"), None]
    for text, entry, part in zip(raw, scored, pieces, strict=True):
        events.append(ChoiceEvent(0, text, parts=[] if part is None else [part], entries=[entry]))
    events[-1].finish = "tool_calls"
    streamed = fold(written(events, has_logprobs=True, top_logprobs=1))
    assert tokens_of(streamed["output"][1]) == ["", "Yes", " !"]
    assert streamed["output"][1]["content"][0]["logprobs"][1]["top_logprobs"] == [
        {"token": "Yes", "logprob": -0.5, "bytes": [89, 101, 115]}
    ]
    whole = ChoiceEvent(
        0, "".join(raw), parts=[p for p in pieces if p is not None], entries=scored, finish="tool_calls"
    )
    joined = fold(written([whole], has_logprobs=True, top_logprobs=1))
    assert plain(joined) == plain(streamed)


def test_logprobs_that_come_after_their_text_are_not_lost() -> None:
    """With stop strings a token is known to belong to the answer only when what follows it is known."""
    late = [
        ChoiceEvent(0, "He"),
        ChoiceEvent(0, "llo", entries=entries("Hell", "o")),
        ChoiceEvent(0, finish="stop"),
    ]
    early = [ChoiceEvent(0, "Hello", entries=entries("Hell", "o"), finish="stop")]
    last = [ChoiceEvent(0, "Hello"), ChoiceEvent(0, entries=entries("Hell", "o"), finish="stop")]
    answers = [fold(written(events, has_logprobs=True)) for events in (late, early, last)]
    assert [tokens_of(a["output"][0]) for a in answers] == [["Hell", "o"]] * 3
