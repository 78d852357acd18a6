"""Tools and reasoning over HTTP: what the prompt shows, what comes back, why it ends. Streamed == whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.api.chat_answers import both, fold
from tests.fakes.api_world import USER, sse, world
from tests.fakes.scripted_engine import random_groups
from tests.fakes.toy_codec import BYTE_0, ToyCodec

from octavo.wire.messages import EngineRequest

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Köln"}}\n</tool_call>'
CALL_NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
#: Shows tools, calls and thoughts as the templates of thinking models do.
TEMPLATE = (
    "{% if tools %}<tool_call> arguments {{ tools | tojson }}\n{% endif %}{% for m in message"
    "s %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}:{{ c.function.arguments "
    "| tojson }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% els"
    "e %}<think>\n{% endif %}{% endif %}"
)


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


# ---- stop, finish reasons ----------------------------------------------------------------------------


async def test_bb_007_a_stop_string_loses_no_text_beside_tools() -> None:
    """BB-007, P004."""
    async with world("Sure, the answer is 42 END more") as w:
        got = await both(w, tools=[WEATHER], stop=["END"])
        bare = await both(w, stop=["END"])
    assert got["content"] == bare["content"] == "Sure, the answer is 42 "
    assert (got["finish"], got["stop_reason"], got["calls"]) == (["stop"], "END", [])


@pytest.mark.parametrize("choice", ["auto", "required", named("get_weather")])
async def test_bb_024_logprobs_with_tools_and_stream(choice: Any) -> None:
    """BB-024, P028."""
    async with world(CALL) as w:
        got = await both(w, tools=[WEATHER], tool_choice=choice, logprobs=True, top_logprobs=2)
    assert len(got["logprobs"]) == got["usage"]["completion_tokens"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in got["logprobs"])
    assert got["finish"] == ["tool_calls"]


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_bb_031_a_call_that_is_cut_ends_by_length_in_both_modes(choice: str) -> None:
    """BB-031, P001: for every max_tokens."""
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Llanfair"}}\n</tool_call>'
    async with world(lambda _: [BYTE_0 + b for b in text.encode()]) as w:
        for max_tokens in range(1, 61):
            got = await both(w, tools=[WEATHER], tool_choice=choice, max_tokens=max_tokens)
            assert got["finish"] == ["length"]
        whole = await both(w, tools=[WEATHER], tool_choice=choice)
    assert got["calls"][0][0] == "get_weather"
    assert (whole["finish"], whole["calls"]) == (["tool_calls"], [["get_weather", '{"city":"Llanfair"}']])


async def test_a_call_that_the_model_breaks_off_is_no_reason_to_run_it() -> None:
    async with world('<tool_call>{"name": "get_weather", "arguments": {"city": "K') as w:
        got = await both(w, tools=[WEATHER])
    assert got["calls"] == [["get_weather", '{"city": "K']]
    assert got["finish"] == ["stop"]


async def test_bb_033_every_stream_has_one_reason() -> None:
    """BB-033, P003: fifty times."""
    async with world("It is sunny.", group=random_groups(7)) as w:
        for _ in range(50):
            chunks, done = sse((await w.chat(tools=[WEATHER], tool_choice="auto", stream=True)).text)
            got = fold(chunks)[0]
            assert done
            assert (got["finish"], got["content"]) == (["stop"], "It is sunny.")
            assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_bb_042_no_tools_with_tool_choice_none() -> None:
    """BB-042, P041."""
    async with world("I will not call a tool.") as w:
        got = await both(w, tools=[WEATHER], tool_choice="none", return_prompt_text=True)
    assert "tool_calls" not in got["message"]
    assert got["content"] == "I will not call a tool."
    assert "get_weather" not in got["body"]["prompt_text"]
    async with world("No.", server={"hides_tools_on_none": False}) as w:
        shown = (await w.chat(tools=[WEATHER], tool_choice="none", return_prompt_text=True)).json()
    assert "get_weather" in shown["prompt_text"]


@pytest.mark.parametrize(
    ("choice", "text", "reason"),
    [
        ("none", "Hi", "stop"),
        ("auto", "Hi", "stop"),
        ("auto", CALL, "tool_calls"),
        ("required", CALL, "tool_calls"),
        (named("get_weather"), CALL, "tool_calls"),
    ],
)
async def test_reasons_do_not_depend_on_streaming(choice: Any, text: str, reason: str) -> None:
    """P002."""
    async with world(text) as w:
        assert (await both(w, tools=[WEATHER], tool_choice=choice))["finish"] == [reason]


# ---- calls -------------------------------------------------------------------------------------------


async def test_parallel_calls_and_text_around_them() -> None:
    async with world(f"I look.\n\n{CALL}\n{CALL_NOW}") as w:
        got = await both(w, tools=[WEATHER, NOW], n=2, temperature=1.0)
    assert got["calls"] == [["get_weather", '{"city":"Köln"}'], ["now", "{}"]]
    assert (got["content"], got["finish"]) == ("I look.", ["tool_calls"])
    ids = [c["id"] for choice in got["body"]["choices"] for c in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 4
    assert all(i.startswith("chatcmpl-tool-") for i in ids)


async def test_content_is_null_where_only_calls_are() -> None:
    async with world(CALL) as w:
        assert (await both(w, tools=[WEATHER]))["message"]["content"] is None


async def test_parallel_tool_calls_false_ends_behind_the_first_call() -> None:
    """P039."""
    async with world(CALL) as w:
        got = await both(w, tools=[WEATHER, NOW], parallel_tool_calls=False)
        spec = w.engine.seen[0].params.structured
    assert got["calls"] == [["get_weather", '{"city":"Köln"}']]
    assert got["finish"] == ["tool_calls"]
    assert spec is not None
    assert spec.kind == "lark"
    # A format that has no grammar: the parser ends the answer.
    call = {
        "open_pattern": r"<call (?P<name>\w+)>",
        "close": "</call>",
        "repeats": True,
        "content": "kv-lines",
    }
    call["transform"] = {"function": {"name": "{name}", "arguments": "{content}"}}
    own = {"start_anchor": "assistant\n", "fields": {"content": {}, "tool_calls": call}}
    codec = ToyCodec(metadata={"response_template": own})
    text = "<call get_weather>city: Ulm</call><call now></call> and so on"
    template = "{{ tools }}{{ messages[0].content }}"
    async with world(lambda _: codec.encode(text, False), codec=codec, template=template) as w:
        got = await both(w, tools=[WEATHER, NOW], parallel_tool_calls=False)
        assert w.engine.seen[0].params.structured is None
        assert len(w.engine.aborted) == 2
    assert (got["calls"], got["finish"]) == ([["get_weather", '{"city": "Ulm"}']], ["tool_calls"])


async def test_what_is_no_call_is_content() -> None:
    async with world("<tool_call>none of it</tool_call>") as w:
        got = await both(w, tools=[WEATHER])
    assert (got["content"], got["finish"]) == ("<tool_call>none of it</tool_call>", ["stop"])


async def test_required_and_named_are_one_grammar_at_the_engine() -> None:
    async with world(CALL) as w:
        for choice in ("required", named("get_weather")):
            await both(w, tools=[WEATHER, NOW], tool_choice=choice)
        required, _, only = [r.params.structured for r in w.engine.seen][:3]
        await w.chat(tools=[WEATHER], tool_choice="auto")
        assert w.engine.seen[-1].params.structured is None
    assert required is not None
    assert only is not None
    assert required.kind == only.kind == "lark"
    assert "now" in required.text
    assert "now" not in only.text


# ---- the prompt --------------------------------------------------------------------------------------


async def test_tools_reach_a_template_that_shows_them() -> None:
    async with world("<think>\n</think>Hi", template=TEMPLATE) as w:
        text = (await w.chat(tools=[WEATHER], return_prompt_text=True)).json()["prompt_text"]
        same = (await w.post("/tokenize", {"messages": USER, "tools": [WEATHER]})).json()["tokens"]
        assert same == w.engine.seen[0].prompt
    assert '"name": "get_weather"' in text


async def test_tools_are_described_where_the_template_has_no_place_for_them() -> None:
    async with world("Hi") as w:
        for messages in (USER, [{"role": "system", "content": "Be brief."}, *USER]):
            body = (await w.chat(messages=messages, tools=[WEATHER], return_prompt_text=True)).json()
            system = body["prompt_text"].split("<|im_end|>")[0]
            assert '"name": "get_weather"' in system
            assert "<tool_call>" in system
            assert ("Be brief." in system) == (messages is not USER)
            assert "system message describes them" in body["warnings"][0]


async def test_a_whole_loop_of_history() -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city":"Köln"}'},
    }
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call, {**call, "id": "c2"}]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": t} for t in ("rain", "cold")]},
        {"role": "tool", "tool_call_id": "c2", "content": "sun"},
    ]  # fmt: skip
    async with world("Hi", template=TEMPLATE) as w:
        text = (await w.chat(messages=messages, tools=[WEATHER], return_prompt_text=True)).json()[
            "prompt_text"
        ]
    assert text.count('get_weather:{"city": "Köln"}') == 2
    assert "<|im_start|>tool\nrain\ncold<|im_end|>" in text
    async with world("Hi") as w:
        text = (await w.chat(messages=messages, tools=[WEATHER], return_prompt_text=True)).json()[
            "prompt_text"
        ]
    assert text.count('{"name": "get_weather", "arguments": {"city": "Köln"}}') == 2


async def test_documents_reach_the_template_or_are_refused() -> None:
    template = (
        "{% for d in documents %}[{{ d.text }}]{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    async with world("Hi", template=template) as w:
        body = (await w.chat(documents=[{"text": "one"}, {"text": "two"}], return_prompt_text=True)).json()
    assert body["prompt_text"] == "[one][two]Say it."
    async with world("Hi") as w:
        refused = await w.chat(documents=[{"text": "one"}])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "documents")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": []}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": named("f")}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": named("f")}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a" * 200}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools[0].function.param"),
        ({"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(1_025)]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": "y" * (1 << 20)}}}]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"thinking_token_budget": 4}, "thinking_token_budget"),
        ({"thinking_token_budget": -2}, "thinking_token_budget"),
        ({"reasoning_effort": "utmost"}, "reasoning_effort"),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
)  # fmt: skip
async def test_errors_name_the_field(body: dict[str, Any], param: str) -> None:
    async with world() as w:
        answer = await w.chat(**body)
        assert w.engine.seen == []
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)


async def test_auto_may_be_switched_off() -> None:
    async with world(CALL, server={"auto_tool_choice": False}) as w:
        assert (await w.chat(tools=[WEATHER])).json()["error"]["param"] == "tool_choice"
        assert (await w.chat(tools=[WEATHER], tool_choice="required")).status_code == 200


async def test_the_choice_of_parsers_is_told() -> None:
    async with world("Hi", template=TEMPLATE) as w:
        table = {row[0]: row[1:] for row in (await w.http.get("/server_info")).json()["table"]}
    assert table["tool calls"][0] == "hermes"
    assert table["reasoning"][0] == "qwen3"
    assert "--tool-call-parser" in table["tool calls"][1]


# ---- reasoning ---------------------------------------------------------------------------------------


async def test_reasoning_is_told_from_the_answer_and_counted() -> None:
    thought = "Let me see.\n"
    async with world(f"{thought}</think>\n\nIt is 4.", template=TEMPLATE) as w:
        got = await both(w)
        hidden = await both(w, include_reasoning=False)
    assert (got["reasoning"], got["content"], got["finish"]) == (thought, "\n\nIt is 4.", ["stop"])
    count = got["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert count == len(ToyCodec().encode(thought, False))
    assert (hidden["reasoning"], hidden["content"]) == ("", "\n\nIt is 4.")
    assert "reasoning" not in hidden["message"]
    assert hidden["usage"] == got["usage"]


async def test_thinking_that_is_switched_off_is_not_looked_for() -> None:
    async with world("It is 4.", template=TEMPLATE) as w:
        got = await both(w, chat_template_kwargs={"enable_thinking": False})
    assert (got["reasoning"], got["content"]) == ("", "It is 4.")
    assert got["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


async def test_a_thought_that_is_cut_is_reasoning_and_ends_by_length() -> None:
    async with world("Let me see and see", template=TEMPLATE) as w:
        got = await both(w, max_tokens=5)
    assert (got["content"], got["finish"]) == ("", ["length"])
    assert got["reasoning"]
    assert got["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5


async def test_reasoning_then_call() -> None:
    async with world(f"I look.</think>\n\n{CALL}", template=TEMPLATE) as w:
        got = await both(w, tools=[WEATHER])
        required = await both(w, tools=[WEATHER], tool_choice="required")
    assert got["calls"] == required["calls"] == [["get_weather", '{"city":"Köln"}']]
    assert got["reasoning"] == required["reasoning"] == "I look."
    assert (got["content"], got["finish"]) == ("", ["tool_calls"])


async def test_bb_089_json_behind_a_thought_is_content() -> None:
    """BB-089, P060: response_format acts on the answer, not on the thought."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with world('{hm}</think>\n\n{"a":4}', template=TEMPLATE) as w:
        got = await both(w, response_format=asked)
    assert json.loads(got["content"]) == {"a": 4}
    assert got["reasoning"] == "{hm}"


