"""Anthropic's content blocks as messages of a chat: text, thoughts, calls of tools and their results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NoReturn

from octavo.api.schema.messages import Turn
from octavo.errors import InvalidRequest

_USER = ("text", "tool_result")
_ASSISTANT = ("text", "thinking", "redacted_thinking", "tool_use")
_SYSTEM = ("text",)
_UNSEEN = ("image", "document")  # in the result of a tool: told, as an agent cannot take them back
LateSystem = Literal["system", "user"]
_REASONS = {
    "image": "this model takes text only",
    "document": "documents are not read here; put their text into a text block",
    "search_result": "results of searches are not cited here; put their text into a text block",
    "container_upload": "no code is run here",
    "tool_reference": "there is no search for tools here; list the tools in tools",
    "server_tool_use": "this server runs no tools",
}
#: Keys of a block that say nothing to a model, beside those that are looked at.
_KEYS = {
    "text": {"text", "citations"},
    "thinking": {"thinking", "signature"},
    "redacted_thinking": {"data"},
    "tool_use": {"id", "name", "input", "caller", "toolset_name"},
    "tool_result": {"tool_use_id", "content", "is_error", "toolset_name"},
}


class Translator:
    """`notes` gets what the client should hear. `dropped_thinking`: turns whose thoughts stay; None = all.

    `late_system`: "user" makes a system message part of the user's turn before it, for templates that take
    none between the turns.
    """

    def __init__(
        self, notes: list[str], *, dropped_thinking: int | None = None, late_system: LateSystem = "system"
    ) -> None:
        self._notes = notes
        self._keep = dropped_thinking
        self._late_system = late_system

    def messages(self, turns: Sequence[Turn]) -> list[dict[str, Any]]:
        thoughtful = [i for i, t in enumerate(turns) if t.role == "assistant" and _has_thoughts(t.content)]
        dropped = set() if self._keep is None else set(thoughtful[: len(thoughtful) - self._keep])
        found: list[dict[str, Any]] = []
        for i, turn in enumerate(turns):
            place = f"messages[{i}].content"
            if isinstance(turn.content, str):
                found.append({"role": turn.role, "content": turn.content})
            elif turn.role == "assistant":
                found.append(self._assistant(turn.content, place, keeps_thoughts=i not in dropped))
            else:
                found += self._given(turn.role, turn.content, place)
        return found if self._late_system == "system" else _without_system(found)

    def _assistant(
        self, blocks: Sequence[dict[str, Any]], place: str, *, keeps_thoughts: bool
    ) -> dict[str, Any]:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        for kind, block, at in _of_kinds(blocks, place, _ASSISTANT):
            if kind == "text":
                texts.append(_string(block, "text", at))
            elif kind == "thinking":
                thoughts.append(_string(block, "thinking", at))
            elif kind == "tool_use":
                calls.append(_call(block, at))
            else:
                _string(block, "data", at)
                self._note("redacted_thinking blocks are left out: nobody but their maker can read them")
        message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
        if any(thoughts) and keeps_thoughts:
            message["reasoning"] = "\n".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        return message

    def _given(self, role: str, blocks: Sequence[dict[str, Any]], place: str) -> Iterator[dict[str, Any]]:
        """A message for each result of a tool, and one for the texts between them, in their order."""
        texts: list[str] = []
        if not blocks:
            raise InvalidRequest(f"{place} is empty; it needs at least one block", param=place)
        for kind, block, at in _of_kinds(blocks, place, _USER if role == "user" else _SYSTEM):
            if kind == "text":
                texts.append(_string(block, "text", at))
                continue
            if texts:
                yield {"role": role, "content": "\n".join(texts)}
                texts = []
            yield self._result(block, at)
        if texts:
            yield {"role": role, "content": "\n".join(texts)}

    def _result(self, block: dict[str, Any], at: str) -> dict[str, Any]:
        """Templates have no place for is_error, so the text says it, unless it does already."""
        content, is_error = block.get("content"), block.get("is_error")
        if not isinstance(is_error, bool | None):
            raise InvalidRequest(f"{at}.is_error must be true or false", param=f"{at}.is_error")
        if content is None:
            text = ""
        elif isinstance(content, str):
            text = content
        elif isinstance(content, list):
            text = "\n".join(self._shown(part, f"{at}.content[{i}]") for i, part in enumerate(content))
        else:
            raise InvalidRequest(f"{at}.content must be a string or a list of blocks", param=f"{at}.content")
        if is_error and "error" not in text[:32].lower():
            text = f"Error: {text}" if text else "Error"
        return {"role": "tool", "tool_call_id": _string(block, "tool_use_id", at), "content": text}

    def _shown(self, part: Any, at: str) -> str:
        """A part of a tool's result. What the model cannot see is named, so that it hears of it and can go on."""
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _UNSEEN:
            return self.text_of(part, at)
        self._note(f"{at}: a block {kind!r} is told to the model, not shown: {_REASONS[kind]}")
        return f"[{kind} left out: {_REASONS[kind]}]"

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    @staticmethod
    def text_of(block: Any, place: str) -> str:
        """Of a block that has to be text."""
        ((_, found, at),) = _of_kinds([block], place, _SYSTEM, numbered=False)
        return _string(found, "text", at)

    @staticmethod
    def check_cache_control(block: dict[str, Any], place: str) -> None:
        """Octavo finds every prefix, marked or not; a mark has to be a sound one all the same."""
        mark = block.get("cache_control")
        if mark is None:
            return
        is_sound = isinstance(mark, dict) and mark.get("type") == "ephemeral"
        if not is_sound or mark.get("ttl") not in (None, "5m", "1h"):
            raise InvalidRequest(
                f"{place}.cache_control must be {{'type': 'ephemeral'}}, with a ttl of '5m' or '1h' or without",
                param=f"{place}.cache_control",
            )


