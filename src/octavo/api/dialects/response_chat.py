"""A Responses body as a chat: tools, tool_choice, text.format and reasoning in chat completions' terms.

Knows no store and no answer. What chat refuses comes back in the words of this API.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from octavo.api.dialects.response_items import Item, messages_of
from octavo.api.schema.chat import ChatBody
from octavo.api.schema.normalise import normalise
from octavo.api.schema.responses import ResponseBody
from octavo.errors import InvalidRequest

_TOOL_KEYS = {"type", "name", "description", "parameters", "strict"}
#: Values of other keys of a tool that ask for nothing.
_TOOL_NEUTRAL = {"defer_loading": False, "async": False, "allowed_callers": ["direct"]}
#: Fields of chat completions, and what they are called here.
_NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "messages": "input",
    "logprobs": "top_logprobs",
}


def chat_body(
    body: ResponseBody, passed: dict[str, Any], items: Sequence[Item], *, strict: bool
) -> tuple[ChatBody, list[str]]:
    """(the chat, warnings). Raises InvalidRequest naming the field as it is called here."""
    messages = messages_of(items)
    if body.instructions is not None:
        messages.insert(0, {"role": "system", "content": body.instructions})
    fields: dict[str, Any] = {**passed, "messages": messages}
    tools, choice = tools_of(body)
    if tools:
        fields |= {"tools": tools, "tool_choice": choice}
        if not body.parallel_tool_calls:
            fields["parallel_tool_calls"] = False
    elif choice not in ("auto", "none"):
        raise InvalidRequest("tool_choice needs tools", param="tool_choice")
    if body.max_output_tokens is not None:
        fields["max_completion_tokens"] = body.max_output_tokens
    if body.reasoning is not None and body.reasoning.effort is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    if body.wants_logprobs:
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    if (wanted := response_format(body)) is not None:
        if "structured_outputs" in passed:
            raise InvalidRequest(
                "text.format and structured_outputs both shape the output",
                param="text.format",
                fix="send one of them",
            )
        fields["response_format"] = wanted
    with own_terms():
        return normalise(ChatBody, fields, strict=strict)


@contextmanager
def own_terms() -> Iterator[None]:
    """Errors of chat completions under the names that fields have here."""
    try:
        yield
    except InvalidRequest as error:
        if error.param is not None and error.param.startswith("/"):  # a place in a schema
            is_format = error.message.startswith("response_format")
            error.param = "text.format.schema" if is_format else "structured_outputs"
        elif error.param is not None:
            head = re.split(r"[.\[]", error.param, maxsplit=1)[0]
            error.param = "input" if head == "messages" else _NAMES.get(head, head) + error.param[len(head) :]
        error.message = re.sub(
            r"\b(max_completion_tokens|max_tokens|response_format|reasoning_effort)\b",
            lambda m: _NAMES[m.group()],
            error.message,
        )
        raise


# ---- tools --------------------------------------------------------------------------------------


def tools_of(body: ResponseBody) -> tuple[list[dict[str, Any]], Any]:
    """(chat tools, chat tool_choice). With allowed_tools only these are offered."""
    tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools)]
    names = [tool["function"]["name"] for tool in tools]
    choice = body.tool_choice
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise InvalidRequest(
                f"tool_choice is {choice[:64]!r}; allowed are none, auto, required or an object",
                param="tool_choice",
            )
        return tools, choice
    if choice.get("type") == "function":
        name = _known(choice, names, "tool_choice")
        return tools, {"type": "function", "function": {"name": name}}
    if choice.get("type") != "allowed_tools":
        raise InvalidRequest(
            f"tool_choice of the type {str(choice.get('type'))[:64]!r} is not supported; allowed are function and "
            "allowed_tools: there are no built-in tools",
            param="tool_choice",
        )
    mode, allowed = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required") or not isinstance(allowed, list) or not allowed:
        raise InvalidRequest(
            "tool_choice allowed_tools needs mode auto or required, and a list of tools", param="tool_choice"
        )
    wanted = {_known(tool, names, f"tool_choice.tools[{i}]") for i, tool in enumerate(allowed)}
    return [tool for tool in tools if tool["function"]["name"] in wanted], mode


def _known(choice: Any, names: list[str], place: str) -> str:
    name = choice.get("name") if isinstance(choice, dict) else None
    if not isinstance(name, str) or name not in names:
        raise InvalidRequest(
            f"{place} names {str(name)[:64]!r}; tools has {', '.join(names)[:512] or 'none'}", param=place
        )
    return name


def _tool(tool: dict[str, Any], place: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind != "function":
        name = kind[:64] if isinstance(kind, str) else "of no type"
        why = (
            "free text is no call; give a function with one string"
            if kind == "custom"
            else "nothing is built in"
        )
        raise InvalidRequest(
            f"{place}: a tool {name!r} is not supported: {why}; allowed is function", param=f"{place}.type"
        )
    if "name" not in tool and isinstance(tool.get("function"), dict):
        raise InvalidRequest(
            f"{place} has chat completions' shape; here name, description, parameters and strict stand beside type",
            param=f"{place}.function",
        )
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise InvalidRequest(f"{place}.name is missing or no string", param=f"{place}.name")
    for key, value in tool.items():
        if key not in _TOOL_KEYS and value is not None and _TOOL_NEUTRAL.get(key) != value:
            raise InvalidRequest(
                f"{place}.{key[:64]} is not supported; allowed are {', '.join(sorted(_TOOL_KEYS))}",
                param=f"{place}.{key[:64]}",
            )
    function = {
        k: v for k in ("name", "description", "parameters", "strict") if (v := tool.get(k)) is not None
    }
    return {"type": "function", "function": function}


# ---- text.format --------------------------------------------------------------------------------


def response_format(body: ResponseBody) -> dict[str, Any] | None:
    """text.format as chat's response_format; None for plain text."""
    wanted = body.text.format if body.text is not None else None
    kind = "text" if wanted is None else wanted.get("type")
    if wanted is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind != "json_schema":
        raise InvalidRequest(
            f"text.format.type is {str(kind)[:64]!r}; allowed are text, json_object and json_schema",
            param="text.format.type",
        )
    for key, is_right in (
        ("name", lambda v: isinstance(v, str) and v),
        ("schema", lambda v: isinstance(v, dict | bool)),
    ):
        if not is_right(wanted.get(key)):
            raise InvalidRequest(
                f"text.format.{key} is missing or of the wrong type", param=f"text.format.{key}"
            )
    known = {"name", "schema", "strict", "description"}
    if unknown := sorted(set(wanted) - known - {"type"}):
        raise InvalidRequest(
            f"text.format.{unknown[0][:64]} is not known; allowed are type, {', '.join(sorted(known))}",
            param=f"text.format.{unknown[0][:64]}",
        )
    return {"type": "json_schema", "json_schema": {k: wanted[k] for k in known if wanted.get(k) is not None}}
