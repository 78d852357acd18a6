"""What a client adds up from a stream of each dialect, in the shape of the answer that is not streamed.

The two are compared field by field: every field of the whole answer must come out of the stream, but for ids and
times, which differ between any two requests. Refusals must not depend on `stream` either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
from anthropic.lib.streaming._messages import accumulate_event
from tests.fakes.api_world import sse
from tests.fakes.dialect_worlds import named_events
from tests.fakes.response_events import fold, plain, read_events

Body = dict[str, Any]
COLUMNS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
_BLOCKS = re.compile(r"S((B(D)*E)+)MX")


@dataclass(frozen=True)
class Dialect:
    path: str
    add: Callable[[str, Body], Body]  # the text of a stream and what was asked -> the whole answer
    more: Body  # what a body needs so that its stream says as much as the whole answer


Post = Callable[[str, Body], Awaitable[httpx.Response]]


async def compare(post: Post, name: str, body: Body) -> int:
    """Asks twice: the stream must add up to the whole answer. The status, which is the same for both."""
    dialect = DIALECTS[name]
    streamed = {**body, **dialect.more, "stream": True}
    whole, added = [read(dialect, asked, await post(dialect.path, asked)) for asked in (body, streamed)]
    assert added == whole, body
    return whole[0]


def read(dialect: Dialect, asked: Body, reply: httpx.Response) -> tuple[int, Body]:
    """(status, answer) of either kind without what differs between two requests."""
    status, text = reply.status_code, reply.text
    if status != 200 or not asked.get("stream"):
        answer = json.loads(text)
    else:
        answer = dialect.add(text, asked)
    return status, _without_ids(answer)


def _without_ids(answer: Body) -> Body:
    if answer.get("object") == "response":
        answer = plain(answer)
        for number, item in enumerate(answer["output"]):
            if item["type"] == "function_call":
                item["call_id"] = f"call {number}"
        return answer
    answer = {k: v for k, v in answer.items() if k not in ("id", "request_id", "created")}
    messages = [choice["message"] for choice in answer.get("choices", []) if "message" in choice]
    if isinstance(answer.get("message"), dict):
        messages.append(answer["message"])
    for message in messages:
        for call in message.get("tool_calls", []):
            assert call.pop("id")
    for block in answer.get("content", []):
        if block["type"] == "tool_use":
            assert block.pop("id")
    return answer


# ---- OpenAI and tokens -----------------------------------------------------------------------------


def _split(text: str) -> tuple[list[Body], Body, dict[int, list[Body]]]:
    """(chunks, usage of the end, pieces by choice), with what holds for every such stream."""
    chunks, is_done = sse(text)
    assert is_done, text[-300:]
    failed = [chunk["error"] for chunk in chunks if "error" in chunk]
    assert not failed, failed
    *parts, last = chunks
    assert last["choices"] == []
    pieces: dict[int, list[Body]] = {}
    for chunk in parts:
        assert "usage" not in chunk
        for choice in chunk["choices"]:
            pieces.setdefault(choice["index"], []).append(choice)
    for given in pieces.values():
        assert [p["finish_reason"] is not None for p in given] == [False] * (len(given) - 1) + [True]
    heads = {tuple(c[k] for k in ("id", "request_id", "created", "model") if k in c) for c in chunks}
    assert len(heads) == 1
    return chunks, last["usage"], pieces


def _head(chunks: list[Body], kind: str | None, usage: Body, choices: list[Body]) -> Body:
    """Fields of the whole answer; what concerns the request comes once."""
    whole = {k: v for k, v in chunks[0].items() if k not in ("choices", "object")}
    if kind is not None:
        whole["object"] = kind
    for name in ("prompt_token_ids", "prompt_text", "warnings", "prompt_logprobs"):
        said = [chunk[name] for chunk in chunks if name in chunk]
        assert len(said) <= 1, f"{name} came twice"
        whole |= {name: said[0]} if said else {}
    return {**whole, "choices": choices, "usage": usage}


def _ends(pieces: list[Body], asked: Body) -> Body:
    """What every kind of choice has: reasons, ids, scores of the prompt."""
    last = pieces[-1]
    whole = {
        "index": last["index"],
        "finish_reason": last["finish_reason"],
        "stop_reason": last["stop_reason"],
    }
    if asked.get("return_token_ids"):
        whole["token_ids"] = [i for p in pieces for i in p.get("token_ids", [])]
    for name in ("prompt_logprobs", "prompt_token_ids"):
        said = [p[name] for p in pieces if name in p]
        assert len(said) <= 1, f"{name} came twice"
        whole |= {name: said[0]} if said else {}
    return whole


def _scores(pieces: list[Body], asked: Any) -> Body | None:
    given = [p["logprobs"]["content"] for p in pieces if p["logprobs"]]
    return (
        {"content": [one for part in given for one in part]}
        if asked is not None and asked is not False
        else None
    )


def add_chat(text: str, asked: Body) -> Body:
    chunks, usage, pieces = _split(text)
    choices = []
    for index in sorted(pieces):
        message: Body = {"refusal": None}
        calls: list[Body] = []
        for piece in pieces[index]:
            delta = piece["delta"]
            for name in ("role", "content", "reasoning", "reasoning_content"):
                if name in delta:
                    message[name] = message.get(name, "") + delta[name]
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    assert call["index"] == len(calls)
                    assert set(call) == {"index", "id", "type", "function"}
                    calls.append(
                        {
                            "id": call["id"],
                            "type": call["type"],
                            "function": {"name": call["function"]["name"], "arguments": ""},
                        }
                    )
                else:
                    assert set(call) == {"index", "function"}
                    assert set(call["function"]) == {"arguments"}
                calls[call["index"]]["function"]["arguments"] += call["function"].get("arguments", "")
        if calls:
            message |= {"tool_calls": calls, "content": message["content"] or None}
        scores = _scores(pieces[index], asked.get("logprobs"))
        choices.append({**_ends(pieces[index], asked), "message": message, "logprobs": scores})
    return _head(chunks, "chat.completion", usage, choices)


def add_completion(text: str, asked: Body) -> Body:
    chunks, usage, pieces = _split(text)
    choices = []
    for index in sorted(pieces):
        given = pieces[index]
        scores = None
        if asked.get("logprobs") is not None:
            scores = {
                name: [one for p in given if p["logprobs"] for one in p["logprobs"][name]] for name in COLUMNS
            }
        whole = "".join(p["text"] for p in given)
        choices.append({**_ends(given, asked), "text": whole, "logprobs": scores})
    return _head(chunks, "text_completion", usage, choices)


def add_tokens(text: str, asked: Body) -> Body:
    chunks, usage, pieces = _split(text)
    choices = []
    for index in sorted(pieces):
        given = pieces[index]
        whole = {**_ends(given, {}), "logprobs": _scores(given, asked["sampling_params"].get("logprobs"))}
        if asked.get("output_mode") == "text":
            whole["text"] = "".join(p["text"] for p in given)
        else:
            whole["token_ids"] = [i for p in given for i in p["token_ids"]]
        choices.append(whole)
    return _head(chunks, None, usage, choices)


# ---- others ----------------------------------------------------------------------------------------


def add_message(text: str, asked: Body) -> Body:
    """By Anthropic's own client; the order is that of its documents."""
    events = named_events(text)
    letters = {
        "message_start": "S",
        "content_block_start": "B",
        "content_block_delta": "D",
        "content_block_stop": "E",
        "message_delta": "M",
        "message_stop": "X",
        "ping": "",
    }
    assert _BLOCKS.fullmatch("".join(letters[e["type"]] for e in events)), events
    indices = [e["index"] for e in events if "index" in e]
    assert indices == sorted(indices)
    assert set(indices) == set(range(max(indices) + 1))
    snapshot, buffers = None, {}  # type: ignore[var-annotated]
    for event in events:
        if event["type"] != "ping":
            snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)  # type: ignore[arg-type]
    assert snapshot is not None
    message: Body = snapshot.to_dict()
    for block in message["content"]:
        block.pop("parsed_output", None)
    return {name: value for name, value in message.items() if name not in CLIENTS_OWN}


