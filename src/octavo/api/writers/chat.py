"""Events to OpenAI's chat dialect: chunks of a stream, or one answer folded from the same events.

Order per choice: the role, text, one empty delta with the reason. Then usage when asked for, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from octavo.api.text.codec import TextCodec
from octavo.api.text.parts import CallPart, ContentPart, Part, ReasoningPart
from octavo.api.text.pipeline import ChoiceEvent
from octavo.api.writers.shapes import (
    ChatLogprob,
    ChatLogprobs,
    UsageShape,
    chat_logprobs,
    prompt_logprobs_shape,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What a request wants to see. `echo` is the text shown before the answer."""

    id: str
    model: str
    created: int
    fingerprint: str
    role: str = "assistant"
    logprobs: bool = False
    top_logprobs: int = 0
    tokens_as_ids: bool = False
    return_token_ids: bool = False
    prompt_ids: list[int] = field(default_factory=list)
    prompt_text: str | None = None
    echo: str = ""
    warnings: list[str] = field(default_factory=list)
    include_reasoning: bool = True
    reasoning_alias: bool = False  # the older name, reasoning_content, too


class FunctionDelta(msgspec.Struct, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class CallDelta(msgspec.Struct, omit_defaults=True):
    """`id`, `type` and the name come once, with a call's first piece."""

    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None


class Delta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None

    @property
    def is_empty(self) -> bool:
        return self == Delta()


class ChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | msgspec.UnsetType | None = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[Any] | msgspec.UnsetType = msgspec.UNSET


class Chunk(msgspec.Struct, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: UsageShape | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_text: str | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


class ChatStream:
    """Chunks of one request."""

    def __init__(self, options: ChatOptions, codec: TextCodec) -> None:
        self._options = options
        self._codec = codec
        self._started: set[int] = set()

    def chunks(self, event: ChoiceEvent) -> Iterator[Chunk]:
        """Everything that an event has to say, in order."""
        if event.index not in self._started:
            yield from self._start(event.index)
        yield from self._write(event)

    def _start(self, index: int) -> Iterator[Chunk]:
        """The role; then the echo. The first chunk of the stream carries what concerns the whole request."""
        options = self._options
        chunk = self._chunk(ChunkChoice(index=index, delta=Delta(role=options.role, content="")))
        is_first = not self._started
        self._started.add(index)
        if is_first:
            if options.return_token_ids:
                chunk.prompt_token_ids = options.prompt_ids
            if options.prompt_text is not None:
                chunk.prompt_text = options.prompt_text
            if options.warnings:
                chunk.warnings = options.warnings
        yield chunk
        if options.echo:
            yield self._chunk(ChunkChoice(index=index, delta=Delta(content=options.echo)))

    def _write(self, event: ChoiceEvent) -> Iterator[Chunk]:
        options = self._options
        has_ids = options.return_token_ids and bool(event.token_ids)
        has_logprobs = options.logprobs and bool(event.entries)
        deltas = list(self._deltas(event))
        if deltas or has_ids or has_logprobs or event.prompt_logprobs is not None:
            first, *rest = deltas or [Delta(content="")]
            choice = ChunkChoice(index=event.index, delta=first)
            if has_logprobs:
                choice.logprobs = chat_logprobs(
                    event.entries, options.top_logprobs, as_ids=options.tokens_as_ids
                )
            if has_ids:
                choice.token_ids = event.token_ids
            if event.prompt_logprobs is not None:
                choice.prompt_logprobs = prompt_logprobs_shape(
                    self._codec, event.prompt_logprobs, len(options.prompt_ids)
                )
            yield self._chunk(choice)
            for delta in rest:
                yield self._chunk(ChunkChoice(index=event.index, delta=delta))
        if event.finish is not None:
            yield self._chunk(
                ChunkChoice(
                    index=event.index,
                    delta=Delta(),
                    finish_reason=event.reason,
                    stop_reason=event.stop_reason,
                )
            )

    def _deltas(self, event: ChoiceEvent) -> Iterator[Delta]:
        """One delta for each part: several kinds in one would have no order."""
        options = self._options
        for part in event.ordered:
            if isinstance(part, ContentPart):
                yield Delta(content=part.text)
            elif isinstance(part, CallPart):
                yield Delta(tool_calls=[_call_delta(part)])
            elif options.include_reasoning:
                alias = part.text if options.reasoning_alias else None
                yield Delta(reasoning=part.text, reasoning_content=alias)

    def usage(self, usage: UsageShape) -> Chunk:
        chunk = self._chunk(None)
        chunk.usage = usage
        return chunk

    def _chunk(self, choice: ChunkChoice | None) -> Chunk:
        options = self._options
        return Chunk(
            id=options.id,
            created=options.created,
            model=options.model,
            system_fingerprint=options.fingerprint,
            choices=[] if choice is None else [choice],
        )


def _call_delta(part: CallPart) -> CallDelta:
    function = FunctionDelta(part.name, part.arguments)
    return CallDelta(part.index, part.id, "function" if part.id is not None else None, function)


@dataclass(slots=True)
class _FoldedCall:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def shape(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(slots=True)
class _Folded:
    parts: list[str]
    reasoning: list[str] = field(default_factory=list)
    calls: list[_FoldedCall] = field(default_factory=list)
    logprobs: list[ChatLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: list[Any] | None = None
    finish: str | None = None
    stop_reason: int | str | None = None

    def add(self, part: Part) -> None:
        if isinstance(part, ContentPart):
            self.parts.append(part.text)
        elif isinstance(part, ReasoningPart):
            self.reasoning.append(part.text)
        else:
            if part.id is not None:
                self.calls.append(_FoldedCall(part.id, part.name or ""))
            self.calls[-1].arguments.append(part.arguments)


class ChatFold:
    """The answer that is not streamed: the sum of the events that a stream would have carried."""

    def __init__(self, options: ChatOptions, codec: TextCodec, num_choices: int) -> None:
        self._options = options
        self._codec = codec
        self._choices = [_Folded([options.echo]) for _ in range(num_choices)]

    def add(self, event: ChoiceEvent) -> None:
        options = self._options
        choice = self._choices[event.index]
        for part in event.ordered:
            choice.add(part)
        choice.token_ids += event.token_ids
        if options.logprobs:
            choice.logprobs += chat_logprobs(
                event.entries, options.top_logprobs, as_ids=options.tokens_as_ids
            ).content
        if event.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs_shape(
                self._codec, event.prompt_logprobs, len(options.prompt_ids)
            )
        if event.is_last:
            choice.finish, choice.stop_reason = event.reason, event.stop_reason

    def result(self, usage: UsageShape) -> dict[str, Any]:
        options = self._options
        body: dict[str, Any] = {
            "id": options.id,
            "object": "chat.completion",
            "created": options.created,
            "model": options.model,
            "system_fingerprint": options.fingerprint,
            "choices": [self._choice(i, c) for i, c in enumerate(self._choices)],
            "usage": usage,
        }
        if options.return_token_ids:
            body["prompt_token_ids"] = options.prompt_ids
        if options.prompt_text is not None:
            body["prompt_text"] = options.prompt_text
        if options.warnings:
            body["warnings"] = options.warnings
        return body

    def _message(self, folded: _Folded) -> dict[str, Any]:
        """Content is null where there are calls and nothing else was said."""
        content, thought = "".join(folded.parts), "".join(folded.reasoning)
        message: dict[str, Any] = {"role": self._options.role, "content": content, "refusal": None}
        if thought and self._options.include_reasoning:
            message["reasoning"] = thought
            if self._options.reasoning_alias:
                message["reasoning_content"] = thought
        if folded.calls:
            message["content"] = content or None
            message["tool_calls"] = [call.shape() for call in folded.calls]
        return message

    def _choice(self, index: int, folded: _Folded) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "message": self._message(folded),
            "logprobs": ChatLogprobs(folded.logprobs) if self._options.logprobs else None,
            "finish_reason": folded.finish,
            "stop_reason": folded.stop_reason,
        }
        if self._options.return_token_ids:
            choice["token_ids"] = folded.token_ids
        if folded.prompt_logprobs is not None:
            choice["prompt_logprobs"] = folded.prompt_logprobs
        return choice
