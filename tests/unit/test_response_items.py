"""Items of the Responses API to chat messages: what belongs to one turn of an assistant is one message."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.api.dialects.response_items import kept, last_cut, messages_of, read_items
from octavo.errors import InvalidRequest

USER = {"role": "user", "content": "Hi"}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes"}]}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]}


def call(n: int) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{n}", "name": f"f{n}", "arguments": "{}"}


def output(n: int) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{n}", "output": f"o{n}"}


def read(*items: Any) -> list[dict[str, Any]]:
    def find(item_id: str, place: str) -> dict[str, Any]:
        raise InvalidRequest("none", param=place)

    return read_items(list(items), "p", find)


def shape(*items: Any) -> list[tuple[str, ...]]:
    """(role, keys beside it) of each message."""
    return [(m["role"], *sorted(set(m) - {"role"})) for m in messages_of(read(*items))]


@pytest.mark.parametrize(
    ("items", "wanted"),
    [
        ([USER, SAID, USER], [("user", "content"), ("assistant", "content"), ("user", "content")]),
        ([USER, THOUGHT, SAID], [("user", "content"), ("assistant", "content", "reasoning")]),
        ([USER, THOUGHT, call(1), call(2)], [("user", "content"), ("assistant", "reasoning", "tool_calls")]),
        ([USER, SAID, call(1)], [("user", "content"), ("assistant", "content", "tool_calls")]),
        ([USER, call(1), SAID], [("user", "content"), ("assistant", "content", "tool_calls")]),
        ([USER, SAID, SAID], [("user", "content"), ("assistant", "content"), ("assistant", "content")]),
        (
            [USER, SAID, THOUGHT, SAID],
            [("user", "content"), ("assistant", "content"), ("assistant", "content", "reasoning")],
        ),
        (
            [call(1), output(1), THOUGHT, SAID],
            [
                ("assistant", "tool_calls"),
                ("tool", "content", "name", "tool_call_id"),
                ("assistant", "content", "reasoning"),
            ],
        ),
    ],
)
def test_turns(items: list[Any], wanted: list[tuple[str, ...]]) -> None:
    assert shape(*items) == wanted


def test_the_texts_of_items() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    messages = messages_of(
        read(
            {"role": "developer", "content": parts},
            {"role": "user", "content": "c"},
            THOUGHT,
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "sum"}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            call(1),
            output(1) | {"output": parts},
        )
    )
    assert messages == [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
        {
            "role": "assistant",
            "reasoning": "Hm\nsum",
            "content": "No.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f1", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "f1", "content": "a\nb"},
    ]


def test_plain_form_is_stable_and_ids_are_made_or_kept() -> None:
    items = read(USER, SAID | {"id": "msg_mine"}, THOUGHT, call(1), output(1))
    assert [i["id"] for i in items] == ["msg_p0", "msg_mine", "rs_p2", "fc_p3", "fco_p4"]
    assert read(*items) == items


def test_an_output_needs_its_call_before_it() -> None:
    for items in ([output(1)], [call(2), output(1)], [output(1), call(1)]):
        with pytest.raises(InvalidRequest, match="c1"):
            messages_of(read(*items))


CONVERSATIONS = st.lists(
    st.sampled_from(["user", "system", "said", "thought", "round", "rounds"]), min_size=1, max_size=12
)


@given(CONVERSATIONS)
def test_a_cut_conversation_stands_by_itself_and_keeps_its_end(kinds: list[str]) -> None:
    items: list[Any] = []
    for n, kind in enumerate(kinds):
        items += {
            "user": [USER],
            "system": [{"role": "system", "content": f"rule {n}"}],
            "said": [SAID],
            "thought": [THOUGHT],
            "round": [call(n), output(n)],
            "rounds": [call(n), call(100 + n), output(n), output(100 + n)],
        }[kind]
    items = read(*items)
    rules = [i for i in items if i.get("role") == "system"]
    for first in range(last_cut(items) + 1):
        left = kept(items, first)
        messages_of(left)
        assert left[-1] == items[-1]
        assert [i for i in left if i.get("role") == "system"] == rules
        assert len(left) <= len(items)
    assert kept(items, 0) == items
