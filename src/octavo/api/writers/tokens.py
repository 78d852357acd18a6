"""Events to token ids (or the text of them): chunks of a stream, or one answer folded from the same events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.api.text.pipeline import ChoiceEvent, TokenEntry
from octavo.api.writers.shapes import UsageShape, chat_logprobs, finite
from octavo.wire.messages import TokenLogprobs

Mode = str  # "tokens" or "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOptions:
    """`num_top`: alternatives a token, None = no logprobs. `prompt_ids` are shown when they are not None."""

    id: str
    model: str
    created: int
    mode: Mode
    num_prompt: int
    num_top: int | None = None
    prompt_ids: list[int] | None = None


class TopToken(msgspec.Struct):
    token_id: int
    logprob: float


class TokenLogprob(msgspec.Struct):
    token_id: int
    logprob: float
    rank: int
    top_logprobs: list[TopToken]


class Scores(msgspec.Struct):
    content: list[Any]  # TokenLogprob, or ChatLogprob for text


class TokenChoice(msgspec.Struct, kw_only=True):
    index: int
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    logprobs: Scores | None = None


class TokenChunk(msgspec.Struct, kw_only=True):
    request_id: str
    model: str
    created: int
    output_mode: Mode
    choices: list[TokenChoice]
    usage: UsageShape | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[Any] | msgspec.UnsetType = msgspec.UNSET


class TokenStream:
    """Chunks of one request. The first carries what concerns the prompt."""

    def __init__(self, options: TokenOptions) -> None:
        self._options = options
        self._has_prompt = False
        self._has_prompt_scores = False

    def chunks(self, event: ChoiceEvent) -> Iterator[TokenChunk]:
        options = self._options
        chunk = self.chunk([self._choice(event)] if event.error is None or event.token_ids else [])
        if not self._has_prompt and options.prompt_ids is not None:
            chunk.prompt_token_ids = options.prompt_ids
        if event.prompt_logprobs is not None and not self._has_prompt_scores:
            self._has_prompt_scores = True
            chunk.prompt_logprobs = _prompt_scores(event.prompt_logprobs, options.num_prompt)
        self._has_prompt = True
        if chunk.choices or chunk.prompt_logprobs is not msgspec.UNSET:
            yield chunk

    def usage(self, usage: UsageShape) -> TokenChunk:
        chunk = self.chunk([])
        chunk.usage = usage
        return chunk

    def chunk(self, choices: list[TokenChoice]) -> TokenChunk:
        options = self._options
        return TokenChunk(
            request_id=options.id,
            model=options.model,
            created=options.created,
            output_mode=options.mode,
            choices=choices,
        )

    def _choice(self, event: ChoiceEvent) -> TokenChoice:
        options = self._options
        choice = TokenChoice(index=event.index, finish_reason=event.finish, stop_reason=event.stop_reason)
        if options.mode == "tokens":
            choice.token_ids = event.token_ids
        else:
            choice.text = event.text
        if options.num_top is not None and event.entries:
            choice.logprobs = self._scores(event.entries, options.num_top)
        return choice

    def _scores(self, entries: list[TokenEntry], num_top: int) -> Scores:
        if self._options.mode == "text":
            return Scores(chat_logprobs(entries, num_top, as_ids=False).content)
        found = []
        for entry in entries:
            best = entry.top if num_top < 0 else entry.top[:num_top]
            top = [TopToken(a.token_id, finite(a.logprob)) for a in best]
            found.append(TokenLogprob(entry.token_id, finite(entry.logprob), entry.rank, top))
        return Scores(found)


def _prompt_scores(
    scored: list[TokenLogprobs | None], num_prompt: int
) -> list[dict[str, dict[str, float | int]] | None]:
    """One item a prompt token, the first null: {token id: {logprob, rank}}."""
    found: list[dict[str, dict[str, float | int]] | None] = [None] * (num_prompt - len(scored))
    for position in scored:
        if position is None:
            found.append(None)
            continue
        best = enumerate(zip(position.top_ids, position.top_logprobs, strict=True), 1)
        items = {str(i): {"logprob": finite(logprob), "rank": rank} for rank, (i, logprob) in best}
        items.setdefault(str(position.token_id), {"logprob": finite(position.logprob), "rank": position.rank})
        found.append(items)
    return found


class TokenFold:
    """The answer that is not streamed: the sum of the chunks that a stream would have carried."""

    def __init__(self, options: TokenOptions, num_choices: int) -> None:
        self._options = options
        self._stream = TokenStream(options)
        self._whole = self._stream.chunk([TokenChoice(index=i) for i in range(num_choices)])
        for choice in self._whole.choices:
            if options.mode == "tokens":
                choice.token_ids = []
            else:
                choice.text = ""
            if options.num_top is not None:
                choice.logprobs = Scores([])

    def add(self, event: ChoiceEvent) -> None:
        for chunk in self._stream.chunks(event):
            for name in ("prompt_token_ids", "prompt_logprobs"):
                if getattr(chunk, name) is not msgspec.UNSET:
                    setattr(self._whole, name, getattr(chunk, name))
            for piece in chunk.choices:
                self._add(piece)

    def _add(self, piece: TokenChoice) -> None:
        choice = self._whole.choices[piece.index]
        if isinstance(piece.token_ids, list) and isinstance(choice.token_ids, list):
            choice.token_ids += piece.token_ids
        if isinstance(piece.text, str) and isinstance(choice.text, str):
            choice.text += piece.text
        if piece.logprobs is not None and choice.logprobs is not None:
            choice.logprobs.content += piece.logprobs.content
        if piece.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = piece.finish_reason, piece.stop_reason

    def result(self, usage: UsageShape) -> TokenChunk:
        self._whole.usage = usage
        return self._whole
