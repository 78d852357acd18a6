"""What chat and completions share: sampling fields, stream options, usage.

Numbers are strict (a string is not a number). Ranges that depend on the model are checked by
`wire.sampling.verify`; here are types only, so that a value is refused in one place.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from octavo.wire.sampling import SamplingParams

Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


StopList = Annotated[list[str], BeforeValidator(_as_list)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False
    include_obfuscation: bool | None = False  # only its false acts, see routes.common.usage_wishes


class GenerationBody(BaseModel):
    """Fields of both generation routes. None = not given: the default of the server applies."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    model: str | None = None
    n: Annotated[int, Field(ge=1)] = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Int64 | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = Field(default_factory=list)
    stop: StopList = Field(default_factory=list)
    stop_token_ids: list[int] = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] = "left"
    stream: bool = False
    stream_options: StreamOptions | None = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None
    priority: Int64 = 0
    cache_salt: str | None = None
    request_id: str | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    echo: bool = False


def given_sampling(body: GenerationBody) -> dict[str, Any]:
    """The sampling fields of a body that go to SamplingParams unchanged."""
    names = set(SamplingParams.__struct_fields__) & set(GenerationBody.model_fields)
    names -= {"logit_bias", "stop", "seed", "stop_token_ids"}
    return {name: getattr(body, name) for name in names}
