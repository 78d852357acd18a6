"""One choice: deltas of the engine in, events out. The same events make the stream and its fold.

Owns detokenising, stop strings, the texts of logprobs and the finish reason. What comes out depends
on the tokens only, never on how they were grouped into deltas. Knows no dialect.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.api.text.codec import TextCodec
from octavo.api.text.detokenise import Detokeniser
from octavo.api.text.parsers.machine import OutputParser
from octavo.api.text.parts import CallPart, ContentPart, Part, ReasoningPart
from octavo.api.text.stops import StopScanner
from octavo.wire.messages import FinishReason, TokenDelta, TokenLogprobs
from octavo.wire.sampling import SamplingParams

__all__ = [
    "CallPart",
    "ChoiceEvent",
    "ChoicePipeline",
    "ContentPart",
    "Part",
    "ReasoningPart",
    "TokenEntry",
    "spell",
]


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
    is_refused: bool = False  # with an error: what the request asks for excludes every token
    is_gone: bool = False  # with an error: there is no engine any more
    has_calls: bool = False  # with the last one: there are tool calls, and none was cut

    @property
    def reason(self) -> str | None:
        """`finish` as dialects with tools tell it: whole calls make a stop "tool_calls"; a cut stays "length"."""
        return "tool_calls" if self.has_calls and self.finish == FinishReason.STOP.text else self.finish

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
        self,
        codec: TextCodec,
        params: SamplingParams,
        *,
        index: int = 0,
        prompt: Sequence[int] = (),
        parser: OutputParser | None = None,
    ) -> None:
        self.index = index
        self.num_tokens = 0
        self.is_finished = False
        self._codec = codec
        self._params = params
        self._detokeniser = Detokeniser(codec, prompt, skip_special_tokens=params.skip_special_tokens)
        self._scanner = StopScanner(params.stop, include_stop=params.include_stop_str_in_output)
        self._is_plain = not params.stop and params.logprobs is None and parser is None
        self._num_seen = 0
        self._num_chars = 0
        self._withheld: list[tuple[int, TokenEntry | None]] = []
        self._parsing = _Parsing(parser) if parser is not None else None

    @property
    def num_reasoning(self) -> int:
        """Tokens that were thought rather than said, of those that `num_tokens` counts."""
        return 0 if self._parsing is None else self._parsing.count(self.num_tokens)

    def feed(self, delta: TokenDelta) -> ChoiceEvent:
        """The event of one delta; empty when everything is still held back."""
        event = ChoiceEvent(self.index, prompt_logprobs=delta.prompt_logprobs, num_cached=delta.num_cached)
        if self.is_finished:
            return event
        if self._parsing is not None:
            event.parts = []
        last = len(delta.token_ids) - 1
        if self._is_plain and delta.logprobs is None:
            self._take_plain(event, delta)
            last = -1
        for i, token_id in enumerate(delta.token_ids if last >= 0 else ()):
            scored = delta.logprobs[i] if delta.logprobs is not None and i < len(delta.logprobs) else None
            ends = i == last and delta.finish == FinishReason.STOP
            if self._take(event, token_id, scored, ends=ends):
                return event
        if delta.finish is not None:
            self._close(event, delta)
        return event

    def _take_plain(self, event: ChoiceEvent, delta: TokenDelta) -> None:
        """All tokens of a delta when there are neither stop strings nor logprobs: nothing is ever held back."""
        ids = delta.token_ids
        shown = ids
        if delta.finish == FinishReason.STOP and not self._params.include_stop_str_in_output:
            shown = ids[:-1]  # the token that ended the answer belongs to the ids and the count only
        push = self._detokeniser.push
        event.text = push(shown[0]) if len(shown) == 1 else "".join([push(i) for i in shown])
        event.token_ids = ids
        self.num_tokens += len(ids)

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
        if self._parsing is not None:
            self._parsing.note(token_id, self._num_chars, is_visible=is_visible)
        self._num_chars += len(text)
        self._show(event, self._scanner.push(text, counts=self._num_seen > self._params.min_tokens))
        self._withheld.append((token_id, entry))
        if self._scanner.match is not None:
            self._stop(event)
            return True
        if not self._scanner.is_undecided or self._num_seen == self._scanner.completed_push:
            self._release(event, len(self._withheld))
        if self._parsing is not None and self._parsing.is_done:  # as many calls as were wanted
            self._release(event, len(self._withheld))
            event.finish = FinishReason.STOP.text
            self._finish(event)
            return True
        return False

    def _show(self, event: ChoiceEvent, text: str) -> None:
        """Text that no stop string can claim any more."""
        event.text += text
        if self._parsing is not None and event.parts is not None:
            event.parts += self._parsing.hand(text)

    def _finish(self, event: ChoiceEvent) -> None:
        self.is_finished = True
        if self._parsing is not None and event.parts is not None:
            event.parts += self._parsing.close()
            event.has_calls = self._parsing.has_whole_calls

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
        self._finish(event)

    def _close(self, event: ChoiceEvent, delta: TokenDelta) -> None:
        """The engine is done. A stop string that has matched beats the engine's own reason."""
        self._show(event, self._scanner.flush())
        if self._scanner.match is not None:
            self._stop(event)
            return
        self._release(event, len(self._withheld))
        self._finish(event)
        if delta.finish == FinishReason.ERROR:
            event.error = delta.error or "the engine failed at this request"
            event.is_refused, event.is_gone = delta.is_refused, delta.is_gone
        elif delta.finish is not None:
            event.finish, event.stop_reason = delta.finish.text, delta.stop_reason