def _without_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """System messages as the user's, and the user's turns whole: two in a row are one."""
    found: list[dict[str, Any]] = []
    for message in messages:
        role = "user" if message["role"] == "system" else message["role"]
        if role == "user" and found and found[-1]["role"] == "user":
            found[-1]["content"] += "\n\n" + message["content"]
        else:
            found.append({**message, "role": role})
    return found


def _has_thoughts(content: str | Sequence[dict[str, Any]]) -> bool:
    return not isinstance(content, str) and any(b.get("type") == "thinking" for b in content)


def _of_kinds(
    blocks: Sequence[Any], place: str, allowed: tuple[str, ...], *, numbered: bool = True
) -> Iterator[tuple[str, dict[str, Any], str]]:
    """(type, block, place) of each; refuses other types and unknown keys by name."""
    for i, block in enumerate(blocks):
        at = f"{place}[{i}]" if numbered else place
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str) or kind not in allowed:
            _refuse_kind(kind, at, allowed)
        for key in block:
            if key not in _KEYS[kind] and key not in ("type", "cache_control"):
                raise InvalidRequest(f"{at}.{str(key)[:64]} is not known", param=f"{at}.{str(key)[:64]}")
        if block.get("citations"):
            raise InvalidRequest(
                f"{at}.citations: nothing is cited here", param=f"{at}.citations", fix="leave it out"
            )
        Translator.check_cache_control(block, at)
        yield kind, block, at


def _refuse_kind(kind: Any, at: str, allowed: tuple[str, ...]) -> NoReturn:
    name = repr(kind[:64]) if isinstance(kind, str) else "without a type"
    reason = f"; {_REASONS[kind]}" if isinstance(kind, str) and kind in _REASONS else ""
    raise InvalidRequest(
        f"{at}: a block {name} is not taken here{reason}; allowed are {', '.join(allowed)}",
        param=f"{at}.type",
    )


def _string(block: dict[str, Any], key: str, at: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise InvalidRequest(f"{at}.{key} must be a string", param=f"{at}.{key}")
    return value


def _call(block: dict[str, Any], at: str) -> dict[str, Any]:
    given = block.get("input")
    if not isinstance(given, dict):
        raise InvalidRequest(f"{at}.input must be an object", param=f"{at}.input")
    function = {"name": _string(block, "name", at), "arguments": as_json(given, f"{at}.input")}
    return {"id": _string(block, "id", at), "type": "function", "function": function}


def as_json(value: Any, at: str) -> str:
    """Raises InvalidRequest for what is nested too deeply to be written."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise InvalidRequest(f"{at} is nested too deeply", param=at) from None
