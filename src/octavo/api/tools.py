"""What a chat asks about tools: which functions, whether one must be called, how many at once.

Owns the checks of `tools` and `tool_choice`. Knows neither prompt nor grammar nor parser.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.api.limits import Limits
from octavo.api.schema.chat import ChatFields
from octavo.errors import InvalidRequest

Choice = Literal["none", "auto", "required", "named"]
_NAME = re.compile(r"[A-Za-z0-9_.:\-]+")


@dataclass(frozen=True, slots=True)
class Function:
    """`parameters` is a JSON Schema; the empty one takes any object."""

    name: str
    description: str
    parameters: dict[str, Any]
    is_strict: bool


@dataclass(frozen=True, slots=True)
class ToolWish:
    """`functions` are those that may be called: one for a named choice."""

    choice: Choice = "none"
    functions: tuple[Function, ...] = ()
    is_parallel: bool = True
    shown: list[dict[str, Any]] = field(default_factory=list)  # for the template, as they were given

    @property
    def may_call(self) -> bool:
        return self.choice != "none"

    @property
    def must_call(self) -> bool:
        return self.choice in ("required", "named")

    @property
    def schemas(self) -> dict[str, dict[str, Any]]:
        return {f.name: f.parameters for f in self.functions}


def tool_wish(
    tools: list[dict[str, Any]] | None, tool_choice: Any, *, is_parallel: bool, limits: Limits
) -> ToolWish:
    """Checked tools and choice of a request. Raises InvalidRequest naming the field."""
    if tools is None:
        if tool_choice not in (None, "none"):
            raise InvalidRequest(
                "tool_choice needs tools", param="tool_choice", fix="send tools, or leave tool_choice out"
            )
        return ToolWish()
    functions = functions_of(tools, limits)
    choice, named = _choice(tool_choice)
    if named is not None:
        chosen = tuple(f for f in functions if f.name == named)
        if not chosen:
            raise InvalidRequest(
                f"tool_choice names {named[:64]!r}, which is not among the tools: "
                f"{', '.join(f.name for f in functions)[:500]}",
                param="tool_choice",
            )
        functions = chosen
    return ToolWish(choice, functions, is_parallel and named is None, tools)


def _choice(given: Literal["none", "auto", "required"] | dict[str, Any] | None) -> tuple[Choice, str | None]:
    if given is None:
        return "auto", None
    if isinstance(given, str):
        return given, None
    function = given.get("function")
    name = function.get("name") if isinstance(function, dict) else given.get("name")
    if given.get("type") != "function" or not isinstance(name, str):
        raise InvalidRequest(
            'tool_choice as an object must be {"type": "function", "function": {"name": ...}}',
            param="tool_choice",
        )
    return "named", name


def functions_of(tools: list[dict[str, Any]], limits: Limits) -> tuple[Function, ...]:
    if not tools:
        raise InvalidRequest("tools is an empty list", param="tools", fix="leave it out, or list a function")
    if len(tools) > limits.max_tools:
        raise InvalidRequest(
            f"tools has {len(tools):,} entries; allowed are {limits.max_tools}", param="tools"
        )
    functions: list[Function] = []
    seen: set[str] = set()
    size = 0
    for i, tool in enumerate(tools):
        function = _function(tool, f"tools[{i}]", limits)
        if function.name in seen:
            raise InvalidRequest(f"tools[{i}]: the name {function.name!r} is taken twice", param="tools")
        seen.add(function.name)
        functions.append(function)
        size += len(json.dumps(function.parameters))
        if size > limits.max_tool_chars:
            raise InvalidRequest(
                f"the parameters of tools have more than {limits.max_tool_chars:,} characters in all",
                param="tools",
            )
    return tuple(functions)


def _function(tool: dict[str, Any], place: str, limits: Limits) -> Function:
    kind = tool.get("type", "function")
    if kind != "function":
        raise InvalidRequest(
            f"{place}.type is {str(kind)[:32]!r}; only tools of type 'function' are called here",
            param=f"{place}.type",
        )
    inner = tool.get("function")
    if not isinstance(inner, dict):
        raise InvalidRequest(f"{place}.function is missing", param=f"{place}.function")
    name = inner.get("name")
    place += ".function"
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > limits.max_tool_name:
        raise InvalidRequest(
            f"{place}.name must be 1 to {limits.max_tool_name} letters, digits or '_', '-', '.', ':'",
            param=f"{place}.name",
        )
    description, parameters = inner.get("description"), inner.get("parameters")
    if description is not None and not isinstance(description, str):
        raise InvalidRequest(f"{place}.description must be a string", param=f"{place}.description")
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidRequest(
            f"{place}.parameters must be a JSON Schema, as an object", param=f"{place}.parameters"
        )
    return Function(name, description or "", parameters or {}, bool(inner.get("strict")))


def without_tools(body: ChatFields) -> ChatFields:
    return body.model_copy(update={"tools": None})
