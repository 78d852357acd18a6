"""What chat and completions share: sampling fields, stream options, usage.

Numbers are strict (a string is not a number). Ranges that depend on the model are checked by
`wire.sampling.verify`; here are types only, so that a value is refused in one place.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field

from octavo.wire.sampling import SamplingParams

Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]


class _FirstError(FailFast):
    """pydantic's FailFast, hashable, so that it may stand in a union."""

    __hash__ = object.__hash__


#: For every list in a body: without it pydantic keeps an error for each of a million bad entries, and
#: one body of 8 MB holds the event loop for a minute and takes gigabytes.
FIRST_ERROR = _FirstError()


def at_most(count: int) -> BeforeValidator:
    """Refuses a longer list or object before its entries are looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > count:
            raise ValueError(f"has {len(value):,} entries; allowed are {count:,}")
        return value

    return BeforeValidator(check)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _numbers(value: Any) -> Any:
    """Objects have no FailFast: the first value that is no number is refused here."""
    if isinstance(value, dict):
        for key, number in value.items():
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise ValueError(f"the value of {str(key)[:32]!r} is no number")
    return value


Ids = Annotated[list[int], FIRST_ERROR]
Strings = Annotated[list[str], FIRST_ERROR]
StopList = Annotated[Strings, BeforeValidator(_as_list)]
MAX_BIASES = 1 << 18


class StreamOptions(BaseModel):
    model_config = ConfigDict(defer_build=True, strict=True, extra="forbid")

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False
    include_obfuscation: bool | None = False  # only its false acts, see routes.common.usage_wishes


class RepetitionBody(BaseModel):
    """See `wire.sampling.RepetitionDetectionParams`."""

    model_config = ConfigDict(defer_build=True, strict=True, extra="forbid")

    max_pattern_size: Int64 = 0
    min_pattern_size: Int64 = 0
    min_count: Int64 = 0


class GenerationBody(BaseModel):
    """Fields of both generation routes. None = not given: the default of the server applies."""

    model_config = ConfigDict(defer_build=True, strict=True, extra="ignore", protected_namespaces=())

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
    logit_bias: Annotated[dict[str, float] | None, BeforeValidator(_numbers), at_most(MAX_BIASES)] = None
    allowed_token_ids: Ids | None = None
    bad_words: Strings = Field(default_factory=list)
    stop: StopList = Field(default_factory=list)
    stop_token_ids: Ids = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    prompt_logprobs: int | None = None
    logprob_token_ids: Ids | None = None
    repetition_detection: Annotated[RepetitionBody | None, at_most(16)] = None
    skip_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] = "left"
    stream: bool = False
    stream_options: Annotated[StreamOptions | None, at_most(16)] = None
    stream_interval: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    priority: Int64 = 0
    cache_salt: str | None = None
    request_id: str | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    echo: bool = False
    use_beam_search: bool = False  # n is its width
    response_format: Annotated[dict[str, Any] | None, at_most(16)] = None
    structured_outputs: Annotated[dict[str, Any] | None, at_most(16)] = None
    length_penalty: float = 1.0


def given_sampling(body: GenerationBody) -> dict[str, Any]:
    """The sampling fields of a body that go to SamplingParams unchanged."""
    names = set(SamplingParams.__struct_fields__) & set(GenerationBody.model_fields)
    names -= {"logit_bias", "stop", "seed", "stop_token_ids", "repetition_detection", "structured_outputs"}
    return {name: getattr(body, name) for name in names}
