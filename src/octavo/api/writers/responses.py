"""Events to the Responses API: numbered events in OpenAI's order; the response is what they add up to.

Order: created, (queued,) in_progress; for each item added, its pieces, done; then completed, incomplete
or failed. One writer makes both modes: a response that is not streamed is the last event's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from octavo.api.text.pipeline import CallPart, ChoiceEvent, ContentPart, ReasoningPart
from octavo.api.writers.response_logprobs import LogprobSplitter
from octavo.api.writers.shapes import UsageShape
from octavo.api.writers.sse import named_frame

Event = dict[str, Any]
MAX_OUTPUT, CANCELLED = "max_output_tokens", "cancelled"


def event_frame(event: Event) -> bytes:
    return named_frame(event["type"], event)


def event_frames(events: list[Event]) -> bytes:
    return b"".join(map(event_frame, events))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseOptions:
    """`echo` is what the response repeats of the request. `has_logprobs`: with each text its logprobs."""

    id: str
    created: int
    echo: dict[str, Any]
    has_logprobs: bool = False
    top_logprobs: int = 0
    shows_reasoning: bool = True
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Open:
    """An item that still grows."""

    kind: str  # "message" | "reasoning" | "function_call"
    id: str
    index: int
    call_index: int = -1
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""

    def part(self) -> dict[str, Any]:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": [*self.logprobs]}

    def shape(self, status: str, *, is_new: bool = False) -> dict[str, Any]:
        head = {"id": self.id, "type": self.kind, "status": status}
        if self.kind == "function_call":
            return {**head, "call_id": self.call_id, "name": self.name, "arguments": self.text}
        content = [] if is_new else [self.part()]
        if self.kind == "reasoning":
            return {**head, "summary": [], "content": content}
        return {**head, "role": "assistant", "content": content}


class ResponseWriter:
    """One response. `status` is OpenAI's; `output` holds the items that are done."""

    def __init__(self, options: ResponseOptions) -> None:
        self.status = "in_progress"
        self.output: list[dict[str, Any]] = []
        self._options = options
        self._sequence = 0
        self._open: _Open | None = None
        self._splitter = LogprobSplitter(options.top_logprobs) if options.has_logprobs else None
        self._finish: str | None = None
        self._usage: dict[str, Any] | None = None
        self._error: dict[str, Any] | None = None
        self._details: dict[str, Any] | None = None
        self._completed: int | None = None
        self._base = options.id.removeprefix("resp_")

    # ---- the whole ------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """The response as it is now, an unfinished item included."""
        output = list(self.output)
        if self._open is not None:
            output.append(self._open.shape("in_progress"))
        return {
            "id": self._options.id,
            "object": "response",
            "created_at": self._options.created,
            "status": self.status,
            "completed_at": self._completed,
            "error": self._error,
            "incomplete_details": self._details,
            **self._options.echo,
            "output": output,
            "usage": self._usage,
            **({"warnings": self._options.warnings} if self._options.warnings else {}),
        }

    @property
    def is_ended(self) -> bool:
        return self.status not in ("queued", "in_progress")

    # ---- events ---------------------------------------------------------------------------------

    def opening(self, *, queued: bool = False) -> list[Event]:
        """What comes before any output. With `queued`, `starting` is to follow when work begins."""
        if queued:
            self.status = "queued"
            return [self._lifecycle("created"), self._lifecycle("queued")]
        return [self._lifecycle("created"), *self.starting()]

    def starting(self) -> list[Event]:
        self.status = "in_progress"
        return [self._lifecycle("in_progress")]

    def chunks(self, event: ChoiceEvent) -> Iterator[Event]:
        """Everything that an event of the choice has to say, in order."""
        if self._splitter is not None:
            self._splitter.take(event)
        for part in event.ordered:
            if isinstance(part, CallPart):
                yield from self._call(part)
            elif isinstance(part, ReasoningPart):
                if part.text and self._options.shows_reasoning:
                    yield from self._text("reasoning", part.text, [])
            elif isinstance(part, ContentPart) and part.text:
                logprobs = self._splitter.of(part) if self._splitter is not None else []
                yield from self._text("message", part.text, logprobs)
        if event.finish is not None:
            self._finish = event.reason

    def usage(self, usage: UsageShape) -> list[Event]:
        """The end of a response that went well: closes what is open, then the last event."""
        self._usage = usage_of(usage)
        is_cut = self._finish != "stop" and self._finish != "tool_calls"
        events = list(self._close(is_cut=is_cut))
        has_answer = any(item["type"] != "reasoning" for item in self.output)
        if not has_answer and not (is_cut and self.output):  # an empty answer is an answer
            events += self._start("message")
            events += self._close(is_cut=is_cut)
        if self._finish == "abort":
            return events + self.fail("server_error", "the request was ended by the server")
        if is_cut:
            self.status, self._details = "incomplete", {"reason": MAX_OUTPUT}
            return [*events, self._lifecycle("incomplete")]
        self.status, self._completed = "completed", int(time.time())
        return [*events, self._lifecycle("completed")]

    def fail(self, code: str, message: str) -> list[Event]:
        events = list(self._close(is_cut=True))
        self.status, self._error = "failed", {"code": code, "message": message}
        return [*events, self._lifecycle("failed")]

    def cancel(self, usage: UsageShape) -> list[Event]:
        """The client took it back. OpenAI has no event of that name: the last one is `incomplete`."""
        events = list(self._close(is_cut=True))
        self._usage = usage_of(usage)
        self.status = CANCELLED
        return [*events, self._lifecycle("incomplete")]

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": f"response.{kind}", "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event

    def _lifecycle(self, kind: str) -> Event:
        return self._event(kind, response=self.snapshot())

    # ---- items ----------------------------------------------------------------------------------

    def _text(self, kind: str, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        if self._open is None or self._open.kind != kind:
            yield from self._close(is_cut=False)
            yield from self._start(kind)
        item = self._open
        assert item is not None
        item.pieces.append(text)
        name = "reasoning_text" if kind == "reasoning" else "output_text"
        event = self._event(f"{name}.delta", **self._place(item), content_index=0, delta=text)
        if kind == "message":
            event["logprobs"] = logprobs
            item.logprobs += logprobs
        yield event

    def _call(self, part: CallPart) -> Iterator[Event]:
        item = self._open
        if item is None or item.kind != "function_call" or item.call_index != part.index:
            yield from self._close(is_cut=False)
            yield from self._start("function_call", part)
            item = self._open
        assert item is not None
        if part.arguments:
            item.pieces.append(part.arguments)
            yield self._event("function_call_arguments.delta", **self._place(item), delta=part.arguments)

    def _start(self, kind: str, call: CallPart | None = None) -> Iterator[Event]:
        index = len(self.output)
        tag = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        item = self._open = _Open(kind, f"{tag}_{self._base}_{index}", index)
        if call is not None:
            item.call_index, item.name = call.index, call.name or ""
            item.call_id = call.id or f"call_{self._base}_{call.index}"
        yield self._event(
            "output_item.added", output_index=index, item=item.shape("in_progress", is_new=True)
        )
        if kind != "function_call":
            yield self._event("content_part.added", **self._place(item), content_index=0, part=item.part())

    def _close(self, *, is_cut: bool) -> Iterator[Event]:
        """Ends the open item; `is_cut` when the answer ended inside it."""
        item = self._open
        if item is None:
            return
        if item.kind == "message" and self._splitter is not None and (late := self._splitter.rest()):
            yield from self._text("message", "", late)
        place, text = self._place(item), item.text
        if item.kind == "function_call":
            is_cut = is_cut and not _is_json(text)
            yield self._event("function_call_arguments.done", **place, name=item.name, arguments=text)
        else:
            name = "reasoning_text" if item.kind == "reasoning" else "output_text"
            event = self._event(f"{name}.done", **place, content_index=0, text=text)
            if item.kind == "message":
                event["logprobs"] = [*item.logprobs]
            yield event
            yield self._event("content_part.done", **place, content_index=0, part=item.part())
        shape = item.shape("incomplete" if is_cut else "completed")
        self.output.append(shape)
        self._open = None
        yield self._event("output_item.done", output_index=item.index, item=shape)

    @staticmethod
    def _place(item: _Open) -> dict[str, Any]:
        return {"item_id": item.id, "output_index": item.index}


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def usage_of(usage: UsageShape) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.completion_tokens_details.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
