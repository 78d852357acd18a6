"""Worlds and folds for the tests of other APIs: a template that thinks, scripts that call tools, named events."""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.api_world import SMOLLM2_TEMPLATE

#: As Qwen's: thinking is on unless it is switched off, and then the prompt holds an empty thought.
THINK_TEMPLATE = SMOLLM2_TEMPLATE.replace(
    "{{ '<|im_start|>assistant\n' }}",
    "{{ '<|im_start|>assistant\n' }}{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}",
)

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ANTHROPIC_TOOLS = [
    {"name": "get_weather", "description": "The weather of a city.", "input_schema": WEATHER},
    {"name": "now", "input_schema": {"type": "object", "properties": {}}},
]
OPENAI_TOOLS = [
    {"type": "function", "function": {"name": t["name"], "parameters": t["input_schema"]}}
    for t in ANTHROPIC_TOOLS
]


def call(name: str, /, **arguments: Any) -> str:
    """A call as the hermes format writes it, and as a grammar of it wants it: compact arguments."""
    compact = json.dumps(arguments, separators=(",", ":"))
    return f'<tool_call>\n{{"name": "{name}", "arguments": {compact}}}\n</tool_call>'


def named_events(text: str) -> list[dict[str, Any]]:
    """Events of a stream with `event:` lines; the line and the type must agree. [DONE] is left out."""
    found = []
    for frame in text.split("\n\n"):
        lines = frame.splitlines()
        if not lines or lines == ["data: [DONE]"]:
            continue
        (name,) = [x.removeprefix("event: ") for x in lines if x.startswith("event: ")]
        (data,) = [x.removeprefix("data: ") for x in lines if x.startswith("data: ")]
        event = json.loads(data)
        assert event["type"] == name
        found.append(event)
    return found