class _Parsing:
    """The parser behind one pipeline: hands it text and control tokens in the order of the tokens.

    Positions count characters of visible text and control tokens that the parser knows, as it gets them.
    """

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser
        self._controls: deque[tuple[int, str]] = deque()  # (characters of text before it, its character)
        self._places: list[int] = []  # positions of the control tokens that were handed on
        self._num_controls = 0
        self._num_handed = 0
        self._starts: deque[int] = deque()  # positions of the tokens that are not classed yet
        self._num_classed = 0
        self._num_reasoning = 0

    @property
    def is_done(self) -> bool:
        return self._parser.is_done

    @property
    def has_whole_calls(self) -> bool:
        return self._parser.has_whole_calls

    def note(self, token_id: int, num_chars: int, *, is_visible: bool) -> None:
        """A token has come, with so many characters of text before it."""
        self._starts.append(num_chars + self._num_controls)
        char = None if is_visible else self._parser.controls.get(token_id)
        if char is not None:
            self._controls.append((num_chars, char))
            self._num_controls += 1

    def hand(self, text: str) -> list[Part]:
        """The parts that settle when `text`, and the control tokens among it, are read."""
        parts: list[Part] = []
        at, end = 0, self._num_handed + len(text)
        while self._controls and self._controls[0][0] <= end and not self._parser.is_done:
            place, char = self._controls.popleft()
            piece = text[at : place - self._num_handed]
            at = place - self._num_handed
            self._places.append(place + len(self._places))
            parts += self._parser.feed(piece + char)
        if at < len(text):
            parts += self._parser.feed(text[at:])
        self._num_handed = end
        return self._placed(parts)

    def close(self) -> list[Part]:
        return self._placed(self._parser.close())

    def _placed(self, parts: list[Part]) -> list[Part]:
        """With places that count characters of text only."""
        if self._places:
            for part in parts:
                if isinstance(part, ContentPart):
                    part.start -= bisect_left(self._places, part.start)
        return parts

    def count(self, num_tokens: int) -> int:
        """Reasoning tokens among the first `num_tokens`, as far as the parser has read."""
        settled = self._parser.settled
        while self._starts and self._num_classed < num_tokens:
            if self._starts[0] >= settled and not self._parser.is_done:
                break
            self._num_reasoning += self._parser.is_reasoning_at(self._starts.popleft())
            self._num_classed += 1
        return self._num_reasoning


def spell(data: bytes, *, is_special: bool = False) -> str:
    """A name for a token that is not valid text by itself: 'bytes:\\xf0\\x9f'. Names of different tokens differ."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        if is_special:
            return data.decode("utf-8", "replace")
        return "bytes:" + "".join(f"\\x{b:02x}" for b in data)
