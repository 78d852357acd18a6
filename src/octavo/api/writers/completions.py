"""Events to OpenAI's completions dialect: chunks of a stream, or one answer folded from the same chunks.

The legacy layout of logprobs names tokens by text: one that is no text by itself is spelled
'bytes:\\xf0\\x9f', so that the names in `tokens` are keys of `top_logprobs` and none hides another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from octavo.api.prompt import Prompt
from octavo.api.text.codec import TextCodec
from octavo.api.text.detokenise import Detokeniser, decode_whole
from octavo.api.text.pipeline import Alternative, ChoiceEvent, TokenEntry, spell
from octavo.api.writers.shapes import UsageShape, finite, prompt_logprobs_shape
from octavo.wire.messages import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOptions:
    """What a request wants to see. `prompt_logprobs` asks for the field; echo with logprobs does not."""

    id: str
    model: str
    created: int
    fingerprint: str
    logprobs: int | None = None
    prompt_logprobs: bool = False
    tokens_as_ids: bool = False
    return_token_ids: bool = False
    echo: bool = False
    skip_special_tokens: bool = True
    hides_output: bool = False
    warnings: list[str] = field(default_factory=list)


class LegacyLogprobs(msgspec.Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []

    def extend(self, other: LegacyLogprobs) -> None:
        self.tokens += other.tokens
        self.token_logprobs += other.token_logprobs
        self.top_logprobs += other.top_logprobs
        self.text_offset += other.text_offset


class TextChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: LegacyLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | msgspec.UnsetType | None = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[Any] | msgspec.UnsetType = msgspec.UNSET


class TextChunk(msgspec.Struct, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: UsageShape | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


class CompletionStream:
    """Choices of one request, in the order of their events."""

    def __init__(
        self, options: CompletionOptions, codec: TextCodec, prompt_of: Callable[[int], Prompt]
    ) -> None:
        self._options = options
        self._codec = codec
        self._prompt_of = prompt_of  # of a choice, by its index
        self._echoed: dict[int, int] = {}  # choice -> characters shown before its text
        self._is_started = False

    def chunks(self, event: ChoiceEvent) -> Iterator[TextChunk]:
        """Everything that an event has to say, in order. The first chunk carries what concerns the request."""
        for choice in self.choices(event):
            chunk = self.chunk(choice)
            if not self._is_started and self._options.warnings:
                chunk.warnings = self._options.warnings
            self._is_started = True
            yield chunk

    def usage(self, usage: UsageShape) -> TextChunk:
        chunk = self.chunk(None)
        chunk.usage = usage
        return chunk

    def choices(self, event: ChoiceEvent) -> Iterator[TextChoice]:
        """The choice's news: its prompt once (echo, ids, logprobs), text, and one empty choice with the reason."""
        options = self._options
        if event.index not in self._echoed:
            yield from self._prompt(event, self._prompt_of(event.index))
        if not options.hides_output:
            yield from self._text(event)
        if event.finish is not None:
            finish = "length" if options.hides_output else event.finish
            reason = None if options.hides_output else event.stop_reason
            yield TextChoice(index=event.index, text="", finish_reason=finish, stop_reason=reason)

    def _prompt(self, event: ChoiceEvent, prompt: Prompt) -> Iterator[TextChoice]:
        options = self._options
        text = self._echo_text(prompt) if options.echo else ""
        self._echoed[event.index] = len(text)
        choice = TextChoice(index=event.index, text=text)
        scored = event.prompt_logprobs
        if options.return_token_ids:
            choice.prompt_token_ids = prompt.ids
        if scored is not None and options.prompt_logprobs:
            choice.prompt_logprobs = prompt_logprobs_shape(self._codec, scored, len(prompt.ids))
        if scored is not None and options.echo and options.logprobs is not None:
            choice.logprobs = self._prompt_entries(prompt, scored)
        if options.echo or options.return_token_ids or choice.prompt_logprobs is not msgspec.UNSET:
            yield choice

    def _echo_text(self, prompt: Prompt) -> str:
        if prompt.text is not None and not prompt.was_truncated:
            return prompt.text
        return decode_whole(self._codec, prompt.ids, skip_special_tokens=self._options.skip_special_tokens)

    def _text(self, event: ChoiceEvent) -> Iterator[TextChoice]:
        options = self._options
        has_ids = options.return_token_ids and bool(event.token_ids)
        has_logprobs = options.logprobs is not None and bool(event.entries)
        if not (event.text or has_ids or has_logprobs):
            return
        choice = TextChoice(index=event.index, text=event.text)
        if has_logprobs:
            choice.logprobs = self._legacy(event.entries, self._echoed[event.index])
        if has_ids:
            choice.token_ids = event.token_ids
        yield choice

    def _legacy(self, entries: list[TokenEntry], shift: int) -> LegacyLogprobs:
        out = LegacyLogprobs()
        as_ids = self._options.tokens_as_ids
        for entry in entries:
            name = f"token_id:{entry.token_id}" if as_ids else entry.spelling
            top = {name: finite(entry.logprob)}
            for other in entry.top[: self._num_top(entry)]:
                if other.token_id != entry.token_id:
                    top[_free_name(other, top, as_ids=as_ids)] = finite(other.logprob)
            out.tokens.append(name)
            out.token_logprobs.append(finite(entry.logprob))
            out.top_logprobs.append(top)
            out.text_offset.append(shift + entry.offset)
        return out

    def _num_top(self, entry: TokenEntry) -> int:
        asked = self._options.logprobs or 0
        return len(entry.top) if asked < 0 else asked

    def _prompt_entries(self, prompt: Prompt, scored: list[TokenLogprobs | None]) -> LegacyLogprobs:
        codec = self._codec
        detokeniser = Detokeniser(codec, skip_special_tokens=self._options.skip_special_tokens)
        missing: list[TokenLogprobs | None] = [None] * (len(prompt.ids) - len(scored))
        out = LegacyLogprobs()
        at = 0
        for token_id, score in zip(prompt.ids, missing + scored, strict=True):
            data = codec.token_bytes(token_id)
            top = [] if score is None else list(zip(score.top_ids, score.top_logprobs, strict=True))
            others = [Alternative(i, detokeniser.peek(i), codec.token_bytes(i), lp) for i, lp in top]
            text = detokeniser.push(token_id)
            spelling = text or spell(data, is_special=codec.is_special(token_id))
            if score is None:
                out.extend(LegacyLogprobs([self._name(token_id, spelling)], [None], [None], [at]))
            else:
                entry = TokenEntry(token_id, text, data, score.logprob, score.rank, at, others, spelling)
                out.extend(self._legacy([entry], 0))
            at += len(text)
        return out

    def _name(self, token_id: int, spelling: str) -> str:
        return f"token_id:{token_id}" if self._options.tokens_as_ids else spelling

    def chunk(self, choice: TextChoice | None) -> TextChunk:
        options = self._options
        return TextChunk(
            id=options.id,
            created=options.created,
            model=options.model,
            system_fingerprint=options.fingerprint,
            choices=[] if choice is None else [choice],
        )


