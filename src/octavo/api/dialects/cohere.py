"""A body of Cohere's v2 chat as a chat body. Makes no prompt and knows no answer."""

from __future__ import annotations

from typing import Any

from octavo.api.dialects.anthropic import Translated
from octavo.api.dialects.blocks import as_json
from octavo.api.dialects.thinking import can_think, switched
from octavo.api.schema.cohere import CohereBody, CohereMessage, Document
from octavo.api.state import ApiState
from octavo.errors import InvalidRequest

REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "connectors": (([],), "this server does not search"),
    "message": ((), "that is the v1 chat; send messages"),
}
#: Our name of a field -> Cohere's.
NAMES = {
    "stop": "stop_sequences",
    "top_k": "k",
    "top_p": "p",
    "max_completion_tokens": "max_tokens",
    "thinking_token_budget": "thinking.token_budget",
    "structured_outputs": "response_format",
}
_QUIET = (None, "OFF", "DISABLED")
_SAME = ("temperature", "seed", "frequency_penalty", "presence_penalty", "cache_salt")


def to_chat(body: CohereBody, state: ApiState) -> Translated:
    """The chat body of a request. Of `state` the chat template is looked at, and how the model thinks."""
    template = state.prompts.template.source or ""
    _refuse_citations(body)
    done = Translated({})
    chat = done.chat
    chat |= {
        "messages": [_message(m, f"messages[{i}]", template) for i, m in enumerate(body.messages)],
        "stop": body.stop_sequences,
        "stream": body.stream,
        "priority": body.priority,
        "logprobs": body.logprobs,
    }
    names = {name: name for name in _SAME} | {"k": "top_k", "p": "top_p"}
    names |= {"model": "model", "max_tokens": "max_completion_tokens"}
    chat |= {ours: v for theirs, ours in names.items() if (v := getattr(body, theirs)) is not None}
    _tools(body, chat)
    if body.documents:
        chat["documents"] = [_document(d, i) for i, d in enumerate(body.documents)]
    _format(body, chat)
    _think(body, state, done)
    chat["chat_template_kwargs"] = _kwargs(body, template) | chat.get("chat_template_kwargs", {})
    chat["chat_template_kwargs"] |= body.chat_template_kwargs
    return done


def _refuse_citations(body: CohereBody) -> None:
    mode = body.citation_options.mode if body.citation_options is not None else None
    if mode not in _QUIET:
        raise InvalidRequest(
            f"citation_options.mode is {mode!r}; answers are not cited here",
            param="citation_options.mode",
            fix="leave it out or send 'OFF'",
        )


def _kwargs(body: CohereBody, template: str) -> dict[str, Any]:
    """A safety mode is a variable of the template, where the template has it."""
    if body.safety_mode is not None and "safety_mode" in template:
        return {"safety_mode": body.safety_mode}
    if body.safety_mode not in (None, "OFF"):
        raise InvalidRequest(
            f"safety_mode is {body.safety_mode!r}; the chat template of this model has no instruction for it",
            param="safety_mode",
            fix="send 'OFF', and write the instruction into a system message",
        )
    return {}


def _tools(body: CohereBody, chat: dict[str, Any]) -> None:
    if body.tools:
        chat["tools"] = [_tool(t, i, is_strict=body.strict_tools) for i, t in enumerate(body.tools)]
    elif body.strict_tools:
        raise InvalidRequest("strict_tools needs tools", param="strict_tools")
    if body.tool_choice is not None and (body.tools or body.tool_choice != "NONE"):
        chat["tool_choice"] = {"REQUIRED": "required", "NONE": "none"}[body.tool_choice]


def _tool(tool: dict[str, Any], index: int, *, is_strict: bool) -> dict[str, Any]:
    place = f"tools[{index}]"
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, dict):
        raise InvalidRequest(f"{place} must be {{'type': 'function', 'function': {{...}}}}", param=place)
    extra = {"strict": True} if is_strict else {}
    return {"type": "function", "function": function | extra}


def _format(body: CohereBody, chat: dict[str, Any]) -> None:
    form = body.response_format
    if form is None or form.type == "text":
        return
    schema = form.older_schema if form.json_schema is None else form.json_schema
    if schema is None:
        chat["response_format"] = {"type": "json_object"}
        return
    named = {"name": "output", "schema": schema, "strict": True}
    chat["response_format"] = {"type": "json_schema", "json_schema": named}


