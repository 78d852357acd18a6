"""A session of Claude Code: tools, thinking, cache_control, results that come back, counts, side requests.

The bodies were recorded from the program (headless, its version stands in the file); long texts are replaced by
neutral words. The model is scripted; its messages go back unchanged, as the program sends them back, and must
add up to the last request that was recorded.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fakes.api_world import World, world
from tests.fakes.dialect_worlds import THINK_TEMPLATE, call
from tests.fakes.folds import add_message
from tests.fakes.toy_codec import ToyCodec

from octavo.wire.messages import EngineRequest

SESSION = json.loads(
    (Path(__file__).parents[1] / "clients/claude_code_session.json").read_text(encoding="utf-8")
)
MARK = {"type": "ephemeral"}
CONTEXT = 1 << 16
READ = {"file_path": "/project/notes.txt"}
BASH = {"command": "wc -l < notes.txt; cat missing", "description": "Count lines"}
ANSWERS = [
    "<think>\nI should read it.\n</think>\n\nI will read the file." + call("Read", **READ),
    "<think>\nNow count.\n</think>\n\n" + call("Bash", **BASH),
    "<think>\nDone.\n</think>\n\nIt says: buy milk.",
]
#: As several models' own: nothing but a first system message, and turns that alternate.
STRICT_TEMPLATE = THINK_TEMPLATE.replace(
    "{% for message in messages %}",
    "{% for message in messages %}{% if message['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning') }}{% endif %}",
)


def codec() -> ToyCodec:
    return ToyCodec(added=["<think>", "</think>"])


def script(request: EngineRequest) -> list[int]:
    """The answer whose turn it is, by the results of tools that the prompt holds."""
    told = codec().decode(request.prompt, skip_special_tokens=False)
    return codec().encode(ANSWERS[told.count("<|im_start|>tool")], False)


def body_of(messages: list[dict[str, Any]], **changed: Any) -> dict[str, Any]:
    """A request with the recorded fields; the mark of the cache is on the last block that the user sent."""
    messages = copy.deepcopy(messages)
    last = next(m for m in reversed(messages) if m["role"] == "user")
    last["content"][-1]["cache_control"] = MARK
    return {**SESSION["body"], "tools": SESSION["tools"], "messages": messages, **changed}


async def send(w: World, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    answer = await w.http.post(path, json=body, headers={**SESSION["headers"], **headers})
    assert answer.status_code == 200, answer.text
    assert answer.headers["request-id"]
    return answer


async def turn(w: World, messages: list[dict[str, Any]], **changed: Any) -> dict[str, Any]:
    body = body_of(messages, **changed)
    answer = await send(w, SESSION["path"], body)
    if body["stream"]:
        return add_message(answer.text, body)
    message: dict[str, Any] = answer.json()
    return message


def unmarked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what differs from run to run: marks of the cache, ids, signatures."""
    found = copy.deepcopy(messages)
    for message in found:
        for block in message["content"] if isinstance(message["content"], list) else []:
            for name in ("cache_control", "id", "tool_use_id", "signature"):
                block.pop(name, None)
    return found


async def drive(w: World, **changed: Any) -> list[dict[str, Any]]:
    """The session to its end; the messages of its last request."""
    messages = copy.deepcopy(SESSION["first_messages"])
    results = [m for m in SESSION["last_messages"] if m["role"] == "user"][1:]
    for result in results:
        message = await turn(w, messages, **changed)
        assert message["stop_reason"] == "tool_use"
        (use,) = [b for b in message["content"] if b["type"] == "tool_use"]
        (block,) = result["content"]
        messages.append({"role": "assistant", "content": message["content"]})
        messages.append({"role": "user", "content": [{**block, "tool_use_id": use["id"]}]})
    last = await turn(w, messages, **changed)
    assert last["stop_reason"] == "end_turn"
    assert [b["type"] for b in last["content"]] == ["thinking", "text"]
    assert last["content"][-1]["text"].strip() == "It says: buy milk."
    return messages


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("template", [THINK_TEMPLATE, STRICT_TEMPLATE])
async def test_the_session_goes_round(template: str, stream: bool) -> None:
    async with world(script, codec=codec(), template=template, max_model_len=CONTEXT, group=3) as w:
        messages = await drive(w, stream=stream)
        shown = codec().decode(w.engine.seen[-1].prompt, skip_special_tokens=False)
    assert unmarked(messages) == unmarked(SESSION["last_messages"])
    assert "billing" not in shown
    for text in ("buy milk", "Error: Exit code 1", '"name": "NotebookEdit"', "What does notes.txt say?"):
        assert text in shown