def _free_name(other: Alternative, taken: dict[str, float], *, as_ids: bool) -> str:
    """A key that no earlier alternative has: the text, else the bytes, else the id."""
    if not as_ids:
        for name in (other.text, spell(other.data)):
            if name and name not in taken:
                return name
    return f"token_id:{other.token_id}"


class CompletionFold:
    """The answer that is not streamed: the sum of the choices that a stream would have carried."""

    def __init__(
        self,
        options: CompletionOptions,
        codec: TextCodec,
        prompt_of: Callable[[int], Prompt],
        num_choices: int,
    ) -> None:
        self._options = options
        self._stream = CompletionStream(options, codec, prompt_of)
        self._choices = [TextChoice(index=i, text="") for i in range(num_choices)]
        for choice in self._choices:
            choice.stop_reason = None
            if options.logprobs is not None:
                choice.logprobs = LegacyLogprobs()
            if options.return_token_ids:
                choice.token_ids = []

    def add(self, event: ChoiceEvent) -> None:
        for piece in self._stream.choices(event):
            choice = self._choices[piece.index]
            choice.text += piece.text
            if piece.logprobs is not None and choice.logprobs is not None:
                choice.logprobs.extend(piece.logprobs)
            for name in ("prompt_token_ids", "prompt_logprobs"):
                if getattr(piece, name) is not msgspec.UNSET:
                    setattr(choice, name, getattr(piece, name))
            if isinstance(piece.token_ids, list) and isinstance(choice.token_ids, list):
                choice.token_ids += piece.token_ids
            if piece.finish_reason is not None:
                choice.finish_reason, choice.stop_reason = piece.finish_reason, piece.stop_reason

    def result(self, usage: UsageShape) -> TextChunk:
        chunk = self._stream.chunk(None)
        chunk.choices = self._choices
        chunk.usage = usage
        if self._options.warnings:
            chunk.warnings = self._options.warnings
        return chunk
