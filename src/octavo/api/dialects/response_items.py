"""Items of the Responses API: what a client sends as `input`, and the chat messages that they stand for.

An item is read once into one plain form (what /input_items returns and the store keeps); messages are
made of that form only, whether it came with this request, from an earlier answer or by reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from octavo.errors import InvalidRequest

Item = dict[str, Any]
Finder = Callable[[str, str], Item]  # (id, place in the body) -> the stored item

ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_MAX_PARTS = 16_384
_MAX_ID = 256


def read_items(given: str | Sequence[Any], prefix: str, find: Finder) -> list[Item]:
    """The input in plain form. Items without an id get one that starts with `prefix`."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not given:
        raise InvalidRequest("input is an empty list; at least 1 item is needed", param="input")
    items = []
    for i, item in enumerate(given):
        place = f"input[{i}]"
        if not isinstance(item, dict):
            raise InvalidRequest(f"{place} must be an object", param=place)
        items.append(_read(item, place, f"{prefix}{i}", find))
    return items


def _read(item: Item, place: str, own_id: str, find: Finder) -> Item:
    kind = item.get("type")
    if kind is None:
        kind = "message" if "role" in item else "item_reference" if set(item) == {"id"} else None
    if kind == "item_reference":
        return find(_string(item, "id", place), place)
    if kind not in _READERS:
        name = kind[:64] if isinstance(kind, str) else "of no type"
        raise InvalidRequest(
            f"{place}: an item {name!r} is not supported; allowed are {', '.join(ITEM_TYPES)}",
            param=f"{place}.type",
        )
    reader, tag = _READERS[kind]
    given_id = item.get("id")
    if given_id is not None and not (isinstance(given_id, str) and 0 < len(given_id) <= _MAX_ID):
        raise InvalidRequest(f"{place}.id must be a string of 1 to {_MAX_ID} characters", param=f"{place}.id")
    return {"id": given_id or f"{tag}_{own_id}", "type": kind, **reader(item, place)}


