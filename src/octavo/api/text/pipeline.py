"""One choice: deltas of the engine in, events out. The same events make the stream and its fold.

Owns detokenising, stop strings, the texts of logprobs and the finish reason. What comes out depends
on the tokens only, never on how they were grouped into deltas. Knows no dialect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.api.text.codec import TextCodec
from octavo.api.text.detokenise import Detokeniser
from octavo.api.text.stops import StopScanner
from octavo.wire.messages import FinishReason, TokenDelta, TokenLogprobs
from octavo.wire.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the k best. `text` is what the token would have added here, special tokens spelled out."""

    token_id: int
    text: str
    data: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """A chosen token. `text` and `data` are what it added to the answer: nothing for a token that ends it.

    A token that leaves a character unfinished has the text '' and its own bytes; the token that
    completes it has the whole character. So the texts join to the answer, and the bytes too.
    """

    token_id: int
    text: str
    data: bytes
    logprob: float
    rank: int
    offset: int  # characters of the answer before this token
    top: list[Alternative]
    spelling: str  # the token by itself, for layouts that need a name for it


@dataclass(slots=True)
class ContentPart:
    """A piece of the answer."""

    text: str


@dataclass(slots=True)
class ReasoningPart:
    """A piece of what the model thought before it answered."""

    text: str


@dataclass(slots=True)
class CallPart:
    """A piece of a tool call. `id` and `name` come once, with its first piece; then bytes of its arguments.

    `index` counts the calls of a choice from 0. The pieces of `arguments` join to one JSON text.
    """

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


Part = ContentPart | ReasoningPart | CallPart


@dataclass(slots=True)
class ChoiceEvent:
    """What a choice has to say. The last one has `finish` or `error`; its text comes before both.

    `parts` is what the output parsers made of the text, in order; None when no parser runs, and then
    all of it is content. `text` stays what the tokens added, markup and all. Writers read `ordered`.
    """

    index: int
    text: str = ""
    parts: list[Part] | None = None
    token_ids: list[int] = field(default_factory=list)
    entries: list[TokenEntry] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached: int | None = None
    finish: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    @property
    def is_last(self) -> bool:
        return self.finish is not None or self.error is not None

    @property
    def ordered(self) -> list[Part]:
        """Content, reasoning and pieces of tool calls, as they came."""
        if self.parts is not None:
            return self.parts
        return [ContentPart(self.text)] if self.text else []

    @property
    def is_empty(self) -> bool:
        return not (
            self.text or self.parts or self.token_ids or self.is_last or self.prompt_logprobs is not None
        )


class ChoicePipeline:
    """`num_tokens` counts what the client pays for: up to and with the token that completed a stop."""

    def __init__(
        self, codec: TextCodec, params: SamplingParams, *, index: int = 0, prompt: Sequence[int] = ()
    ) -> None:
        self.index = index
        self.num_tokens = 0
        self.is_finished = False
        self._codec = codec
        self._params = params
        self._detokeniser = Detokeniser(codec, prompt, skip_special_tokens=params.skip_special_tokens)
        self._scanner = StopScanner(params.stop, include_stop=params.include_stop_str_in_output)
        self._num_seen = 0
        self._num_chars = 0
        self._withheld: list[tuple[int, TokenEntry | None]] = []

    def feed(self, delta: TokenDelta) -> ChoiceEvent:
        """The event of one delta; empty when everything is still held back."""
        event = ChoiceEvent(self.index, prompt_logprobs=delta.prompt_logprobs, num_cached=delta.num_cached)
        if self.is_finished:
            return event
        last = len(delta.token_ids) - 1
        for i, token_id in enumerate(delta.token_ids):
            scored = delta.logprobs[i] if delta.logprobs is not None and i < len(delta.logprobs) else None
            ends = i == last and delta.finish == FinishReason.STOP
            if self._take(event, token_id, scored, ends=ends):
                return event
        if delta.finish is not None:
            self._close(event, delta)
        return event

    def _take(self, event: ChoiceEvent, token_id: int, scored: TokenLogprobs | None, *, ends: bool) -> bool:
        """One token; true when a stop string has ended the choice."""
        self._num_seen += 1
        # The token that ended the answer belongs to the ids and the count, not to the text.
        is_text = not ends or self._params.include_stop_str_in_output
        alternatives = self._alternatives(scored)
        is_visible = is_text and self._detokeniser.is_visible(token_id)
        text = self._detokeniser.push(token_id) if is_visible else ""
        entry = None
        if scored is not None:
            data = self._codec.token_bytes(token_id)
            entry = TokenEntry(
                token_id,
                text,
                data if is_visible else b"",
                scored.logprob,
                scored.rank,
                self._num_chars,
                alternatives,
                text or spell(data, is_special=self._codec.is_special(token_id)),
            )
        self._num_chars += len(text)
        event.text += self._scanner.push(text, counts=self._num_seen > self._params.min_tokens)
        self._withheld.append((token_id, entry))
        if self._scanner.match is not None:
            self._stop(event)
            return True
        if not self._scanner.is_undecided or self._num_seen == self._scanner.completed_push:
            self._release(event, len(self._withheld))
        return False

    def _alternatives(self, scored: TokenLogprobs | None) -> list[Alternative]:
        if scored is None:
            return []
        peek, data = self._detokeniser.peek, self._codec.token_bytes
        return [
            Alternative(i, peek(i), data(i), logprob)
            for i, logprob in zip(scored.top_ids, scored.top_logprobs, strict=True)
        ]

    def _release(self, event: ChoiceEvent, count: int) -> None:
        for token_id, entry in self._withheld[:count]:
            event.token_ids.append(token_id)
            if entry is not None:
                event.entries.append(entry)
        self.num_tokens += count
        del self._withheld[:count]

    def _stop(self, event: ChoiceEvent) -> None:
        match = self._scanner.match
        assert match is not None
        self._release(event, max(0, match.push - self.num_tokens))
        self._withheld.clear()
        event.finish, event.stop_reason = FinishReason.STOP.text, match.stop
        self.is_finished = True

    def _close(self, event: ChoiceEvent, delta: TokenDelta) -> None:
        """The engine is done. A stop string that has matched beats the engine's own reason."""
        event.text += self._scanner.flush()
        if self._scanner.match is not None:
            self._stop(event)
            return
        self._release(event, len(self._withheld))
        self.is_finished = True
        if delta.finish == FinishReason.ERROR:
            event.error = delta.error or "the engine failed at this request"
        elif delta.finish is not None:
            event.finish, event.stop_reason = delta.finish.text, delta.stop_reason


def spell(data: bytes, *, is_special: bool = False) -> str:
    """A name for a token that is not valid text by itself: 'bytes:\\xf0\\x9f'. Names of different tokens differ."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        if is_special:
            return data.decode("utf-8", "replace")
        return "bytes:" + "".join(f"\\x{b:02x}" for b in data)
