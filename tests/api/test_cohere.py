"""Cohere's v2 chat: its own client over a socket, exact events, what a body means, what is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import cohere
import pytest
from tests.fakes.api_world import USER, World, on_socket, world
from tests.fakes.dialect_worlds import OPENAI_TOOLS, THINK_TEMPLATE, call, named_events

ASK: dict[str, Any] = {"model": "toy", "messages": USER, "max_tokens": 300}
PATH = "/cohere/v2/chat"


@asynccontextmanager
async def served(
    script: Any = "Hello world", **options: Any
) -> AsyncIterator[tuple[cohere.AsyncClientV2, World]]:
    async with (
        world(script, **options) as w,
        on_socket(w.app) as url,
        cohere.AsyncClientV2(api_key="secret", base_url=f"{url}/cohere") as client,
    ):
        yield client, w


async def answered(w: World, **body: Any) -> dict[str, Any]:
    answer = await w.post(PATH, {**ASK, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def prompt_text(w: World, **body: Any) -> str:
    await answered(w, **body)
    return w.state.codec.decode(w.engine.seen[-1].prompt, skip_special_tokens=False)


async def test_chat_of_the_client() -> None:
    async with served(server={"api_keys": ("secret",)}) as (client, _):
        answer = await client.chat(model="toy", messages=USER)
    assert answer.finish_reason == "COMPLETE"
    assert answer.message.content is not None
    assert [(c.type, c.text) for c in answer.message.content] == [("text", "Hello world")]  # type: ignore[union-attr]
    assert answer.usage is not None
    assert answer.usage.tokens is not None
    assert answer.usage.tokens.output_tokens == 3


async def test_a_stream_of_the_client_adds_up_to_its_answer() -> None:
    script = "<think>\nwell\n</think>\n\nLook:" + call("get_weather", city="Oslo") + call("now")
    async with served(script, template=THINK_TEMPLATE) as (client, _):
        body: Any = {"model": "toy", "messages": USER, "tools": OPENAI_TOOLS}
        whole = await client.chat(**body)
        events = [event async for event in client.chat_stream(**body)]
    kinds = [e.type for e in events]
    assert [kinds[0], kinds[-1]] == ["message-start", "message-end"]
    contents: list[str] = []
    arguments: list[str] = []
    for event in events:
        message: Any = getattr(getattr(event, "delta", None), "message", None)
        if event.type == "content-start":
            contents.append("")
        elif event.type == "content-delta":
            contents[-1] += message.content.text or message.content.thinking or ""
        elif event.type == "tool-call-start":
            arguments.append("")
        elif event.type == "tool-call-delta":
            arguments[-1] += message.tool_calls.function.arguments
    assert whole.message.content is not None
    assert [getattr(c, c.type) for c in whole.message.content] == contents
    assert [c.type for c in whole.message.content] == ["thinking", "text"]
    assert whole.message.tool_calls is not None
    assert [c.function.arguments for c in whole.message.tool_calls if c.function] == arguments
    assert [json.loads(a) for a in arguments] == [{"city": "Oslo"}, {}]
    assert whole.finish_reason == events[-1].delta.finish_reason == "TOOL_CALL"  # type: ignore[union-attr]


async def test_results_of_tools_go_back() -> None:
    async with served("It rains.") as (client, w):
        messages: Any = [
            {"role": "user", "content": "Umbrella?"},
            {
                "role": "assistant",
                "tool_plan": "I will look.",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
                ],
            },
            {
                "role": "tool",
                "tool_call_id": "c1",
                "content": [{"type": "document", "document": {"id": "d", "data": {"rain": "much"}}}],
            },
        ]
        answer = await client.chat(model="toy", messages=messages, tools=OPENAI_TOOLS)  # type: ignore[arg-type]
        shown = w.state.codec.decode(w.engine.seen[-1].prompt, skip_special_tokens=False)
    assert answer.finish_reason == "COMPLETE"
    assert "I will look." in shown
    assert '{"id": "d", "rain": "much"}' in shown


async def test_errors_are_the_classes_of_the_client() -> None:
    async with served(server={"api_keys": ("secret",)}) as (client, w):
        with pytest.raises(cohere.NotFoundError) as gone:
            await client.chat(model="gone", messages=USER)
        with pytest.raises(cohere.BadRequestError) as bad:
            await client.chat(model="toy", messages=USER, p=7.0)
        unauthorised = await w.post(PATH, ASK)
    assert set(gone.value.body) == {"message", "id"}
    assert bad.value.body["message"].startswith("p is 7.0")
    assert (unauthorised.status_code, set(unauthorised.json())) == (401, {"message", "id"})


async def test_every_event_in_order() -> None:
    async with world("Hello world") as w:
        text = (await w.post(PATH, {**ASK, "stream": True})).text
    events = named_events(text)
    assert text.endswith("data: [DONE]\n\n")
    own = events[0]["id"]
    usage = events[-1]["delta"]["usage"]
    assert usage["billed_units"] == usage["tokens"]
    message = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}

    def content(**value: str) -> dict[str, Any]:
        return {"message": {"content": value}}

    assert events == [
        {"type": "message-start", "id": own, "delta": {"message": message}},
        {"type": "content-start", "index": 0, "delta": content(type="text", text="")},
        {"type": "content-delta", "index": 0, "delta": content(text="Hello")},
        {"type": "content-delta", "index": 0, "delta": content(text=" world")},
        {"type": "content-end", "index": 0},
        {"type": "message-end", "id": own, "delta": {"finish_reason": "COMPLETE", "usage": usage}},
    ]


async def test_fields_reach_the_engine_in_our_terms() -> None:
    async with world() as w:
        await answered(w, k=5, p=0.5, temperature=0.7, seed=3, stop_sequences=["zz"], frequency_penalty=0.5)
        request = w.engine.seen[-1]
    p = request.params
    assert (p.top_k, p.top_p, p.temperature, p.stop, p.frequency_penalty) == (5, 0.5, 0.7, ["zz"], 0.5)
    assert (request.seed, request.max_tokens) == (3, 300)


@pytest.mark.parametrize(
    ("script", "body", "reason"),
    [
        ("Hello world", {"max_tokens": 1}, "MAX_TOKENS"),
        ("Hello world", {"stop_sequences": ["wor"]}, "STOP_SEQUENCE"),
        ("", {}, "COMPLETE"),
    ],
)
async def test_reasons(script: str, body: dict[str, Any], reason: str) -> None:
    async with world(script) as w:
        answer = await answered(w, **body)
    assert answer["finish_reason"] == reason
    assert len(answer["message"]["content"]) == 1


async def test_logprobs_are_one_item_a_token_streamed_and_not() -> None:
    async with world("Hello world ok", group=3) as w:
        whole = (await answered(w, logprobs=True))["logprobs"]
        events = named_events((await w.post(PATH, {**ASK, "logprobs": True, "stream": True})).text)
    assert whole == [e["logprobs"] for e in events if "logprobs" in e]
    assert "".join(item["text"] for item in whole) == "Hello world ok"
    assert [len(item["token_ids"]) for item in whole] == [1] * 4


async def test_a_fault_ends_the_stream_with_an_error() -> None:
    async with world("Hello world ok ok", fail_at=3) as w:
        events = named_events((await w.post(PATH, {**ASK, "stream": True})).text)
        whole = await w.post(PATH, ASK)
    assert events[-1]["delta"]["finish_reason"] == "ERROR"
    assert events[-1]["delta"]["error"]
    assert (whole.status_code, set(whole.json())) == (500, {"message", "id"})


async def test_documents_reach_a_template_that_reads_them() -> None:
    template = (
        "{% for d in documents %}[{{ d.id }}|{{ d.title }}|{{ d.text }}]{% endfor %}{{ messages[0].content }}"
    )
    documents = [
        "plain",
        {"id": "a", "data": {"title": "T", "text": "body"}},
        {"data": {"snippet": "s", "n": 1}},
    ]
    async with world(template=template) as w:
        text = await prompt_text(w, documents=documents)
    assert text.startswith('[|Document 0|plain][a|T|body][|Document 2|{"snippet": "s", "n": 1}]')


async def test_a_safety_mode_reaches_a_template_that_has_one() -> None:
    async with world(template="{{ safety_mode }}|{{ messages[0].content }}") as w:
        assert (await prompt_text(w, safety_mode="STRICT")).startswith("STRICT|")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("citation_options", {"mode": "FAST"}, "citation_options.mode is 'FAST'"),
        ("safety_mode", "STRICT", "safety_mode is 'STRICT'"),
        ("stop_sequences", ["a"] * 5, "stop_sequences has 5 strings"),
        ("max_tokens", 0, "max_tokens"),
        ("k", -1, "k is -1"),
        ("temperature", 5.0, "temperature is 5.0"),
        ("thinking", {"type": "enabled"}, "does not think"),
        ("thinking", {"type": "disabled", "token_budget": 5}, "thinking.token_budget"),
        ("strict_tools", True, "strict_tools needs tools"),
        ("tool_choice", "REQUIRED", "tool_choice needs tools"),
        ("tools", [{"type": "web"}], "tools[0] must be"),
        ("documents", ["a"], "documents"),
        ("connectors", [{"id": "web"}], "connectors is not supported"),
        ("messages", [{"role": "user"}], "messages[0].content is missing"),
        ("messages", [{"role": "tool", "content": "x"}], "messages[0].tool_call_id is missing"),
        ("messages", [{"role": "user", "content": "x", "tool_plan": "y"}], "messages[0].tool_plan"),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "a part 'image_url'"),
        ("messages", [{"role": "chatbot", "content": "x"}], "messages[0].role"),
    ],
)
async def test_what_cannot_act_is_refused_by_name(field: str, value: Any, words: str) -> None:
    async with world() as w:
        answer = await w.post(PATH, {**ASK, field: value})
    assert answer.status_code == 400
    assert words in answer.json()["message"]


async def test_formats_and_strict_tools_become_grammars() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    async with world('{"a":1}') as w:
        await answered(w, response_format={"type": "json_object", "json_schema": schema})
        spec = w.engine.seen[-1].params.structured
        assert spec is not None
        await answered(w, response_format={"type": "json_object", "schema": schema})
        assert w.engine.seen[-1].params.structured == spec
        await answered(w, response_format={"type": "json_object"})
        assert w.engine.seen[-1].params.structured not in (None, spec)
        await answered(w, response_format={"type": "text"})
        assert w.engine.seen[-1].params.structured is None
