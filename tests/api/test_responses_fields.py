"""Fields of /v1/responses: what is refused by name, what is said to have no effect, what reaches the engine."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.test_responses import ADD, prompt_of, respond
from tests.fakes.api_world import world

USER = {"role": "user", "content": "x"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "input"),
    ({"input": []}, "input"),
    ({"input": [1]}, "input[0]"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
    ({"input": [{"content": "x"}]}, "input[0].type"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]}, "input[0].content[0].text"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input"),
    ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "input[0].encrypted_content"),
    ({"input": [{"type": "reasoning", "summary": [{"text": 1}]}]}, "input[0].summary[0]"),
    ({"input": [USER | {"id": 5}]}, "input[0].id"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].function"),
    ({"tools": [ADD | {"defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tools": [ADD], "tool_choice": "sometimes"}, "tool_choice"),
    ({"tools": [ADD], "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice"),
    ({"tools": [ADD], "tool_choice": {"type": "file_search"}}, "tool_choice"),
    ({"tools": [ADD], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "sub"}]}},
     "tool_choice.tools[0]"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "what"}}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}}, "text.format"),
    ({"include": ["file_search_call.results"]}, "include[0]"),
    ({"stream_options": {"include_obfuscation": True}, "stream": True}, "stream_options"),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"background": True, "store": False}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"n": 2}, "n"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"response_format": {"type": "text"}}, "response_format"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 5000}, "max_output_tokens"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"temperature": 3}, "temperature"),
    ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"metadata": {"a": "x" * 513}}, "metadata"),
    ({"truncation": "some"}, "truncation"),
    ({"request_id": "a/b"}, "request_id"),
    ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
    ({"model": "gone"}, "model"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
async def test_what_cannot_act_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    if param != "input" or body:
        body = {"input": "x", **body}
    async with world() as w:
        answer = await w.post("/v1/responses", body)
        assert answer.status_code == (404 if param == "model" else 400), answer.text
        assert answer.json()["error"]["param"] == param
        assert w.engine.seen == []


async def test_an_unsupported_image_tells_no_address() -> None:
    """BB-124."""
    item = {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}
    async with world() as w:
        error = (await respond(w, {"input": [item]}, 400))["error"]
        assert error["param"] == "input[0].content[0].type"
        assert "input_image" in error["message"]
        assert "0x" not in error["message"]


INERT: list[tuple[dict[str, Any], str]] = [
    ({"user": "u"}, "user"),
    ({"safety_identifier": "u"}, "safety_identifier"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"prompt_cache_key": "k"}, "prompt_cache_key"),
    ({"max_tool_calls": 3}, "max_tool_calls"),
    ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
    ({"include": ["reasoning.encrypted_content"]}, "include"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"wibble": 1}, "wibble"),
]


@pytest.mark.parametrize(("body", "name"), INERT, ids=lambda v: v if isinstance(v, str) else "")
async def test_what_has_no_effect_is_said_in_the_answer_and_refused_when_strict(
    body: dict[str, Any], name: str
) -> None:
    async with world() as w:
        response = await respond(w, {"input": "x", **body})
        (warning,) = response["warnings"]
        assert name in warning
        assert response["service_tier"] == "default"
    async with world(strict=True) as w:
        refused = await respond(w, {"input": "x", **body}, 400)
        assert refused["error"]["param"] == name


async def test_neutral_values_say_nothing() -> None:
    body = {
        "input": "x", "service_tier": "auto", "text": {"verbosity": "medium"}, "n": 1, "tool_choice": "auto",
        "tools": [],
        "include": [], "conversation": None, "reasoning": {"effort": None, "context": "auto"}, "metadata": {},
        "background": False, "previous_response_id": None, "stream_options": None,
    }  # fmt: skip
    async with world(strict=True) as w:
        assert "warnings" not in await respond(w, body)


async def test_fields_of_sampling_reach_the_engine() -> None:
    body = {
        "input": "x", "top_k": 7, "min_p": 0.1, "presence_penalty": 0.5, "frequency_penalty": 0.25, "stop": ["zz"],
        "repetition_penalty": 1.5, "seed": 9, "logit_bias": {"20": 1.5}, "stop_token_ids": [30], "ignore_eos": True,
        "max_output_tokens": 3, "min_tokens": 1, "priority": 2, "cache_salt": "s",
    }  # fmt: skip
    async with world("Hello world", policy="priority") as w:
        response = await respond(w, body)
        params, request = w.engine.seen[0].params, w.engine.seen[0]
        assert (params.top_k, params.min_p, params.presence_penalty, params.frequency_penalty) == (
            7,
            0.1,
            0.5,
            0.25,
        )
        assert (params.repetition_penalty, params.seed, params.stop, params.stop_token_ids) == (
            1.5,
            9,
            ["zz"],
            [30],
        )
        assert (params.logit_bias, params.min_tokens, request.priority, request.salt) == (
            {20: 1.5},
            1,
            2,
            "salt:s",
        )
        assert request.eos_ids == []
        assert (response["presence_penalty"], response["frequency_penalty"]) == (0.5, 0.25)


async def test_allowed_tools_are_the_only_ones_offered() -> None:
    sub = ADD | {"name": "sub"}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "sub"}]}
    async with world("ok") as w:
        response = await respond(w, {"input": "x", "tools": [ADD, sub], "tool_choice": choice})
        assert '"sub"' in prompt_of(w)
        assert '"add"' not in prompt_of(w)
        assert [tool["name"] for tool in response["tools"]] == ["add", "sub"]
        assert response["tool_choice"] == choice
