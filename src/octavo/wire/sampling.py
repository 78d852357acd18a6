"""Sampling parameters of one choice, as they travel from the API to the sampler.

Owns names, defaults and ranges (`verify`). Does not know where a default comes from
(generation_config is applied in api.sampling) nor how a token is drawn (csrc/sampler).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal, NoReturn

import msgspec

from octavo.errors import InvalidRequest

StructuredKind = Literal[
    "json_schema", "json_object", "regex", "choice", "lark", "gbnf", "ebnf", "structural_tag"
]


class StructuredSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The language an answer has to be in. What the text means depends on the kind.

    `text`: a schema as JSON text, a pattern, a JSON array of choices, a grammar, a structural tag as JSON.
    `backend`: a name of octavo.grammar, or "auto". The other fields are for the JSON kinds.
    """

    kind: StructuredKind
    text: str
    backend: str = "auto"
    any_whitespace: bool = (
        False  # free white space between JSON tokens; off = compact, so that it always ends
    )
    whitespace_pattern: str | None = None  # a pattern instead of the two
    additional_properties: bool = (
        True  # False = objects hold named properties only where the schema is silent
    )


class RepetitionDetectionParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Ends an answer whose last tokens are one pattern, `min_count` times in a row.

    The pattern has `min_pattern_size` (0 is taken as 1) to `max_pattern_size` tokens; 0 = off.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0


class StructuredOutputsParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What an answer has to follow, in the words of a caller: exactly one of the first six.

    `LLM` makes a StructuredSpec of it; over HTTP the field `structured_outputs` has the same names.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None  # Lark, GBNF or EBNF
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool | None = None  # None = as the engine was told: compact
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None
    backend: str | None = None


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Names, ranges and defaults follow OpenAI and vLLM; see docs/compatibility.md.

    `temperature == 0` (or below 1e-5) is greedy. `logprobs`: None = none, 0 = the sampled token only,
    k = also the k best, -1 = the whole vocabulary. Random numbers are a function of
    (seed, position), never of a stateful generator (law 1).
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1 = off
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = []
    bad_words_ids: list[list[int]] = []  # filled by the API, which owns the tokenizer
    stop: list[str] = []
    stop_token_ids: list[int] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16  # None = what is left of the context
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None  # logprobs of these tokens instead of the best ones
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    stream_interval: int | None = None
    skip_reading_prefix_cache: bool | None = None  # None = only where prompt_logprobs need it
    structured_outputs: StructuredOutputsParams | None = None  # of a caller; never sent to an engine
    structured: StructuredSpec | None = None
    repetition_detection: RepetitionDetectionParams | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def can_ban(self) -> bool:
        """Whether something here may forbid every token."""
        return bool(
            self.logit_bias
            or self.allowed_token_ids is not None
            or self.bad_words_ids
            or self.min_tokens
            or self.structured is not None
        )

    @property
    def skips_prefix_cache(self) -> bool:
        """Whether every token of the prompt is computed. What is computed is cached all the same."""
        return bool(self.skip_reading_prefix_cache) or self.prompt_logprobs is not None


GREEDY_BELOW = 1e-5  # temperature
MAX_N = 16_384
REPETITION_RANGE = (1e-3, 1e3)  # beyond it float32 logits leave their range
MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 1_024
MAX_LOGPROB_TOKEN_IDS = 128
_INT64 = (-(2**63), 2**63 - 1)


def verify(params: SamplingParams, *, vocab_size: int, max_logprobs: int) -> None:
    """Raises InvalidRequest, naming the field, what was given and what is allowed.

    `max_logprobs` -1 = no bound. A length that depends on the prompt is not checked here.
    """
    _verify_shape(params)  # first: what follows asks whether the temperature, a sound one, is greedy
    _verify_choices(params)
    _verify_penalties(params)
    _verify_lengths(params)
    _verify_repetition(params.repetition_detection)
    _verify_logprobs(params, max_logprobs)
    _verify_chosen(params)
    _verify_ids(params, vocab_size)


def _refuse(field: str, given: object, allowed: str) -> NoReturn:
    raise InvalidRequest(f"{field} is {given}; allowed is {allowed}", param=field)


def _verify_choices(p: SamplingParams) -> None:
    if not 1 <= p.n <= MAX_N:
        _refuse("n", p.n, f"1 to {MAX_N}")
    if p.seed is not None and not _INT64[0] <= p.seed <= _INT64[1]:
        _refuse("seed", p.seed, "a signed 64-bit integer")
    if p.n > 1 and p.is_greedy:
        raise InvalidRequest(
            f"n is {p.n} with temperature {p.temperature:g}: all choices would be the same",
            param="n",
            fix="ask for n 1 or a temperature above 0",
        )


def _verify_shape(p: SamplingParams) -> None:
    if not (math.isfinite(p.temperature) and 0 <= p.temperature <= 2):
        _refuse("temperature", p.temperature, "0 to 2")
    if not (math.isfinite(p.top_p) and 0 < p.top_p <= 1):
        _refuse("top_p", p.top_p, "more than 0 and at most 1")
    if p.top_k < -1:
        _refuse("top_k", p.top_k, "-1 or 0 (off), or 1 and more")
    if not (math.isfinite(p.min_p) and 0 <= p.min_p <= 1):
        _refuse("min_p", p.min_p, "0 to 1")


