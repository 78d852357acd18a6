"""Anthropic's messages over HTTP: what a body means for the prompt, what is refused, the shape of errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.fakes.api_world import USER, World, world
from tests.fakes.dialect_worlds import ANTHROPIC_TOOLS, THINK_TEMPLATE, call, named_events

ASK = {"model": "toy", "max_tokens": 50, "messages": USER}


async def ask(w: World, **body: Any) -> dict[str, Any]:
    answer = await w.post("/v1/messages", {**ASK, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def refused(w: World, path: str = "/v1/messages", **body: Any) -> str:
    """The message of a 400."""
    answer = await w.post(path, {**ASK, **body})
    assert answer.status_code == 400, answer.text
    shape = answer.json()
    assert shape["type"] == "error"
    assert shape["error"]["type"] == "invalid_request_error"
    assert shape["request_id"] == answer.headers["request-id"]
    return str(shape["error"]["message"])


async def prompt_text(w: World, **body: Any) -> str:
    await ask(w, **body)
    return w.state.codec.decode(w.engine.seen[-1].prompt, skip_special_tokens=False)


async def test_an_answer_has_every_field_of_a_message() -> None:
    async with world("Hello world", num_cached=16) as w:
        message = await ask(w)
    assert message == {
        "id": message["id"],
        "type": "message",
        "role": "assistant",
        "model": "toy",
        "content": [{"type": "text", "text": "Hello world"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": message["usage"]["input_tokens"],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 16,
            "output_tokens": 3,
            "service_tier": "standard",
        },
    }
    assert message["id"].startswith("msg_")
    assert message["usage"]["input_tokens"] > 0


async def test_system_and_turns_make_the_prompt() -> None:
    turns = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": [{"type": "text", "text": "two"}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system = [{"type": "text", "text": "be"}, {"type": "text", "text": "brief", **mark}]
    async with world() as w:
        text = await prompt_text(w, system=system, messages=turns)
        short = await prompt_text(w, system="be\nbrief", messages=turns)
    assert text == short
    assert text == (
        "<|im_start|>system\nbe\nbrief<|im_end|>\n<|im_start|>user\none<|im_end|>\n"
        "<|im_start|>assistant\ntwo<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_a_leading_billing_header_of_claude_code_is_no_text_for_a_model() -> None:
    bill = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=4f2a1;"}
    rest = {"type": "text", "text": "You are Claude Code."}
    async with world() as w:
        text = await prompt_text(w, system=[bill, rest])
        assert "billing" not in text
        assert "You are Claude Code." in text
        assert "billing" in await prompt_text(w, system=[rest, bill])  # only at the start


HISTORY = [
    {"role": "user", "content": "read a"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "..", "signature": ""},
            {"type": "text", "text": "ok"},
            {"type": "tool_use", "id": "t1", "name": "Read", "input": {"p": "a"}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "x"}]},
]


async def test_bb_129_a_history_with_thinking_and_tools_is_taken() -> None:
    async with world() as w:
        text = await prompt_text(w, messages=HISTORY)
        assert "ok" in text
        assert "<|im_start|>tool\nx<|im_end|>" in text


async def test_templates_get_thoughts_calls_and_results() -> None:
    """What a template can read of such a history."""
    template = (
        "{% for m in messages %}[{{ m.role }}|{{ m.content }}|{{ m.reasoning_content }}|"
        "{{ m.tool_calls[0].function.arguments.p if m.tool_calls }}|{{ m.tool_call_id }}]{% endfor %}"
    )
    async with world(template=template) as w:
        assert await prompt_text(w, messages=HISTORY) == ("[user|read a|||][assistant|ok|..|a|][tool|x|||t1]")


async def test_results_stand_in_their_order_and_errors_are_said() -> None:
    calls = [{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in ("a", "b", "c")]
    results = [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "no file"}], "is_error": True},
        {"type": "tool_result", "tool_use_id": "b"},
        {"type": "tool_result", "tool_use_id": "c", "content": "Error: it broke", "is_error": True},
        {"type": "text", "text": "go on"},
    ]  # fmt: skip
    template = "{% for m in messages %}[{{ m.role }}|{{ m.tool_call_id }}|{{ m.content }}]{% endfor %}"
    turns = [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    async with world(template=template) as w:
        assert await prompt_text(w, messages=turns) == (
            "[assistant||][tool|a|Error: no file][tool|b|][tool|c|Error: it broke][user||go on]"
        )


async def test_redacted_thoughts_are_left_out_with_a_warning() -> None:
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "zz"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
    ]  # fmt: skip
    async with world() as w:
        answer = await w.post("/v1/messages", {**ASK, "messages": turns})
        assert answer.status_code == 200
        assert "redacted_thinking" in answer.headers["x-octavo-warnings"]


async def test_a_last_message_of_the_assistant_is_continued() -> None:
    turns = [*USER, {"role": "assistant", "content": "The answer is"}]
    async with world(" ok") as w:
        text = await prompt_text(w, messages=turns)
        assert text.endswith("<|im_start|>assistant\nThe answer is")
        message = await refused(w, messages=[*USER, {"role": "assistant", "content": ""}])
        assert "nothing to continue" in message
        use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
        assert "tool_result" in await refused(w, messages=[*USER, {"role": "assistant", "content": [use]}])


async def test_sampling_fields_reach_the_engine_in_our_terms() -> None:
    async with world() as w:
        await ask(w, temperature=0.5, top_p=0.25, top_k=7, stop_sequences=["zz"], seed=11)
        params = w.engine.seen[-1].params
        assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.25, 7)
        assert (params.stop, w.engine.seen[-1].seed) == (["zz"], 11)
        assert w.engine.seen[-1].max_tokens == 50


SEARCHED = {"type": "search_result"}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("temperature", 1.5, "at most 1"),
        ("max_tokens", 0, "max_tokens"),
        ("stop_sequences", ["a"] * 5, "stop_sequences has 5 strings; allowed are 4"),
        ("stop_sequences", [""], "stop_sequences is an empty string"),
        ("service_tier", "flex", "service_tier"),
        ("container", "c", "container is not supported"),
        ("mcp_servers", [{"url": "x"}], "mcp_servers is not supported"),
        ("inference_geo", "eu", "inference_geo is not supported"),
        ("speed", "fast", "speed"),
        ("thinking", {"type": "enabled", "budget_tokens": 10}, "thinking.budget_tokens"),
        ("thinking", {"type": "enabled"}, "thinking.budget_tokens is missing"),
        ("thinking", {"type": "enabled", "budget_tokens": 2000}, "less than max_tokens, which is 50"),
        ("thinking", {"type": "between_tools"}, "thinking.type"),
        ("system", [{"type": "image"}], "system[0]: a block 'image'"),
        ("messages", [], "messages"),
        ("messages", [{"role": "tool", "content": "x"}], "messages[0].role"),
        ("messages", [{"role": "user", "content": []}], "messages[0].content is empty"),
        ("messages", [{"role": "user", "content": [{"type": "image", "source": {}}]}], "text only"),
        ("messages", [{"role": "user", "content": [{"type": "document", "source": {}}]}], "a block 'document'"),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}], "content[0].x"),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": "a", "citations": [1]}]}], "citations"),
        ("messages", [{"role": "user", "content": [{"type": "tool_use", "id": "a"}]}], "a block 'tool_use'"),
        (
            "messages",
            [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "x"}}]}],
            "messages[0].content[0].cache_control",
        ),
        (
            "messages",
            [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [SEARCHED]}]}],
            "messages[0].content[0].content[0]: a block 'search_result'",
        ),
        ("tools", [{"type": "web_search_20250305", "name": "web_search"}], "tools[0]: 'web_search_20250305'"),
        ("tools", [{"name": "a"}], "tools[0].input_schema is missing"),
        ("tools", [{"name": "a", "input_schema": {"type": "object"}, "defer_loading": True}], "defer_loading"),
        ("tools", [{"name": "a", "input_schema": {"type": "object"}, "zz": True}], "tools[0].zz is not known"),
        ("tool_choice", {"type": "tool"}, "tool_choice.name is missing"),
        ("tool_choice", {"type": "any"}, "tool_choice needs tools"),
        ("context_management", {"edits": [{"type": "clear_tool_uses_20250919"}]}, "clear_tool_uses_20250919"),
    ],
)  # fmt: skip
async def test_what_cannot_act_is_refused_by_name(field: str, value: Any, words: str) -> None:
    async with world() as w:
        assert words in await refused(w, **{field: value})


async def test_max_tokens_beyond_the_context_are_cut_and_said_so() -> None:
    async with world("Hello" + " ok" * 3000) as w:
        message = await ask(w, max_tokens=100_000)
        assert message["stop_reason"] == "model_context_window_exceeded"
        assert message["usage"]["input_tokens"] + message["usage"]["output_tokens"] == 2048
        assert (await ask(w, max_tokens=3))["stop_reason"] == "max_tokens"
        huge = [{"role": "user", "content": "ab " * 3000}]
        assert "tokens > 2047 maximum" in await refused(w, messages=huge)


async def test_stop_sequences_end_an_answer() -> None:
    async with world("Hello world ok") as w:
        message = await ask(w, stop_sequences=["wor"])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "wor")
    assert message["content"] == [{"type": "text", "text": "Hello "}]


async def test_nothing_said_is_one_empty_block() -> None:
    async with world("") as w:
        assert (await ask(w))["content"] == [{"type": "text", "text": ""}]


# ---- tools and thinking --------------------------------------------------------------------------


async def test_bb_131_events_of_text_and_a_call_are_in_order() -> None:
    script = "Let me look." + call("get_weather", city="Oslo")
    async with world(script) as w:
        body = {**ASK, "tools": ANTHROPIC_TOOLS, "stream": True, "max_tokens": 300}
        events = named_events((await w.post("/v1/messages", body)).text)
    kinds = [e["type"] for e in events if e["type"] not in ("ping", "content_block_delta")]
    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    starts = [e for e in events if e["type"] == "content_block_start"]
    assert [s["index"] for s in starts] == [0, 1]
    use = starts[1]["content_block"]
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "get_weather", {})
    assert set(use) == {"type", "id", "name", "input"}
    pieces = [
        e["delta"]["partial_json"] for e in events if e.get("delta", {}).get("type") == "input_json_delta"
    ]
    assert json.loads("".join(pieces)) == {"city": "Oslo"}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_calls_are_blocks_and_their_input_is_an_object() -> None:
    script = call("get_weather", city="Oslo") + "\n" + call("now")
    async with world(script) as w:
        message = await ask(w, tools=ANTHROPIC_TOOLS, max_tokens=300)
    blocks = [b for b in message["content"] if b["type"] == "tool_use"]
    assert [(b["name"], b["input"]) for b in blocks] == [("get_weather", {"city": "Oslo"}), ("now", {})]
    assert len({b["id"] for b in blocks}) == 2
    assert message["stop_reason"] == "tool_use"


async def test_a_call_that_is_cut_off_says_max_tokens() -> None:
    async with world(call("get_weather", city="Oslo", country="Norway")) as w:
        message = await ask(w, tools=ANTHROPIC_TOOLS, max_tokens=62)
    assert message["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("choice", "sees_tools"),
    [({"type": "auto"}, True), ({"type": "none"}, False), (None, True)],
)
async def test_tool_choice_reaches_the_template(choice: dict[str, Any] | None, sees_tools: bool) -> None:
    template = "{{ (tools or []) | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    async with world(template=template) as w:
        text = await prompt_text(w, tools=ANTHROPIC_TOOLS, tool_choice=choice)
    assert text.startswith("2" if sees_tools else "0")


async def test_a_description_carries_the_examples_of_inputs() -> None:
    template = "{% for t in tools %}{{ t.function.description }}|{{ t.function.parameters.type }}{% endfor %}"
    tool = ANTHROPIC_TOOLS[0] | {"input_examples": [{"city": "Oslo"}], "cache_control": {"type": "ephemeral"}}
    async with world(template=template) as w:
        text = await prompt_text(w, tools=[tool])
    assert text == 'The weather of a city.\nExample input: {"city": "Oslo"}|object'


async def test_thoughts_are_blocks_with_a_signature() -> None:
    async with world("<think>\nhm hm\n</think>\n\nHello", template=THINK_TEMPLATE) as w:
        message = await ask(w, thinking={"type": "adaptive"})
        again = await ask(w, thinking={"type": "adaptive", "display": "omitted"})
    thought, text = message["content"]
    assert (thought["type"], text["type"]) == ("thinking", "text")
    assert thought["thinking"].strip() == "hm hm"
    assert text["text"].strip() == "Hello"
    assert thought["signature"]
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] > 0
    assert again["content"][0] == {"type": "thinking", "thinking": "", "signature": thought["signature"]}


async def test_thinking_is_switched_in_the_template() -> None:
    async with world("Hello", template=THINK_TEMPLATE) as w:
        on = await prompt_text(w, thinking={"type": "adaptive"})
        off = await prompt_text(w, thinking={"type": "disabled"})
        unsaid = await prompt_text(w)
    assert off == on + "<think>\n\n</think>\n\n"
    assert unsaid == on


async def test_a_model_that_does_not_think_says_so_and_answers() -> None:
    """Claude Code asks for thinking of whatever model it talks to."""
    async with world("Hello") as w:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        answer = await w.post("/v1/messages", {**ASK, "thinking": thinking, "max_tokens": 1500})
    assert answer.status_code == 200
    assert "thinking has no effect" in answer.headers["x-octavo-warnings"]


async def test_older_thoughts_are_cleared_when_asked() -> None:
    def answer(thought: str, text: str) -> dict[str, Any]:
        thinking = {"type": "thinking", "thinking": thought, "signature": "s"}
        return {"role": "assistant", "content": [thinking, {"type": "text", "text": text}]}

    a, c, e = ({"role": "user", "content": text} for text in "ace")
    turns = [a, answer("T1", "b"), c, answer("T2", "d"), e]
    template = "{% for m in messages %}[{{ m.content }}|{{ m.reasoning_content }}]{% endfor %}"
    edit = {"type": "clear_thinking_20251015"}
    async with world(template=template) as w:
        for keep, text in (
            ("all", "[b|T1][c|][d|T2]"),
            ({"type": "thinking_turns", "value": 1}, "[b|][c|][d|T2]"),
        ):
            management = {"edits": [edit | {"keep": keep}]}
            assert text in await prompt_text(w, messages=turns, context_management=management)