#: Fields that the client adds to every message.
CLIENTS_OWN = ("container", "context_management", "stop_details")


def add_cohere(text: str, asked: Body) -> Body:
    message: Body = {"role": "assistant"}
    events = named_events(text)
    for event in events:
        inner = event.get("delta", {}).get("message", {})
        if event["type"] == "content-start":
            message.setdefault("content", []).append(dict(inner["content"]))
        elif event["type"] == "content-delta":
            for key, value in inner["content"].items():
                message["content"][event["index"]][key] += value
        elif event["type"] == "tool-call-start":
            made = inner["tool_calls"]
            message.setdefault("tool_calls", []).append(made | {"function": dict(made["function"])})
        elif event["type"] == "tool-call-delta":
            piece = inner["tool_calls"]["function"]["arguments"]
            message["tool_calls"][event["index"]]["function"]["arguments"] += piece
    assert [e["type"] for e in events].count("message-end") == 1
    assert events[-1]["type"] == "message-end"
    whole = {"id": events[0]["id"], "message": message, **events[-1]["delta"]}
    scores = [e["logprobs"] for e in events[:-1] if "logprobs" in e] + events[-1].get("logprobs", [])
    return {**whole, "logprobs": scores} if asked.get("logprobs") else whole


def add_response(text: str, asked: Body) -> Body:
    return fold(read_events(text))


_USAGE = {"stream_options": {"include_usage": True}}
DIALECTS = {
    "chat": Dialect("/v1/chat/completions", add_chat, _USAGE),
    "completions": Dialect("/v1/completions", add_completion, _USAGE),
    "tokens": Dialect("/inference/v1/generate", add_tokens, _USAGE),
    "messages": Dialect("/v1/messages", add_message, {}),
    "cohere": Dialect("/cohere/v2/chat", add_cohere, {}),
    "responses": Dialect("/v1/responses", add_response, {}),
}
