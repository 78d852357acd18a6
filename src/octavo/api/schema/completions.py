"""Body of /v1/completions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from octavo.api.schema.common import FIRST_ERROR, GenerationBody, Ids, Strings

Prompt = str | Ids | Strings | Annotated[list[Ids], FIRST_ERROR]


class CompletionBody(GenerationBody):
    """`max_completion_tokens` is the chat route's name for `max_tokens` and means the same here."""

    prompt: Prompt | None = Field(default=None)
    logprobs: int | None = None
    max_tokens: int = 16
    max_completion_tokens: int | None = None
    add_special_tokens: bool = True
