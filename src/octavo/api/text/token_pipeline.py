"""One choice as token ids alone: no text is made, so nothing is held back. For who sends and reads ids.

The counterpart of `ChoicePipeline` with `detokenize` off; its entries of logprobs have empty texts.
"""

from __future__ import annotations

from octavo.api.text.pipeline import Alternative, ChoiceEvent, TokenEntry
from octavo.wire.messages import FinishReason, TokenDelta, TokenLogprobs


class TokenPipeline:
    """`num_tokens` counts what the client pays for: every token."""

    def __init__(self, *, index: int = 0) -> None:
        self.index = index
        self.num_tokens = 0
        self.num_reasoning = 0
        self.is_finished = False

    def feed(self, delta: TokenDelta) -> ChoiceEvent:
        event = ChoiceEvent(self.index, prompt_logprobs=delta.prompt_logprobs, num_cached=delta.num_cached)
        if self.is_finished:
            return event
        event.token_ids = list(delta.token_ids)
        event.entries = [_entry(scored) for scored in delta.logprobs or ()]
        self.num_tokens += len(event.token_ids)
        if delta.finish is not None:
            self.is_finished = True
            if delta.finish == FinishReason.ERROR:
                event.error = delta.error or "the engine failed at this request"
                event.is_refused, event.is_gone = delta.is_refused, delta.is_gone
            else:
                event.finish, event.stop_reason = delta.finish.text, delta.stop_reason
        return event


def _entry(scored: TokenLogprobs) -> TokenEntry:
    best = zip(scored.top_ids, scored.top_logprobs, strict=True)
    top = [Alternative(i, "", b"", logprob) for i, logprob in best]
    return TokenEntry(scored.token_id, "", b"", scored.logprob, scored.rank, 0, top, "")