async def test_a_thinking_budget_instead_of_adaptive_thinking() -> None:
    """What older models' names make of it."""
    budget = SESSION["thinking_with_budget"]
    async with world(script, codec=codec(), template=THINK_TEMPLATE, max_model_len=CONTEXT) as w:
        await drive(w, **budget["body"], output_config=None)
        assert w.engine.seen[0].params.structured is not None


async def test_the_request_for_a_title() -> None:
    title = SESSION["title"]
    async with world('{"title":"Milk"}', codec=codec(), template=THINK_TEMPLATE) as w:
        answer = await send(w, SESSION["path"], title["body"], **title["headers"])
        message = add_message(answer.text, title["body"])
    assert json.loads(message["content"][-1]["text"]) == {"title": "Milk"}


async def test_tokens_are_counted() -> None:
    count, tools = SESSION["count"], {tool["name"]: tool for tool in SESSION["tools"]}
    found = []
    async with world(script, codec=codec(), max_model_len=CONTEXT) as w:
        for body in count["bodies"]:
            full = body | {"tools": [tools[name] for name in body["tools"]]}
            answer = await send(w, count["path"], full, **count["headers"])
            found.append(answer.json()["input_tokens"])
    assert found == sorted(found)
    assert 0 < found[0] < found[1]


async def test_a_prompt_that_is_too_long_is_said_in_the_words_that_the_program_looks_for() -> None:
    async with world(script, codec=codec(), max_model_len=512) as w:
        answer = await w.http.post(SESSION["path"], json=body_of(SESSION["first_messages"]))
        (short,) = (await turn(w, [user("Hi!")], tools=[], max_tokens=1)).get("content")
    assert short["type"] == "text"
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert re.match(r"prompt is too long: \d+ tokens > 511 maximum", error["message"])


def user(*texts: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


async def test_an_image_in_a_result_is_told_to_the_model() -> None:
    """The program reads any file, and cannot take back what it has read."""
    use = {"type": "tool_use", "id": "t1", "name": "Read", "input": READ}
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
    }
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [image]}
    messages = [
        user("Look."),
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    async with world("I cannot.", codec=codec(), max_model_len=CONTEXT) as w:
        answer = await send(w, SESSION["path"], body_of(messages))
        shown = codec().decode(w.engine.seen[-1].prompt, skip_special_tokens=False)
    assert "[image left out: this model takes text only]" in shown
    assert "iVBOR" not in shown
    assert "a block 'image' is told to the model" in answer.headers["X-Octavo-Warnings"]


async def test_late_system_messages_stay_where_they_are_for_a_template_that_refuses_them() -> None:
    async with world("Yes.", codec=codec(), template=STRICT_TEMPLATE, max_model_len=CONTEXT) as w:
        await send(w, SESSION["path"], body_of(SESSION["first_messages"]))
        body = body_of(SESSION["first_messages"])
        counted = await send(
            w, SESSION["count"]["path"], {k: v for k, v in body.items() if k != "max_tokens"}
        )
        shown = codec().decode(w.engine.seen[-1].prompt, skip_special_tokens=False)
        assert counted.json()["input_tokens"] == len(w.engine.seen[-1].prompt)
    assert shown.count("<|im_start|>system") == 1
    assert "What does notes.txt say?\n\nNeutral words stand here.<|im_end|>" in shown


async def test_every_prompt_begins_with_the_one_before() -> None:
    """What cache_control is for: the prefix cache finds the whole earlier prompt, marks or no marks."""
    async with world(script, codec=codec(), max_model_len=CONTEXT) as w:
        messages = SESSION["first_messages"]
        await turn(w, messages)
        use = {"type": "tool_use", "id": "t1", "name": "Read", "input": READ}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": "buy milk"}
        after = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        await turn(w, [*messages, *after])
        bare = {**SESSION["body"], "tools": SESSION["tools"], "messages": [*unmarked(messages), *after]}
        await send(w, SESSION["path"], bare)
        one, two, three = (r.prompt for r in w.engine.seen)
    assert two[: len(one)] == one
    assert two == three