def _verify_penalties(p: SamplingParams) -> None:
    for field in ("presence_penalty", "frequency_penalty"):
        value = getattr(p, field)
        if not (math.isfinite(value) and -2 <= value <= 2):
            _refuse(field, value, "-2 to 2")
    least, most = REPETITION_RANGE
    if not least <= p.repetition_penalty <= most:
        _refuse("repetition_penalty", p.repetition_penalty, f"{least} to {most}")


def _verify_lengths(p: SamplingParams) -> None:
    if p.max_tokens is not None and p.max_tokens < 1:
        _refuse("max_tokens", p.max_tokens, "1 and more")
    if p.min_tokens < 0:
        _refuse("min_tokens", p.min_tokens, "0 and more")
    if p.max_tokens is not None and p.min_tokens > p.max_tokens:
        _refuse("min_tokens", p.min_tokens, f"at most max_tokens, which is {p.max_tokens}")
    if p.stream_interval is not None and p.stream_interval < 1:
        _refuse("stream_interval", p.stream_interval, "1 and more")
    if p.truncate_prompt_tokens is not None and p.truncate_prompt_tokens < -1:
        _refuse("truncate_prompt_tokens", p.truncate_prompt_tokens, "-1 (as much as fits), or 0 and more")
    if any(not s for s in p.stop):
        _refuse("stop", "an empty string", "strings of at least one character")
    if p.stop and not p.detokenize:
        raise InvalidRequest("stop strings need text, and detokenize is off", param="stop")


def _verify_repetition(asked: RepetitionDetectionParams | None) -> None:
    if asked is None:
        return
    field, most, least = "repetition_detection", asked.max_pattern_size, asked.min_pattern_size
    if most < 0:
        _refuse(f"{field}.max_pattern_size", most, "0 (off) and more")
    if not 0 <= least <= most:
        _refuse(f"{field}.min_pattern_size", least, f"0 to max_pattern_size, which is {most}")
    if most and asked.min_count < 2:
        _refuse(f"{field}.min_count", asked.min_count, "2 and more")


def _verify_logprobs(p: SamplingParams, max_logprobs: int) -> None:
    for field in ("logprobs", "prompt_logprobs"):
        value = getattr(p, field)
        if value is None:
            continue
        if value < -1:
            _refuse(field, value, "-1 (the whole vocabulary), or 0 and more")
        if max_logprobs != -1 and (value == -1 or value > max_logprobs):
            raise InvalidRequest(
                f"{field} is {value}; this server gives at most {max_logprobs}",
                param=field,
                fix="ask for fewer or raise --max-logprobs",
            )
    if p.prompt_logprobs is not None and p.skip_reading_prefix_cache is False:
        raise InvalidRequest(
            "skip_reading_prefix_cache is false with prompt_logprobs, which need every token of the prompt computed",
            param="skip_reading_prefix_cache",
            fix="leave one of them out",
        )


def _verify_chosen(p: SamplingParams) -> None:
    chosen = p.logprob_token_ids
    if chosen is None:
        return
    if len(chosen) > MAX_LOGPROB_TOKEN_IDS:
        _refuse("logprob_token_ids", f"a list of {len(chosen)}", f"at most {MAX_LOGPROB_TOKEN_IDS} ids")
    if chosen and p.logprobs not in (None, len(chosen)):
        raise InvalidRequest(
            f"logprobs is {p.logprobs} and logprob_token_ids has {len(chosen)} ids: the logprobs given are those "
            "of the ids",
            param="logprob_token_ids",
            fix=f"leave logprobs out, or ask for {len(chosen)}",
        )


def _verify_ids(p: SamplingParams, vocab_size: int) -> None:
    allowed = f"0 to {vocab_size - 1}, the vocabulary"
    if p.allowed_token_ids is not None and not p.allowed_token_ids:
        _refuse("allowed_token_ids", "an empty list", "at least one token id")
    if len(p.bad_words) > MAX_BAD_WORDS:
        _refuse("bad_words", f"a list of {len(p.bad_words)}", f"at most {MAX_BAD_WORDS} entries")
    if any(not word for word in p.bad_words):
        _refuse("bad_words", "a list with an empty string", "strings of at least one character")
    total = sum(map(len, p.bad_words_ids))
    if total > MAX_BAD_WORD_TOKENS:
        _refuse("bad_words", f"{total} tokens long in all", f"at most {MAX_BAD_WORD_TOKENS} tokens")
    fields: list[tuple[str, Iterable[int]]] = [
        ("logit_bias", p.logit_bias or ()),
        ("allowed_token_ids", p.allowed_token_ids or ()),
        ("stop_token_ids", p.stop_token_ids),
        ("logprob_token_ids", p.logprob_token_ids or ()),
        ("bad_words", (i for ids in p.bad_words_ids for i in ids)),
    ]
    for field, ids in fields:
        for i in ids:
            if not 0 <= i < vocab_size:
                raise InvalidRequest(f"{field} holds the token id {i}; allowed is {allowed}", param=field)
    for token_id, bias in (p.logit_bias or {}).items():
        if not math.isfinite(bias):
            _refuse("logit_bias", f"{bias} for token {token_id}", "a finite number")
