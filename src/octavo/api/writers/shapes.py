"""Shapes that both OpenAI dialects share: usage, logprobs of chat, prompt logprobs. Structs that msgspec encodes."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.api.generation import Usage
from octavo.api.text.codec import TextCodec
from octavo.api.text.pipeline import TokenEntry, spell
from octavo.wire.messages import TokenLogprobs

_LEAST = -9999.0  # JSON has no minus infinity


class PromptDetails(msgspec.Struct):
    cached_tokens: int


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int


class UsageShape(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


def usage_shape(usage: Usage) -> UsageShape:
    return UsageShape(
        usage.prompt,
        usage.completion,
        usage.prompt + usage.completion,
        PromptDetails(usage.cached),
        CompletionDetails(usage.reasoning),
    )


def finite(logprob: float) -> float:
    return max(_LEAST, logprob)


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct):
    """`token` and `bytes` are what the token added to the answer; '' and [] for a token that ended it."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatLogprob]


def chat_logprobs(entries: list[TokenEntry], num_top: int, *, as_ids: bool) -> ChatLogprobs:
    content = []
    for entry in entries:
        top = [
            TopLogprob(_name(a.token_id, a.text, as_ids), finite(a.logprob), list(a.data))
            for a in (entry.top if num_top < 0 else entry.top[:num_top])
        ]
        content.append(
            ChatLogprob(
                _name(entry.token_id, entry.text, as_ids), finite(entry.logprob), list(entry.data), top
            )
        )
    return ChatLogprobs(content)


def _name(token_id: int, text: str, as_ids: bool) -> str:
    return f"token_id:{token_id}" if as_ids else text


def prompt_logprobs_shape(
    codec: TextCodec, scored: list[TokenLogprobs | None], num_prompt: int
) -> list[dict[str, dict[str, Any]] | None]:
    """One item per prompt token, the first null: {token id: {logprob, rank, decoded_token}}."""
    out: list[dict[str, dict[str, Any]] | None] = [None] * (num_prompt - len(scored))
    for position in scored:
        if position is None:
            out.append(None)
            continue
        best = zip(position.top_ids, position.top_logprobs, range(1, len(position.top_ids) + 1), strict=True)
        items = {i: (logprob, rank) for i, logprob, rank in best}
        items.setdefault(position.token_id, (position.logprob, position.rank))
        out.append(
            {
                str(i): {
                    "logprob": finite(logprob),
                    "rank": rank,
                    "decoded_token": spell(codec.token_bytes(i), is_special=codec.is_special(i)),
                }
                for i, (logprob, rank) in items.items()
            }
        )
    return out
