"""Body of /v1/completions."""

from __future__ import annotations

from pydantic import Field

from octavo.api.schema.common import GenerationBody

Prompt = str | list[int] | list[str] | list[list[int]]


class CompletionBody(GenerationBody):
    """`max_completion_tokens` is the chat route's name for `max_tokens` and means the same here."""

    prompt: Prompt | None = Field(default=None)
    logprobs: int | None = None
    max_tokens: int = 16
    max_completion_tokens: int | None = None
    add_special_tokens: bool = True
