"""Body + defaults of the server -> SamplingParams, as the engine gets them.

Owns the order (what a request gives wins, then generation_config, then neutral) and what needs the
tokenizer (bad words, end-of-text ids). Ranges are `wire.sampling.verify`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from octavo.api.beam_fields import check_beams, check_penalty, for_beams
from octavo.api.limits import Limits
from octavo.api.schema.common import GenerationBody, RepetitionBody, given_sampling
from octavo.api.text.codec import TextCodec
from octavo.errors import ConfigError, InvalidRequest
from octavo.wire.sampling import (
    GREEDY_BELOW,
    MAX_BAD_WORDS,
    RepetitionDetectionParams,
    SamplingParams,
    verify,
)

_LEAST_TEMPERATURE = 0.01
_BIAS_LIMIT = 100.0


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What applies when a request says nothing. Shown in /v1/models."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_new_tokens: int | None = None  # chat: what is left of the context; completions: 16
    max_tokens_cap: int | None = None  # the operator's; no answer is longer, whatever is asked for
    eos_token_ids: tuple[int, ...] = ()  # beside the tokenizer's own

    @classmethod
    def read(cls, generation_config: Mapping[str, Any]) -> SamplingDefaults:
        """From a generation_config.json; keys that are no defaults of sampling are left alone.

        Raises ConfigError for a value that no request could have.
        """
        found: dict[str, Any] = {}
        for name in cls.__struct_fields__:
            value = generation_config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise _bad_default(f"{name} is {value!r}, not a number")
            is_count = name in ("top_k", "max_new_tokens", "max_tokens_cap")
            found[name] = int(value) if is_count else float(value)
        eos = generation_config.get("eos_token_id")
        ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
        for i in ids:
            if isinstance(i, bool) or not isinstance(i, int) or i < 0:
                raise _bad_default(f"eos_token_id is {eos!r}, not token ids")
        most = found.get("max_new_tokens")
        try:
            values = {name: found[name] for name in _FROM_DEFAULTS if name in found}
            verify(SamplingParams(**values, max_tokens=most), vocab_size=1, max_logprobs=0)
        except InvalidRequest as error:
            raise _bad_default(str(error)) from None
        return cls(**found, eos_token_ids=tuple(ids))

    @property
    def row(self) -> list[str]:
        """What they are, as a row of the table of what runs."""
        neutral = SamplingDefaults()
        given = [
            f"{name} {getattr(self, name):g}"
            for name in (*_FROM_DEFAULTS, "max_new_tokens")
            if getattr(self, name) != getattr(neutral, name)
        ]
        if not given:
            return ["sampling", "neutral", "the generation config sets no defaults"]
        why = "defaults of the generation config; what a request says wins"
        if self.max_tokens_cap is not None:
            why += f", but no answer gets more than {self.max_tokens_cap:,} tokens"
        return ["sampling", ", ".join(given), why]


def _bad_default(problem: str) -> ConfigError:
    return ConfigError(
        f"generation config: {problem}",
        fix="correct it with --override-generation-config, or leave the file out with --generation-config octavo",
    )


_FROM_DEFAULTS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


def build_params(
    body: GenerationBody,
    defaults: SamplingDefaults,
    codec: TextCodec,
    *,
    logprobs: int | None,
    max_tokens: int | None,
    vocab_size: int,
    max_logprobs: int,
    limits: Limits,
) -> tuple[SamplingParams, list[str]]:
    """(checked parameters, notes). Raises InvalidRequest naming the field."""
    notes: list[str] = []
    check_penalty(body)
    body = for_beams(body) if body.use_beam_search else body
    values = given_sampling(body)
    for name in _FROM_DEFAULTS:
        if values[name] is None:
            values[name] = getattr(defaults, name)
    temperature = values["temperature"]
    if GREEDY_BELOW <= temperature < _LEAST_TEMPERATURE:
        values["temperature"] = _LEAST_TEMPERATURE
        notes.append(f"temperature {temperature:g} was raised to {_LEAST_TEMPERATURE}; 0 is greedy")
    elif 0 < temperature < GREEDY_BELOW:
        notes.append(f"temperature {temperature:g} was taken as 0, which is greedy")
    cap = defaults.max_tokens_cap
    is_asked = bool({"max_tokens", "max_completion_tokens"} & body.model_fields_set)
    if cap is not None and is_asked and max_tokens is not None and max_tokens > cap:
        notes.append(f"max_tokens {max_tokens} was cut to {cap}, the most that this server gives")
    _check_sizes(body, limits)
    values["logprobs"] = logprobs
    values["max_tokens"] = max_tokens
    params = SamplingParams(
        **values,
        seed=None if body.seed == -1 else body.seed,
        logit_bias=_logit_bias(body.logit_bias),
        stop=body.stop,
        stop_token_ids=list(dict.fromkeys(body.stop_token_ids)),
        repetition_detection=_repetition(body.repetition_detection),
    )
    if params.allowed_token_ids:
        params = msgspec.structs.replace(
            params, allowed_token_ids=list(dict.fromkeys(params.allowed_token_ids))
        )
    params = _settled(params, codec, vocab_size, max_logprobs)
    if body.use_beam_search:
        check_beams(params)
    return params, notes


def from_caller(
    given: SamplingParams, codec: TextCodec, *, vocab_size: int, max_logprobs: int
) -> SamplingParams:
    """Parameters that were made in this process, as the engine gets them: what a body may spell, they may too.

    Nothing has looked at their types before. Raises InvalidRequest naming the field.
    """
    values = {name: getattr(given, name) for name in given.__struct_fields__}
    values["stop"] = [values["stop"]] if isinstance(values["stop"], str) else values["stop"]
    for name in ("stop", "stop_token_ids", "bad_words", "bad_words_ids"):
        values[name] = [] if values[name] is None else values[name]
    if isinstance(values["logit_bias"], dict):
        values["logit_bias"] = _logit_bias({str(key): bias for key, bias in values["logit_bias"].items()})
    params = _typed(SamplingParams(**values))
    if params.stream_interval is not None:
        raise InvalidRequest(
            "stream_interval acts on streams, and there is none here",
            param="stream_interval",
            fix="leave it out",
        )
    temperature = params.temperature
    if GREEDY_BELOW <= temperature < _LEAST_TEMPERATURE:
        temperature = _LEAST_TEMPERATURE
    params = msgspec.structs.replace(
        params, temperature=temperature, seed=None if params.seed == -1 else params.seed
    )
    return _settled(params, codec, vocab_size, max_logprobs)


def _typed(params: SamplingParams) -> SamplingParams:
    try:
        return msgspec.convert(msgspec.to_builtins(params), SamplingParams)
    except (msgspec.ValidationError, TypeError) as error:
        problem, _, place = str(error).replace("`", "").partition(" - at $.")
        field = place.partition("[")[0].partition(".")[0] or None
        raise InvalidRequest(
            f"{place or 'sampling_params'}: {problem[:1].lower()}{problem[1:]}", param=field
        ) from None


def _settled(params: SamplingParams, codec: TextCodec, vocab_size: int, max_logprobs: int) -> SamplingParams:
    verify(params, vocab_size=vocab_size, max_logprobs=max_logprobs)
    if params.is_greedy:
        params = msgspec.structs.replace(params, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
    if params.bad_words:
        params = msgspec.structs.replace(params, bad_words_ids=bad_word_ids(codec, params.bad_words))
        verify(params, vocab_size=vocab_size, max_logprobs=max_logprobs)
    return params


def _check_sizes(body: GenerationBody, limits: Limits) -> None:
    if len(body.stop) > limits.max_stop_strings:
        raise InvalidRequest(
            f"stop has {len(body.stop)} strings; allowed are {limits.max_stop_strings}", param="stop"
        )
    if sum(map(len, body.stop)) > limits.max_stop_chars:
        raise InvalidRequest(f"stop has more than {limits.max_stop_chars} characters in all", param="stop")
    if len(body.bad_words) > MAX_BAD_WORDS:
        raise InvalidRequest(
            f"bad_words has {len(body.bad_words)} entries; allowed are {MAX_BAD_WORDS}", param="bad_words"
        )


def _repetition(body: RepetitionBody | None) -> RepetitionDetectionParams | None:
    """None where nothing is asked for: the engine keeps no state for it then."""
    if body is None or not any((body.max_pattern_size, body.min_pattern_size)):
        return None
    return RepetitionDetectionParams(
        max_pattern_size=body.max_pattern_size,
        min_pattern_size=body.min_pattern_size,
        min_count=body.min_count,
    )


def _logit_bias(given: dict[str, float] | None) -> dict[int, float] | None:
    if not given:
        return None
    bias: dict[int, float] = {}
    for key, value in given.items():
        if not re.fullmatch(r"-?[0-9]{1,18}", key):
            raise InvalidRequest(
                f"logit_bias has the key {key[:32]!r}; keys are token ids", param="logit_bias"
            )
        token_id = int(key)
        if token_id in bias:
            raise InvalidRequest(f"logit_bias has the token id {token_id} twice", param="logit_bias")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidRequest(
                f"logit_bias of {token_id} is {value!r:.32}, not a number", param="logit_bias"
            )
        bias[token_id] = max(-_BIAS_LIMIT, min(_BIAS_LIMIT, value)) if math.isfinite(value) else value
    return bias


def bad_word_ids(codec: TextCodec, words: Sequence[str]) -> list[list[int]]:
    """Each word as it stands at the start of a text and after a space."""
    found: list[list[int]] = []
    for word in words:
        for text in (word, " " + word.lstrip(" ")):
            ids = codec.encode(text, add_special_tokens=False, parse_special=False)
            if not ids:
                raise InvalidRequest(f"bad_words: {word[:32]!r} has no tokens", param="bad_words")
            if ids not in found:
                found.append(ids)
    return found


def check_min_tokens(params: SamplingParams, most: int) -> None:
    """Again, now that it is known how many tokens there may be."""
    if params.min_tokens > most:
        raise InvalidRequest(
            f"min_tokens is {params.min_tokens}; at most {most} tokens can follow this prompt",
            param="min_tokens",
        )


def eos_ids(codec: TextCodec, defaults: SamplingDefaults, params: SamplingParams) -> list[int]:
    """Ids that end the answer; none with ignore_eos, which explicit stop_token_ids survive."""
    if params.ignore_eos:
        return []
    return sorted({*codec.eos_ids, *defaults.eos_token_ids})


def choice_seeds(seed: int, count: int) -> list[int]:
    """One signed 64-bit seed per choice: seed + index."""
    return [(seed + i + 2**63) % 2**64 - 2**63 for i in range(count)]
