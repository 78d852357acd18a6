"""Events to Cohere's v2 chat: typed events of a stream, or one answer folded from those same events.

Order: message-start, then contents (start, deltas, end) and calls of tools (start, deltas, end) as the
model made them, message-end with the reason and the usage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from octavo.api.generation import Usage
from octavo.api.text.parts import CallPart, ContentPart, Part, ReasoningPart
from octavo.api.text.pipeline import ChoiceEvent, TokenEntry
from octavo.api.writers.shapes import UsageShape, finite
from octavo.api.writers.sse import Framing, named_frame

Event = dict[str, Any]
_REASONS = {"stop": "COMPLETE", "length": "MAX_TOKENS", "tool_calls": "TOOL_CALL"}


def _message(value: Event | list[Event]) -> bytes:
    events = value if isinstance(value, list) else [value]
    return b"".join(named_frame(event["type"], event) for event in events)


def _error(body: dict[str, Any]) -> bytes:
    """A stream that breaks says so where clients look for its end."""
    delta = {"finish_reason": "ERROR", "error": str(body["error"]["message"])}
    return _message({"type": "message-end", "delta": delta})


FRAMING = Framing(message=_message, error=_error)


@dataclass(frozen=True, slots=True, kw_only=True)
class CohereOptions:
    id: str
    usage: Callable[[], Usage]  # exact at every moment
    logprobs: bool = False


class CohereStream:
    """Events of one answer."""

    def __init__(self, options: CohereOptions) -> None:
        self._options = options
        self._is_started = False
        self._open: str | None = None  # "text", "thinking" or "call"
        self._num_contents = 0
        self._num_calls = 0
        self._call: int | None = None
        self._waiting: list[Event] = []  # logprobs that no delta has carried yet
        self._last: ChoiceEvent | None = None

    def chunks(self, event: ChoiceEvent) -> Iterator[Event]:
        if not self._is_started:
            self._is_started = True
            message = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
            yield {"type": "message-start", "id": self._options.id, "delta": {"message": message}}
        if self._options.logprobs:
            self._waiting += map(_scored, event.entries)
        for part in event.ordered:
            yield from self._part(part)
        if event.is_last:
            self._last = event

    def usage(self, usage: UsageShape) -> list[Event]:
        """What closes the answer."""
        events: list[Event] = []
        if not self._num_contents and not self._num_calls:
            events += self._begin("text")
        if self._open == "text":
            events += self._scores()
        events += self._end()
        ending: Event = {"finish_reason": self._reason(), "usage": usage_of(self._options.usage())}
        last: Event = {"type": "message-end", "id": self._options.id, "delta": ending}
        if self._waiting:
            last["logprobs"] = self._waiting
        return [*events, last]

    def _part(self, part: Part) -> Iterator[Event]:
        if isinstance(part, CallPart):
            yield from self._call_part(part)
            return
        kind = "text" if isinstance(part, ContentPart) else "thinking"
        if not part.text:
            return
        if self._open != kind:
            yield from self._begin(kind)
        delta = self._delta({kind: part.text})
        if self._waiting and isinstance(part, ContentPart | ReasoningPart):
            delta["logprobs"] = self._waiting.pop(0)
        yield delta
        yield from self._scores()

    def _scores(self) -> Iterator[Event]:
        """One delta without text for each token that is still to be scored: an item is one token."""
        while self._waiting:
            yield self._delta({"text" if self._open == "text" else "thinking": ""}) | {
                "logprobs": self._waiting.pop(0)
            }

    def _call_part(self, part: CallPart) -> Iterator[Event]:
        if self._open != "call" or self._call != part.index:
            yield from self._end()
            self._open, self._call = "call", part.index
            self._num_calls += 1
            function = {"name": part.name or "", "arguments": ""}
            call = {"id": part.id or "", "type": "function", "function": function}
            yield {
                "type": "tool-call-start",
                "index": self._num_calls - 1,
                "delta": {"message": {"tool_calls": call}},
            }
        if part.arguments:
            yield {
                "type": "tool-call-delta",
                "index": self._num_calls - 1,
                "delta": {"message": {"tool_calls": {"function": {"arguments": part.arguments}}}},
            }

    def _begin(self, kind: str) -> list[Event]:
        events = self._end()
        self._open = kind
        self._num_contents += 1
        content = {"type": kind, kind: ""}
        events.append(
            {
                "type": "content-start",
                "index": self._num_contents - 1,
                "delta": {"message": {"content": content}},
            }
        )
        return events

    def _end(self) -> list[Event]:
        is_call, is_open = self._open == "call", self._open is not None
        self._open = self._call = None
        if not is_open:
            return []
        if is_call:
            return [{"type": "tool-call-end", "index": self._num_calls - 1}]
        return [{"type": "content-end", "index": self._num_contents - 1}]

    def _delta(self, content: Event) -> Event:
        return {
            "type": "content-delta",
            "index": self._num_contents - 1,
            "delta": {"message": {"content": content}},
        }

    def _reason(self) -> str:
        finish = None if self._last is None else self._last.finish
        stop = None if self._last is None else self._last.stop_reason
        if finish == "stop" and isinstance(stop, str):
            return "STOP_SEQUENCE"
        return _REASONS.get((None if self._last is None else self._last.reason) or "", "ERROR")


def usage_of(usage: Usage) -> Event:
    counts = {"input_tokens": usage.prompt, "output_tokens": usage.completion}
    return {"billed_units": dict(counts), "tokens": counts, "cached_tokens": usage.cached}


def _scored(entry: TokenEntry) -> Event:
    return {"text": entry.text, "token_ids": [entry.token_id], "logprobs": [finite(entry.logprob)]}


class CohereFold:
    """The answer that is not streamed: the sum of the events that a stream would have carried."""

    def __init__(self, options: CohereOptions) -> None:
        self._options = options
        self._stream = CohereStream(options)
        self._contents: list[tuple[str, list[str]]] = []
        self._calls: list[tuple[Event, list[str]]] = []
        self._logprobs: list[Event] = []
        self._ending: Event = {}

    def add(self, event: ChoiceEvent) -> None:
        for chunk in self._stream.chunks(event):
            self._apply(chunk)

    def result(self, usage: UsageShape) -> Event:
        for chunk in self._stream.usage(usage):
            self._apply(chunk)
        message: Event = {"role": "assistant"}
        if self._contents:
            message["content"] = [{"type": k, k: "".join(pieces)} for k, pieces in self._contents]
        if self._calls:
            message["tool_calls"] = [
                call | {"function": {"name": call["function"]["name"], "arguments": "".join(pieces)}}
                for call, pieces in self._calls
            ]
        answer = {"id": self._options.id, "message": message, **self._ending}
        if self._options.logprobs:
            answer["logprobs"] = self._logprobs
        return answer

    def _apply(self, event: Event) -> None:
        kind = event["type"]
        scored = event.get("logprobs", [])
        self._logprobs += scored if isinstance(scored, list) else [scored]
        if kind == "content-start":
            content = event["delta"]["message"]["content"]
            self._contents.append((content["type"], []))
        elif kind == "content-delta":
            name, pieces = self._contents[event["index"]]
            pieces.append(event["delta"]["message"]["content"].get(name, ""))
        elif kind == "tool-call-start":
            self._calls.append((event["delta"]["message"]["tool_calls"], []))
        elif kind == "tool-call-delta":
            call = event["delta"]["message"]["tool_calls"]
            self._calls[event["index"]][1].append(call["function"]["arguments"])
        elif kind == "message-end":
            self._ending = event["delta"]
