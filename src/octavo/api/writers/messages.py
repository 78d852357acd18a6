"""Events to Anthropic's Messages API: named events of a stream, or one message folded from those same events.

Order: message_start, ping, then one content block after the other (start, deltas, stop), message_delta
with the reason and the usage, message_stop.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from octavo.api.dialects.errors import anthropic_error
from octavo.api.generation import Usage
from octavo.api.text.parts import CallPart, ContentPart, Part, ReasoningPart
from octavo.api.text.pipeline import ChoiceEvent
from octavo.api.writers.shapes import UsageShape
from octavo.api.writers.sse import Framing, named_frame

Event = dict[str, Any]
_PING: Event = {"type": "ping"}
_REASONS = {"stop": "end_turn", "tool_calls": "tool_use"}
_CUT = "max_tokens"  # also what was ended from outside: the answer is not whole
#: The key under which arguments that are no JSON object are shown, as Anthropic advises clients to send them.
INVALID_JSON = "INVALID_JSON"


def _message(value: Event | list[Event]) -> bytes:
    events = value if isinstance(value, list) else [value]
    return b"".join(named_frame(event["type"], event) for event in events)


FRAMING = Framing(
    message=_message,
    error=lambda body: named_frame("error", anthropic_error(body)),
    end=b"",
    keep_alive=_message(_PING),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions:
    """`usage` is exact at every moment. `is_cut`: max_tokens was more than the context had left."""

    id: str
    model: str
    usage: Callable[[], Usage]
    is_cut: bool = False
    shows_thoughts: bool = True


class MessageStream:
    """Events of one message. Holds no text beyond the block that is open."""

    def __init__(self, options: MessageOptions) -> None:
        self._options = options
        self._is_started = False
        self._num_blocks = 0
        self._open: str | None = None  # type of the open block
        self._call: int | None = None  # the call that it is
        self._thoughts = hashlib.sha256()
        self._last: ChoiceEvent | None = None

    def chunks(self, event: ChoiceEvent) -> Iterator[Event]:
        if not self._is_started:
            self._is_started = True
            yield self._start()
            yield _PING
        for part in event.ordered:
            yield from self._part(part)
        if event.is_last:
            self._last = event

    def usage(self, usage: UsageShape) -> list[Event]:
        """What closes the message. Its usage is the whole, so it stands here and not in the pieces."""
        events: list[Event] = []
        if not self._num_blocks:  # clients look at the first block
            events += self._begin("text", {"type": "text", "text": ""})
        events += self._end()
        delta = self._ending()
        events.append({"type": "message_delta", "delta": delta, "usage": self._usage(self._options.usage())})
        events.append({"type": "message_stop"})
        return events

    def _start(self) -> Event:
        options = self._options
        before = options.usage()
        shape = self._usage(Usage(before.prompt, before.cached, 0)) | {"service_tier": "standard"}
        message: Event = {
            "id": options.id,
            "type": "message",
            "role": "assistant",
            "model": options.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": shape,
        }
        return {"type": "message_start", "message": message}

    def _part(self, part: Part) -> Iterator[Event]:
        if isinstance(part, ContentPart):
            if part.text:
                if self._open != "text":
                    yield from self._begin("text", {"type": "text", "text": ""})
                yield self._delta("text_delta", text=part.text)
        elif isinstance(part, ReasoningPart):
            if part.text:
                if self._open != "thinking":
                    yield from self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                self._thoughts.update(part.text.encode("utf-8", "surrogatepass"))
                if self._options.shows_thoughts:
                    yield self._delta("thinking_delta", thinking=part.text)
        else:
            yield from self._call_part(part)

    def _call_part(self, part: CallPart) -> Iterator[Event]:
        if self._open != "tool_use" or self._call != part.index:
            block = {"type": "tool_use", "id": part.id or "", "name": part.name or "", "input": {}}
            yield from self._begin("tool_use", block)
            self._call = part.index
        if part.arguments:
            yield self._delta("input_json_delta", partial_json=part.arguments)

    def _begin(self, kind: str, block: Event) -> list[Event]:
        events = self._end()
        self._open = kind
        self._thoughts = hashlib.sha256()
        self._num_blocks += 1
        events.append({"type": "content_block_start", "index": self._num_blocks - 1, "content_block": block})
        return events

    def _end(self) -> list[Event]:
        if self._open is None:
            return []
        events = []
        if self._open == "thinking":
            events.append(self._delta("signature_delta", signature=_signature(self._thoughts)))
        events.append({"type": "content_block_stop", "index": self._num_blocks - 1})
        self._open = self._call = None
        return events

    def _delta(self, kind: str, **value: str) -> Event:
        return {
            "type": "content_block_delta",
            "index": self._num_blocks - 1,
            "delta": {"type": kind, **value},
        }

    def _ending(self) -> Event:
        """{stop_reason, stop_sequence}."""
        finish = None if self._last is None else self._last.finish
        stop = None if self._last is None else self._last.stop_reason
        if finish == "stop" and isinstance(stop, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        reason = _REASONS.get((None if self._last is None else self._last.reason) or "", _CUT)
        if finish == "length" and self._options.is_cut:
            reason = "model_context_window_exceeded"
        return {"stop_reason": reason, "stop_sequence": None}

    @staticmethod
    def _usage(usage: Usage) -> Event:
        """Tokens that were found in the prefix cache are counted apart from those that were not."""
        shape: Event = {
            "input_tokens": usage.prompt - usage.cached,
            "cache_creation_input_tokens": 0,  # nothing is paid for what is kept
            "cache_read_input_tokens": usage.cached,
            "output_tokens": usage.completion,
        }
        if usage.reasoning:
            shape["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
        return shape


def _signature(thoughts: Any) -> str:
    """A hash of the thoughts: the API wants a value, and the same thoughts get the same. It proves nothing."""
    return b64encode(thoughts.digest()).decode()


class MessageFold:
    """The answer that is not streamed: the sum of the events that a stream would have carried."""

    def __init__(self, options: MessageOptions) -> None:
        self._stream = MessageStream(options)
        self._events: list[Event] = []
        self._message: Event = {}
        self._arguments: dict[int, list[str]] = {}

    def add(self, event: ChoiceEvent) -> None:
        for chunk in self._stream.chunks(event):
            self._apply(chunk)

    def result(self, usage: UsageShape) -> Event:
        for chunk in self._stream.usage(usage):
            self._apply(chunk)
        for block in self._message["content"]:
            for key in ("text", "thinking"):
                if key in block:
                    block[key] = "".join(block[key])
        for index, pieces in self._arguments.items():
            self._message["content"][index]["input"] = arguments_of("".join(pieces))
        return self._message

    def _apply(self, event: Event) -> None:
        kind = event["type"]
        if kind == "message_start":
            self._message = event["message"]
        elif kind == "content_block_start":
            block = dict(event["content_block"])
            for key in ("text", "thinking"):
                if key in block:
                    block[key] = []
            self._message["content"].append(block)
        elif kind == "content_block_delta":
            self._apply_delta(event["index"], event["delta"])
        elif kind == "message_delta":
            self._message |= event["delta"]
            self._message["usage"] |= event["usage"]

    def _apply_delta(self, index: int, delta: Event) -> None:
        block = self._message["content"][index]
        for key in ("text", "thinking"):
            if key in delta:
                block[key].append(delta[key])
        if "signature" in delta:
            block["signature"] = delta["signature"]
        if "partial_json" in delta:
            self._arguments.setdefault(index, []).append(delta["partial_json"])


def arguments_of(text: str) -> dict[str, Any]:
    """The input of a tool. Of arguments that were cut off, what is whole, as Anthropic's client does it."""
    try:
        value = from_json(text, allow_partial=True) if text.strip() else {}
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {INVALID_JSON: text}
