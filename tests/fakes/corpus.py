"""Three hundred requests: dialects x tools x reasoning x structured x stop x n x truncation, drawn once and for all.

Each comes with a script for an engine that replays tokens, which keeps to what the body asks for; a real engine does
what it likes. `CORPUS` is the same list in every run.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tests.fakes.dialect_worlds import ANTHROPIC_TOOLS, OPENAI_TOOLS, call

Body = dict[str, Any]
EACH = 50
_THOUGHT = "<think>\nwell, 😀 well\n</think>\n\n"
FREE = {
    "text": "Hello world 😀 ok 中文",
    "nothing": "",
    "thought": _THOUGHT + "Hello world",
    "only a thought": "<think>\nwell, well",
    "call": call("now"),
    "calls": "Look: " + call("get_weather", city="Ósló") + "\n" + call("now"),
    "all": _THOUGHT + "Look: " + call("get_weather", city="Oslo") + " and so",
    "no call": "<tool_call>\nnot json at all\n</tool_call>",
    "half a call": '<tool_call>\n{"name": "get_weather", "arguments": {"ci',
    "long": "Hello world ok " * 20,
}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
ONE_CALL = call("get_weather", city="Oslo")
SHAPED = '{"city":"Oslo"}'
_TOOLS = {
    "chat": OPENAI_TOOLS,
    "cohere": OPENAI_TOOLS,
    "messages": ANTHROPIC_TOOLS,
    "responses": [
        {"type": "function", "name": t["name"], "parameters": t["input_schema"]} for t in ANTHROPIC_TOOLS
    ],
}
_NAMED: Body = {
    "chat": {"type": "function", "function": {"name": "get_weather"}},
    "responses": {"type": "function", "name": "get_weather"},
    "messages": {"type": "tool", "name": "get_weather"},
    "cohere": "REQUIRED",
}
_REQUIRED: Body = {
    "chat": "required",
    "responses": "required",
    "messages": {"type": "any"},
    "cohere": "REQUIRED",
}
_NONE: Body = {"chat": "none", "responses": "none", "messages": {"type": "none"}, "cohere": "NONE"}
_SHAPE: Body = {
    "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    "completions": {"structured_outputs": {"json": SCHEMA}},
    "tokens": {"structured_outputs": {"json": SCHEMA}},
    "responses": {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    "cohere": {"response_format": {"type": "json_object", "json_schema": SCHEMA}},
}
_LENGTH = {"responses": "max_output_tokens"}
_STOP = {"messages": "stop_sequences", "cohere": "stop_sequences"}
_LONG = [{"role": "user", "content": "x" * 900} for _ in range(3)]


@dataclass(frozen=True)
class Case:
    number: int
    dialect: str
    script: str
    body: Body
    group: int  # tokens that come at a time


def _base(dialect: str, rng: random.Random) -> Body:
    said = [{"role": "user", "content": rng.choice(["Say it.", "Say it in 中文, please 😀."])}]
    match dialect:
        case "completions":
            return {"prompt": rng.choice(["Hello", "Hello", ["Hello", "abc"]])}
        case "tokens":
            return {
                "token_ids": rng.choice([[20, 21], list(range(20, 60))]),
                "output_mode": rng.choice(["text", "tokens"]),
            }
        case "responses":
            return {"input": "Hi"} if rng.random() < 0.7 else {"input": _LONG, "truncation": "auto"}
        case "messages" | "cohere":
            return {"model": "toy", "messages": said}
    return {"messages": said}


def _task(dialect: str, rng: random.Random) -> tuple[str, Body]:
    """(script, what shapes the answer): nothing, tools, thinking or a schema."""
    kind = rng.choice(["free", "free", "tools", "tools", "must", "must not", "shape"])
    if kind == "shape":
        return SHAPED, _SHAPE[dialect]
    script = rng.choice(list(FREE.values()))
    if kind == "free" or dialect not in _TOOLS:
        return script, {}
    tools: Body = {"tools": _TOOLS[dialect]}
    if kind == "must not":
        return script, tools | {"tool_choice": _NONE[dialect]}
    if kind == "must":
        return ONE_CALL, tools | {"tool_choice": rng.choice([_NAMED, _REQUIRED])[dialect]}
    if rng.random() < 0.3 and dialect in ("chat", "responses"):
        return rng.choice([ONE_CALL, FREE["text"]]), tools | {"parallel_tool_calls": False}
    return script, tools


def _wishes(dialect: str, rng: random.Random) -> Body:
    """What a client wants to see of the answer."""
    more: Body = {}
    if dialect == "chat":
        more |= rng.choice([{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 2}])
        more |= rng.choice(
            [{}, {}, {"include_reasoning": False}, {"chat_template_kwargs": {"enable_thinking": False}}]
        )
        more |= rng.choice(
            [{}, {}, {"echo": True}, {"unknown_field": 1}, {"return_tokens_as_token_ids": True}]
        )
    if dialect == "completions":
        more |= rng.choice([{}, {"logprobs": 0}, {"logprobs": 2}]) | rng.choice([{}, {"echo": True}])
    if dialect in ("chat", "completions"):
        more |= rng.choice([{}, {"return_token_ids": True}]) | rng.choice([{}, {}, {"prompt_logprobs": 1}])
        more |= rng.choice([{}, {}, {"truncate_prompt_tokens": 3}]) if dialect == "completions" else {}
        more |= rng.choice([{}, {"stream_interval": 3}]) | rng.choice([{}, {"min_tokens": 2}])
        more |= rng.choice([{}, {}, {"include_stop_str_in_output": True}, {"skip_special_tokens": False}])
    if dialect == "tokens":
        more |= rng.choice([{}, {"logprobs": 0}, {"logprobs": 2}]) | rng.choice([{}, {"prompt_logprobs": 1}])
    if dialect == "cohere":
        more |= rng.choice([{}, {"logprobs": True}]) | rng.choice(
            [{}, {}, {"thinking": {"type": "disabled"}}]
        )
    if dialect == "messages":
        more |= rng.choice(
            [
                {},
                {},
                {"thinking": {"type": "disabled"}},
                {"thinking": {"type": "adaptive", "display": "omitted"}},
            ]
        )
    if dialect == "responses":
        more |= rng.choice(
            [{}, {"include": ["message.output_text.logprobs"], "top_logprobs": rng.randint(0, 2)}]
        )
        more |= rng.choice([{}, {}, {"include_reasoning": False}])
    return more


def _case(number: int, dialect: str, rng: random.Random) -> Case:
    body = _base(dialect, rng)
    script, task = _task(dialect, rng)
    inner: Body = {**task, **_wishes(dialect, rng)}
    inner[_LENGTH.get(dialect, "max_tokens")] = rng.choice([1, 3, 9, 40, 70, 120])
    if "min_tokens" in inner and inner["max_tokens"] == 1:
        inner["max_tokens"] = 2
    stops = rng.choice([[], [], ["o"], ["</tool", "ll,"], ["\n"], ["😀", "y"]])
    if stops:
        inner[_STOP.get(dialect, "stop")] = stops
    if dialect in ("chat", "completions", "tokens") and rng.random() < 0.35:
        inner |= {"n": rng.randint(2, 3), "temperature": 1.0, "seed": number}
    else:
        inner["temperature"] = 0
    if dialect == "tokens":
        body |= {"sampling_params": inner} | rng.choice([{}, {"return_token_ids": True}])
    else:
        body |= inner
    return Case(number, dialect, script, body, rng.choice([1, 2, 4, 1_000]))


def _corpus() -> list[Case]:
    rng = random.Random(300)
    dialects = [
        d for d in ("chat", "completions", "tokens", "messages", "cohere", "responses") for _ in range(EACH)
    ]
    return [_case(number, dialect, rng) for number, dialect in enumerate(dialects)]


CORPUS = _corpus()