def _think(body: CohereBody, state: ApiState, done: Translated) -> None:
    thinking = body.thinking
    if thinking is None:
        return
    if thinking.type == "disabled":
        if thinking.token_budget is not None:
            raise InvalidRequest(
                "thinking.token_budget goes with type 'enabled'",
                param="thinking.token_budget",
                fix="leave it out",
            )
        given = switched(state, on=False)
        if can_think(state) and not given:
            done.notes.append("thinking.type 'disabled' has no effect: this model has no switch for it")
        done.chat |= given
        return
    if not can_think(state):
        raise InvalidRequest(
            "thinking is 'enabled'; this model does not think apart from its answer",
            param="thinking",
            fix="leave it out",
        )
    done.chat |= switched(state, on=True)
    if thinking.token_budget is not None:
        done.chat["thinking_token_budget"] = thinking.token_budget


# ---- messages and documents ----------------------------------------------------------------------


def _message(message: CohereMessage, place: str, template: str) -> dict[str, Any]:
    texts, thoughts = _contents(message, place)
    found: dict[str, Any] = {"role": message.role}
    if message.role == "assistant":
        plan = message.tool_plan
        if plan and "tool_plan" in template:
            found["tool_plan"] = plan
        elif plan:  # what a model says before it calls
            texts.insert(0, plan)
        if thoughts:
            found["reasoning"] = "\n".join(thoughts)
        if message.tool_calls:
            found["tool_calls"] = message.tool_calls
    else:
        _refuse_of_assistants(message, place)
    if message.role == "tool":
        if message.tool_call_id is None:
            raise InvalidRequest(
                f"{place}.tool_call_id is missing; a tool message needs it", param=f"{place}.tool_call_id"
            )
        found["tool_call_id"] = message.tool_call_id
    elif message.tool_call_id is not None:
        raise InvalidRequest(f"{place}.tool_call_id goes with the role 'tool'", param=f"{place}.tool_call_id")
    found["content"] = "\n".join(texts)
    return found


def _refuse_of_assistants(message: CohereMessage, place: str) -> None:
    for name in ("tool_calls", "tool_plan", "citations"):
        if getattr(message, name):
            raise InvalidRequest(f"{place}.{name} goes with the role 'assistant'", param=f"{place}.{name}")
    if message.content is None:
        raise InvalidRequest(
            f"{place}.content is missing; a {message.role} message needs it", param=f"{place}.content"
        )


def _contents(message: CohereMessage, place: str) -> tuple[list[str], list[str]]:
    """(texts, thoughts)."""
    if not isinstance(message.content, list):
        return ([message.content] if message.content else []), []
    allowed = {"assistant": ("text", "thinking"), "tool": ("text", "document")}.get(message.role, ("text",))
    texts: list[str] = []
    thoughts: list[str] = []
    for i, part in enumerate(message.content):
        at = f"{place}.content[{i}]"
        kind = part.get("type")
        if kind not in allowed:
            raise InvalidRequest(
                f"{at}: a part {str(kind)[:64]!r} is not taken here; allowed are {', '.join(allowed)}",
                param=f"{at}.type",
            )
        value = part.get(str(kind))
        if kind == "document":
            texts.append(_tool_document(value, at))
        elif isinstance(value, str):
            (texts if kind == "text" else thoughts).append(value)
        else:
            raise InvalidRequest(f"{at}.{kind} must be a string", param=f"{at}.{kind}")
    return texts, thoughts


def _tool_document(value: Any, at: str) -> str:
    """A result of a tool that is a document: its data as JSON, as the model gets any other result."""
    if not isinstance(value, dict) or not isinstance(value.get("data"), dict):
        raise InvalidRequest(f"{at}.document must be {{'data': {{...}}}}", param=f"{at}.document")
    named = {"id": value["id"]} if isinstance(value.get("id"), str) else {}
    return as_json(named | value["data"], f"{at}.document")


def _document(document: str | Document, index: int) -> dict[str, str]:
    """As templates read them: texts by name, a title and a text at least."""
    if isinstance(document, str):
        return {"title": f"Document {index}", "text": document}
    data = document.data
    if isinstance(data.get("text"), str):
        text = data["text"]
    else:
        text = as_json({k: v for k, v in data.items() if k != "title"}, f"documents[{index}].data")
    title = data.get("title")
    found = {"title": title if isinstance(title, str) else f"Document {index}", "text": text}
    others = {k: v for k, v in data.items() if isinstance(v, str) and k not in found}
    return found | others | ({} if document.id is None else {"id": document.id})
