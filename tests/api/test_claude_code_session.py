"""A session as Claude Code drives it: tools, thinking, cache_control, results that come back, counts between turns.

The bodies are of the shape that the program sends (tests/clients/claude_code_session.json); the model is scripted, the
messages it returns go back unchanged, as the program sends them back.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def script(request: EngineRequest) -> list[int]:
    """The answer whose turn it is, by the results of tools that the prompt holds."""
    codec = ToyCodec()
    told = codec.decode(request.prompt, skip_special_tokens=False)
    answer = SESSION["answers"][told.count("<|im_start|>tool")]
    made = answer.get("call")
    text = answer["script"] + (call(made["name"], **made["arguments"]) if made else "")
    return codec.encode(text, False)


async def turn(w: World, messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {**SESSION["body"], "messages": messages}
    answer = await w.http.post(SESSION["path"], json=body, headers=SESSION["headers"])
    assert answer.status_code == 200, answer.text
    assert answer.headers["request-id"]
    return add_message(answer.text, body)


@pytest.mark.parametrize("template", [THINK_TEMPLATE, None])
async def test_the_session_goes_round(template: str | None) -> None:
    options = {} if template is None else {"template": template}
    async with world(script, **options) as w:  # type: ignore[arg-type]
        counted = await w.http.post(
            "/v1/messages/count_tokens?beta=true", json=SESSION["count"], headers=SESSION["headers"]
        )
        assert counted.json()["input_tokens"] > 0
        messages: list[dict[str, Any]] = [{"role": "user", "content": SESSION["first_user"]}]
        prompts = []
        for expected in SESSION["answers"]:
            message = await turn(w, messages)
            prompts.append(w.engine.seen[-1].prompt)
            for block in message["content"]:
                block.pop("parsed_output", None)
            messages.append({"role": "assistant", "content": message["content"]})
            uses = [b for b in message["content"] if b["type"] == "tool_use"]
            if "call" not in expected:
                break
            assert message["stop_reason"] == "tool_use"
            (use,) = uses
            assert (use["name"], use["input"]) == (expected["call"]["name"], expected["call"]["arguments"])
            result: dict[str, Any] = {
                "type": "tool_result",
                "tool_use_id": use["id"],
                "content": expected["result"],
            }
            result |= {"is_error": True} if expected.get("is_error") else {}
            messages.append({"role": "user", "content": [result | {"cache_control": MARK}]})
    assert message["stop_reason"] == "end_turn"
    assert message["content"][-1]["text"].strip().endswith("It says: buy milk.")
    shown = ToyCodec().decode(prompts[-1], skip_special_tokens=False)
    assert "billing" not in shown
    assert "You are Claude Code" in shown
    assert "buy milk" in shown
    assert "Error: cat: missing: No such file" in shown
    if template is not None:
        assert [b["type"] for b in messages[1]["content"]] == ["thinking", "text", "tool_use"]


async def test_every_prompt_begins_with_the_one_before() -> None:
    """What cache_control is for: the prefix cache finds the whole earlier prompt, marks or no marks."""
    async with world(script) as w:
        first = {"role": "user", "content": SESSION["first_user"]}
        await turn(w, [first])
        use = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": "/notes.txt"}}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": "buy milk", "cache_control": MARK}
        plain = {
            "role": "user",
            "content": [{k: v for k, v in b.items() if k != "cache_control"} for b in first["content"]],
        }
        after = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        await turn(w, [first, *after])
        await turn(w, [plain, *after])
        one, two, three = (r.prompt for r in w.engine.seen)
    assert two[: len(one)] == one
    assert two == three