async def test_bb_066_the_older_name_comes_with_a_switch() -> None:
    """BB-066, P016."""
    async with world("a</think>b", template=TEMPLATE, server={"reasoning_alias": True}) as w:
        got = await both(w)
        chunks, _ = sse((await w.chat(stream=True)).text)
    assert got["message"]["reasoning"] == got["message"]["reasoning_content"] == "a"
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert [d["reasoning_content"] for d in deltas if "reasoning" in d] == ["a"]


async def test_a_budget_of_thinking_goes_to_the_engine() -> None:
    codec = ToyCodec(added=["</think>"])
    async with world("ab</think>c", template=TEMPLATE, codec=codec) as w:
        got = await both(w, thinking_token_budget=2)
        spec = w.engine.seen[0].params.structured
        await w.chat(thinking_token_budget=-1)
        assert w.engine.seen[-1].params.structured is None
    assert (got["reasoning"], got["content"]) == ("ab", "c")
    assert spec is not None
    assert "{0,2}" in spec.text


async def test_control_tokens_of_the_format_are_never_text() -> None:
    codec = ToyCodec(special=["<|tool_call|>"])
    text = 'I look.<|tool_call|>[{"name": "now", "arguments": {}}]'
    async with world(
        lambda _: codec.encode(text, False), codec=codec, server={"tool_call_parser": "granite"}
    ) as w:
        refused = await w.chat(tools=[NOW])
        assert refused.json()["error"]["param"] == "tools"
    template = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}"
    options: dict[str, Any] = {
        "codec": codec,
        "server": {"tool_call_parser": "granite"},
        "template": template,
    }
    async with world(lambda _: codec.encode(text, False), **options) as w:
        got = await both(w, tools=[NOW], stop=["zz"])
        shown = await both(w, tools=[NOW], skip_special_tokens=False)
    assert got["calls"] == shown["calls"] == [["now", "{}"]]
    assert got["content"] == shown["content"] == "I look."


