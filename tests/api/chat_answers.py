"""Chats as a client sees them: streamed and added up, or whole; in one shape that can be compared."""

from __future__ import annotations

from typing import Any

from tests.fakes.api_world import World, sse


def fold(chunks: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """A stream added up, with the rules of clients: id and name once, arguments in pieces."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            into = choices.setdefault(
                part["index"],
                {
                    "content": "",
                    "reasoning": "",
                    "calls": [],
                    "finish": [],
                    "stop_reason": None,
                    "logprobs": [],
                },
            )
            delta = part["delta"]
            into["content"] += delta.get("content") or ""
            into["reasoning"] += delta.get("reasoning") or ""
            into["logprobs"] += (part["logprobs"] or {"content": []})["content"]
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    assert call["index"] == len(into["calls"])
                    assert call["type"] == "function"
                    into["calls"].append([call["function"]["name"], ""])
                else:
                    assert "name" not in call["function"]
                    assert "type" not in call
                into["calls"][call["index"]][1] += call["function"].get("arguments", "")
            if part["finish_reason"] is not None:
                into["finish"].append(part["finish_reason"])
                into["stop_reason"] = part["stop_reason"]
    return choices


def shape(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice of a whole answer in the shape that `fold` makes."""
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning", ""),
        "calls": [[c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls", [])],
        "finish": [choice["finish_reason"]],
        "stop_reason": choice["stop_reason"],
        "logprobs": (choice["logprobs"] or {"content": []})["content"],
    }


async def both(w: World, **body: Any) -> dict[str, Any]:
    """The first choice, after a check that the stream adds up to the whole, usage included."""
    answer = await w.chat(**body)
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    streamed = await w.chat(**body, stream=True, stream_options={"include_usage": True})
    chunks, done = sse(streamed.text)
    assert done
    folded = fold(chunks)
    assert [folded[c["index"]] for c in whole["choices"]] == [shape(c) for c in whole["choices"]]
    assert chunks[-1]["usage"] == whole["usage"]
    return {**folded[0], "usage": whole["usage"], "message": whole["choices"][0]["message"], "body": whole}
