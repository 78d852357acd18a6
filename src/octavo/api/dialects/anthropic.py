"""A body of Anthropic's Messages API as a chat body: system, turns, tools, thinking.

Owns what each field means for a prompt and its parameters, and refuses by name what has no meaning
here. Makes no prompt and knows no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.api.dialects.blocks import LateSystem, Translator, as_json
from octavo.api.dialects.thinking import can_think, switched
from octavo.api.schema.messages import CountBody, MessagesBody, OutputFormat, Thinking
from octavo.api.state import ApiState
from octavo.errors import InvalidRequest

#: Fields of the API that cannot act, as in `schema.fields.REFUSED`: (values that ask for nothing, reason).
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "container": ((), "no code is run here"),
    "diagnostics": (
        ({}, {"previous_message_id": None}),
        "requests are not compared with earlier ones; usage.cache_read_input_tokens says what was reused",
    ),
    "fallbacks": (([],), "there is one model"),
    "inference_geo": ((), "the server runs where it runs"),
    "mcp_servers": (([],), "this server talks to no other; list their tools in tools"),
    "prefill": ((), "end messages with the beginning of the answer, as a message of the assistant"),
    "user_profile_id": ((), "there are no profiles"),
    "workspace_id": ((), "there are no workspaces"),
}
#: Our name of a field -> Anthropic's, for errors that come from behind the translation.
NAMES = {
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "structured_outputs": "output_config.format",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "documents": "messages",
}
_TOOL_KEYS = frozenset(
    "name description input_schema type cache_control strict eager_input_streaming defer_loading "
    "input_examples allowed_callers".split()
)
_CLEAR_THINKING = "clear_thinking_20251015"
_BILLING = "x-anthropic-billing-header"


@dataclass(slots=True)
class Translated:
    """`chat` is the chat body as a dict; `notes` is what the client should hear about it."""

    chat: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def to_chat(body: MessagesBody, state: ApiState, *, late_system: LateSystem = "system") -> Translated:
    """The chat body of a request. Of `state` only how its model thinks is looked at."""
    done = to_prompt(body, state, late_system=late_system)
    chat = done.chat
    _continue_last(body, chat)
    chat |= {
        "max_completion_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "stream": body.stream,
        "priority": body.priority,
    }
    for name in ("temperature", "top_p", "top_k", "cache_salt", "seed"):
        value = getattr(body, name)
        if value is not None:
            chat[name] = value
    if body.top_p == 0:  # allowed there: the most probable token alone
        chat["top_p"], chat["top_k"] = 1.0, 1
    _think(body, done, can_think=can_think(state))
    return done


def to_prompt(body: CountBody, state: ApiState, *, late_system: LateSystem = "system") -> Translated:
    """What decides the prompt. `late_system`: the role that system messages between the turns get."""
    done = Translated({})
    chat = done.chat
    if body.model is not None:
        chat["model"] = body.model
    blocks = Translator(done.notes, dropped_thinking=_cleared(body), late_system=late_system)
    chat["messages"] = [*_system(body.system), *blocks.messages(body.messages)]
    if body.tools:
        chat["tools"] = [_tool(tool, i) for i, tool in enumerate(body.tools)]
    _choose_tool(body, chat)
    _switch(body, state, done)
    config = body.output_config
    if config is not None and config.effort is not None:
        chat["reasoning_effort"] = config.effort
    if config is not None and config.format is not None and body.output_format is not None:
        raise InvalidRequest(
            "output_format and output_config.format are both given", param="output_format", fix="send one"
        )
    shape = body.output_format or (config.format if config is not None else None)
    if shape is not None:
        chat["response_format"] = _response_format(shape)
    return done


def _response_format(shape: OutputFormat) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": shape.json_schema, "strict": True},
    }


def _system(system: str | Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """One system message. A first block that says who pays is left out: it is no text for a model, and it
    changes from call to call, so that no prefix would ever be found again."""
    if system is None:
        return []
    if isinstance(system, str):
        return [{"role": "system", "content": system}] if system else []
    texts = [Translator.text_of(block, f"system[{i}]") for i, block in enumerate(system)]
    if texts and texts[0].startswith(_BILLING):
        texts = texts[1:]
    return [{"role": "system", "content": "\n".join(texts)}] if texts else []


def _continue_last(body: CountBody, chat: dict[str, Any]) -> None:
    """A last message of the assistant is the beginning of the answer."""
    last = chat["messages"][-1]
    if last["role"] != "assistant":
        return
    place = f"messages[{len(body.messages) - 1}]"
    if last.get("tool_calls"):
        raise InvalidRequest(
            f"{place} calls tools, and nothing follows it",
            param=place,
            fix="send a user message with the tool_result blocks",
        )
    if not last["content"]:
        raise InvalidRequest(f"{place}.content is empty; there is nothing to continue", param=place)
    chat["continue_final_message"] = True
    chat["add_generation_prompt"] = False


# ---- tools ---------------------------------------------------------------------------------------


def _tool(tool: dict[str, Any], index: int) -> dict[str, Any]:
    place = f"tools[{index}]"
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise InvalidRequest(
            f"{place}: {str(kind)[:64]!r} is a tool that Anthropic's servers define or run; this server has none",
            param=f"{place}.type",
            fix="describe your own tool with name, description and input_schema",
        )
    _check_tool(tool, place)
    function: dict[str, Any] = {"name": tool["name"], "parameters": tool["input_schema"]}
    about = _description(tool, place)
    if about:
        function["description"] = about
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def _check_tool(tool: dict[str, Any], place: str) -> None:
    for key in tool:
        if key not in _TOOL_KEYS:
            raise InvalidRequest(f"{place}.{key[:64]} is not known", param=f"{place}.{key[:64]}")
    for key, kind, name in (("name", str, "a string"), ("input_schema", dict, "a JSON schema")):
        if not isinstance(tool.get(key), kind) or not tool[key]:
            raise InvalidRequest(f"{place}.{key} is missing; it is {name}", param=f"{place}.{key}")
    for key in ("strict", "eager_input_streaming", "defer_loading"):
        if not isinstance(tool.get(key), bool | None):
            raise InvalidRequest(f"{place}.{key} must be true or false", param=f"{place}.{key}")
    if tool.get("defer_loading"):
        raise InvalidRequest(
            f"{place}.defer_loading: there is no search for tools here", param=f"{place}.defer_loading"
        )
    if tool.get("allowed_callers") not in (None, [], ["direct"]):
        raise InvalidRequest(
            f"{place}.allowed_callers: tools are called by the model alone; allowed is ['direct']",
            param=f"{place}.allowed_callers",
        )
    Translator.check_cache_control(tool, place)


def _description(tool: dict[str, Any], place: str) -> str:
    """What the tool does; examples of inputs are told there, as templates have no place of their own for them."""
    about, examples = tool.get("description"), tool.get("input_examples")
    if not isinstance(about, str | None):
        raise InvalidRequest(f"{place}.description must be a string", param=f"{place}.description")
    if not isinstance(examples, list | None) or not all(isinstance(e, dict) for e in examples or ()):
        raise InvalidRequest(
            f"{place}.input_examples must be a list of objects", param=f"{place}.input_examples"
        )
    lines = [about] if about else []
    lines += [f"Example input: {as_json(e, place + '.input_examples')}" for e in examples or ()]
    return "\n".join(lines)


def _choose_tool(body: CountBody, chat: dict[str, Any]) -> None:
    choice = body.tool_choice
    if choice is None:
        return
    if choice.type == "tool" and not choice.name:
        raise InvalidRequest("tool_choice.name is missing; type 'tool' needs it", param="tool_choice.name")
    if choice.type != "tool" and choice.name is not None:
        raise InvalidRequest(
            f"tool_choice.name goes with type 'tool'; the type is {choice.type!r}", param="tool_choice.name"
        )
    if not body.tools and choice.type in ("auto", "none"):
        return
    by_type: dict[str, Any] = {"auto": "auto", "any": "required", "none": "none"}
    named = {"type": "function", "function": {"name": choice.name}}
    chat["tool_choice"] = by_type.get(choice.type, named)
    if choice.disable_parallel_tool_use:
        chat["parallel_tool_calls"] = False


# ---- thinking ------------------------------------------------------------------------------------


def _switch(body: CountBody, state: ApiState, done: Translated) -> None:
    given = switched(state, on=body.thinking.type != "disabled") if body.thinking is not None else {}
    done.chat |= given
    if body.chat_template_kwargs:
        done.chat["chat_template_kwargs"] = given.get("chat_template_kwargs", {}) | body.chat_template_kwargs
    if body.thinking is not None and body.thinking.type == "disabled" and can_think(state) and not given:
        done.notes.append("thinking.type 'disabled' has no effect: this model has no switch for it")


def _think(body: MessagesBody, done: Translated, *, can_think: bool) -> None:
    thinking = body.thinking
    if thinking is None:
        return
    _check_budget(thinking, body.max_tokens)
    if thinking.type == "disabled":
        return
    if not can_think:
        done.notes.append("thinking has no effect: this model does not think apart from its answer")
        return
    if thinking.budget_tokens is not None:
        done.chat["thinking_token_budget"] = thinking.budget_tokens
    if thinking.display == "summarized":
        done.notes.append("thinking.display: thoughts are shown as they are; nothing summarises them")


def _check_budget(thinking: Thinking, max_tokens: int) -> None:
    budget = thinking.budget_tokens
    if (thinking.type == "enabled") != (budget is not None):
        given = "missing" if budget is None else f"{budget}, and the type is {thinking.type!r}"
        raise InvalidRequest(
            f"thinking.budget_tokens is {given}; it goes with type 'enabled', which needs it",
            param="thinking.budget_tokens",
        )
    if budget is not None and budget >= max_tokens:
        raise InvalidRequest(
            f"thinking.budget_tokens is {budget}; it must be less than max_tokens, which is {max_tokens}",
            param="thinking.budget_tokens",
        )


def _cleared(body: CountBody) -> int | None:
    """How many of the last turns with thoughts keep them; None = all. Other edits of a context are refused."""
    keep: int | None = None
    edits = body.context_management.edits if body.context_management is not None else []
    for i, edit in enumerate(edits):
        place = f"context_management.edits[{i}]"
        if edit.get("type") != _CLEAR_THINKING:
            raise InvalidRequest(
                f"{place}: {str(edit.get('type'))[:64]!r} is not done here; allowed is {_CLEAR_THINKING!r}",
                param=f"{place}.type",
                fix="shorten the messages before they are sent",
            )
        keep = _kept_turns(edit.get("keep"), place)
    return keep


def _kept_turns(keep: Any, place: str) -> int | None:
    if keep in ("all", {"type": "all"}):
        return None
    if keep is None:
        return 1
    if isinstance(keep, dict) and keep.get("type") == "thinking_turns":
        value = keep.get("value")
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
    raise InvalidRequest(
        f"{place}.keep must be 'all' or {{'type': 'thinking_turns', 'value': 1 or more}}",
        param=f"{place}.keep",
    )
