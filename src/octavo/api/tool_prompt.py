"""Tools for templates that do not show them: a description in the system message, calls and results as text.

The format described is one JSON object between two markers, which the chosen parser reads.
"""

from __future__ import annotations

import json
from typing import Any

from octavo.api.text.parsers.rows import ToolRow

_INTRODUCTION = (
    "You can call functions. These are the functions, one JSON object a line:\n{tools}\n\n"
    "To call one, answer with its name and arguments as a JSON object between {open} and {close}, for example:\n"
    '{open}\n{{"name": "function_name", "arguments": {{"parameter": "value"}}}}\n{close}'
)


def can_teach(row: ToolRow) -> bool:
    return row.family == "json" and not row.is_list and not row.is_keyed and bool(row.opens and row.closes)


def taught(messages: list[dict[str, Any]], tools: list[dict[str, Any]], row: ToolRow) -> list[dict[str, Any]]:
    """Messages of which the first describes the tools; calls of earlier turns stand in the text."""
    lines = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    text = _INTRODUCTION.format(tools=lines, open=row.opens[0], close=row.closes[0])
    out = [_with_calls(m, row) for m in messages]
    if out and out[0].get("role") == "system":
        out[0] = {**out[0], "content": _joined(out[0]["content"], text)}
    else:
        out.insert(0, {"role": "system", "content": _like(out, text)})
    return out


def _with_calls(message: dict[str, Any], row: ToolRow) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = []
    for call in calls:
        function = call.get("function", {}) if isinstance(call, dict) else {}
        body = {"name": function.get("name"), "arguments": function.get("arguments", {})}
        written.append(f"{row.opens[0]}\n{json.dumps(body, ensure_ascii=False)}\n{row.closes[0]}")
    return {**message, "content": _joined(message["content"], "\n".join(written), "\n")}


def _joined(content: Any, text: str, between: str = "\n\n") -> Any:
    if isinstance(content, list):
        return [*content, {"type": "text", "text": text}]
    return f"{content}{between}{text}" if content else text


def _like(messages: list[dict[str, Any]], text: str) -> Any:
    """In the content format that the template takes."""
    is_list = bool(messages) and isinstance(messages[0].get("content"), list)
    return [{"type": "text", "text": text}] if is_list else text