def _string(item: Item, name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or (not value and name != "arguments"):
        raise InvalidRequest(
            f"{place}.{name} is missing or no string; this item needs it", param=f"{place}.{name}"
        )
    return value


def _message(item: Item, place: str) -> Item:
    role = _string(item, "role", place)
    if role not in _ROLES:
        raise InvalidRequest(
            f"{place}.role is {role[:32]!r}; allowed are {', '.join(_ROLES)}", param=f"{place}.role"
        )
    kind = "output_text" if role == "assistant" else "input_text"
    parts: list[Item] = []
    for text, is_refusal in _texts(item.get("content"), f"{place}.content"):
        if is_refusal:
            parts.append({"type": "refusal", "refusal": text})
        else:
            parts.append({"type": kind, "text": text})
            if role == "assistant":
                parts[-1] |= {"annotations": [], "logprobs": []}
    return {"role": role, "content": parts, "status": "completed"}


def _texts(content: Any, place: str) -> list[tuple[str, bool]]:
    """[(text, is a refusal)] of a string or a list of parts."""
    if isinstance(content, str):
        return [(content, False)]
    if not isinstance(content, list) or len(content) > _MAX_PARTS:
        raise InvalidRequest(f"{place} must be text or a list of at most {_MAX_PARTS:,} parts", param=place)
    found = []
    for i, part in enumerate(content):
        where = f"{place}[{i}]"
        kind = part.get("type") if isinstance(part, dict) else None
        key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
        if key is None:
            name = kind[:32] if isinstance(kind, str) else "of no type"
            raise InvalidRequest(
                f"{where}: a part {name!r} is not supported; this model takes {', '.join(_TEXT_PARTS)}",
                param=f"{where}.type",
            )
        text = part.get(key)
        if not isinstance(text, str):
            raise InvalidRequest(f"{where}.{key} must be a string", param=f"{where}.{key}")
        found.append((text, key == "refusal"))
    return found


def _call(item: Item, place: str) -> Item:
    if item.get("namespace") is not None:
        raise InvalidRequest(
            f"{place}.namespace is not supported: functions are named alone", param=f"{place}.namespace"
        )
    names = ("call_id", "name", "arguments")
    return {name: _string(item, name, place) for name in names} | {"status": _status(item)}


def _output(item: Item, place: str) -> Item:
    call_id = _string(item, "call_id", place)
    output = item.get("output")
    if not isinstance(output, str):
        output = [
            {"type": "input_text", "text": text} for text, _ in _texts(output, f"{place}.output")
        ]  # a list stays a list: clients get back what they sent
    return {"call_id": call_id, "output": output, "status": _status(item)}


def _reasoning(item: Item, place: str) -> Item:
    content = _typed_texts(item.get("content"), "reasoning_text", f"{place}.content")
    summary = _typed_texts(item.get("summary"), "summary_text", f"{place}.summary")
    if item.get("encrypted_content") is not None and not content and not summary:
        raise InvalidRequest(
            f"{place} holds encrypted_content only, which this server cannot read",
            param=f"{place}.encrypted_content",
            fix="leave the item out",
        )
    return {
        "summary": [{"type": "summary_text", "text": t} for t in summary],
        "content": [{"type": "reasoning_text", "text": t} for t in content],
        "status": _status(item),
    }


def _typed_texts(given: Any, kind: str, place: str) -> list[str]:
    if given is None:
        return []
    if not isinstance(given, list) or len(given) > _MAX_PARTS:
        raise InvalidRequest(f"{place} must be a list of at most {_MAX_PARTS:,} parts", param=place)
    for i, part in enumerate(given):
        if not (isinstance(part, dict) and part.get("type") == kind and isinstance(part.get("text"), str)):
            raise InvalidRequest(f"{place}[{i}] must be a part {kind!r} with a text", param=f"{place}[{i}]")
    return [part["text"] for part in given]


def _status(item: Item) -> str:
    return "incomplete" if item.get("status") == "incomplete" else "completed"


_READERS: dict[str, tuple[Callable[[Item, str], Item], str]] = {
    "message": (_message, "msg"),
    "function_call": (_call, "fc"),
    "function_call_output": (_output, "fco"),
    "reasoning": (_reasoning, "rs"),
}


# ---- messages -----------------------------------------------------------------------------------


def messages_of(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Chat messages. What an assistant thought, said and called in one go is one message.

    Raises InvalidRequest for the output of a call that no item before it made.
    """
    messages: list[dict[str, Any]] = []
    names: dict[str, str] = {}  # of functions, by call id
    turn: dict[str, Any] | None = None  # the assistant's message that is still open
    for item in items:
        kind = item["type"]
        if kind == "message" and item["role"] != "assistant":
            turn = None
            messages.append({"role": item["role"], "content": _content(item)})
        elif kind == "function_call_output":
            turn = None
            messages.append(_tool_message(item, names))
        else:
            if turn is None or not _fits(turn, kind):
                turn = {"role": "assistant"}
                messages.append(turn)
            _add(turn, item, names)
    return messages


def _fits(turn: dict[str, Any], kind: str) -> bool:
    """Whether an item continues an assistant's turn: thinking opens it, and it has one content."""
    if kind == "reasoning":
        return not ("content" in turn or "tool_calls" in turn)
    return kind == "function_call" or "content" not in turn


def _add(turn: dict[str, Any], item: Item, names: dict[str, str]) -> None:
    if item["type"] == "reasoning":
        text = "\n".join(part["text"] for part in item["content"] or item["summary"])
        turn["reasoning"] = f"{turn['reasoning']}\n{text}" if "reasoning" in turn else text
    elif item["type"] == "message":
        turn["content"] = _content(item)
    else:
        names[item["call_id"]] = item["name"]
        function = {"name": item["name"], "arguments": item["arguments"]}
        turn.setdefault("tool_calls", []).append(
            {"id": item["call_id"], "type": "function", "function": function}
        )


def _content(item: Item) -> str | list[dict[str, Any]]:
    """One text as a string, several as parts: templates that want strings get them joined."""
    texts = [part["refusal"] if part["type"] == "refusal" else part["text"] for part in item["content"]]
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def _tool_message(item: Item, names: dict[str, str]) -> dict[str, Any]:
    name = names.get(item["call_id"])
    if name is None:
        raise InvalidRequest(
            f"input holds the output of the call {item['call_id'][:128]!r}, but no function_call of that id before it",
            param="input",
            fix="send the call too, or name the response that made it in previous_response_id",
        )
    output = item["output"]
    text = output if isinstance(output, str) else "\n".join(part["text"] for part in output)
    return {"role": "tool", "tool_call_id": item["call_id"], "name": name, "content": text}


def kept(items: Sequence[Item], first: int) -> list[Item]:
    """What is left when the items before `first` are dropped.

    System and developer messages stay; the output of a dropped call goes with its call.
    """
    left = [
        item
        for i, item in enumerate(items)
        if i >= first or (item["type"] == "message" and item["role"] in ("system", "developer"))
    ]
    calls = {item["call_id"] for item in left if item["type"] == "function_call"}
    return [i for i in left if i["type"] != "function_call_output" or i["call_id"] in calls]


def last_cut(items: Sequence[Item]) -> int:
    """The largest `first` that leaves the newest item, and the call that it answers."""
    last = len(items) - 1
    if items[last]["type"] == "function_call_output":
        call_id = items[last]["call_id"]
        for i in range(last - 1, -1, -1):
            if items[i]["type"] == "function_call" and items[i]["call_id"] == call_id:
                return i
    return last
