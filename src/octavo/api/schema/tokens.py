"""Body of /inference/v1/generate: token ids in, token ids out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from octavo.api.schema.common import FIRST_ERROR, GenerationBody, Int64, StreamOptions, at_most

TokenIds = Annotated[list[Annotated[int, Field(ge=0, le=2**63 - 1)]], FIRST_ERROR]


class TokensBody(BaseModel):
    model_config = ConfigDict(defer_build=True, strict=True, extra="ignore", protected_namespaces=())

    token_ids: Annotated[TokenIds, Field(min_length=1)]
    sampling_params: dict[str, Any]
    model: str | None = None
    output_mode: Literal["tokens", "text"] = "tokens"
    stream: bool = False
    stream_options: Annotated[StreamOptions | None, at_most(16)] = None
    return_token_ids: bool = False
    cache_salt: str | None = None
    priority: Int64 = 0
    request_id: str | None = None


class TokenSampling(GenerationBody):
    """`sampling_params`. None of `max_tokens`: the server's default, else what is left of the context."""

    logprobs: int | None = None
    max_tokens: int | None = None
    detokenize: bool | None = None


#: Fields of the request that GenerationBody has, and that do not belong into `sampling_params`.
OUTSIDE = frozenset(
    "model stream stream_options priority cache_salt request_id echo return_token_ids "
    "return_tokens_as_token_ids use_beam_search length_penalty".split()
)
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "content_parts": (([],), "this server takes tokens of text only"),
    "features": (({},), "this server takes tokens of text only"),
    "reasoning_ended": ((), "token ids are not parsed here, so there is no thinking to tell apart"),
    "reasoning_parser_kwargs": (
        ({},),
        "token ids are not parsed here, so there is no thinking to tell apart",
    ),
    "token_offsets": (([],), "answers hold no places in the text of the prompt"),
}