PIECES = st.sampled_from(
    [
        "Hi ",
        CALL,
        CALL_NOW,
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "\n\n",
        '{"a": 1}',
        "中",
        "é",
        '"',
    ]
)


@given(
    st.lists(PIECES, max_size=6),
    st.integers(0, 99),
    st.fixed_dictionaries(
        {"tools": st.just([WEATHER, NOW])},
        optional={
            "max_tokens": st.integers(1, 80),
            "stop": st.lists(
                st.sampled_from(["i", "</", "city", "\n\n"]), min_size=1, max_size=2, unique=True
            ),
            "logprobs": st.just(True),
            "include_reasoning": st.booleans(),
            "chat_template_kwargs": st.just({"enable_thinking": False}),
            "skip_special_tokens": st.booleans(),
            "n": st.just(2),
            "stream_interval": st.integers(1, 5),
        },
    ),
)
@settings(max_examples=40, deadline=None)
def test_the_stream_adds_up_to_the_whole(pieces: list[str], seed: int, body: dict[str, Any]) -> None:
    import asyncio

    def script(request: EngineRequest) -> Iterator[int] | list[int]:
        return [BYTE_0 + b for b in "".join(pieces).encode()]

    async def run() -> None:
        async with world(script, group=random_groups(seed), template=TEMPLATE) as w:
            await both(w, **body)

    asyncio.run(run())
