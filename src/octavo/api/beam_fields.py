"""Which fields of a request act on beam search, and which are refused because they cannot."""

from __future__ import annotations

from typing import Any

from octavo.api.beam import check_temperature
from octavo.api.schema.common import GenerationBody
from octavo.errors import InvalidRequest
from octavo.wire.sampling import SamplingParams

#: Fields of a body that shape how a token is drawn, and the values that ask for nothing.
_DRAWING: dict[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
}
#: Fields of SamplingParams that act on beam search, or have no part in it. `seed`: nothing is drawn, so
#: every seed gives the answer that the client wants it to repeat.
_ACTING = {
    "n", "temperature", "seed", "max_tokens", "min_tokens", "ignore_eos", "stop_token_ids", "detokenize",
    "include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens", "logprobs",
    "prompt_logprobs", "truncate_prompt_tokens", "stream_interval",
}  # fmt: skip
_NEUTRAL = SamplingParams()
_CLIENT_NAMES = {"structured": "structured_outputs", "bad_words_ids": "bad_words"}


def for_beams(body: GenerationBody) -> GenerationBody:
    """A body as beam search takes it. Raises InvalidRequest for fields that cannot act on it.

    The server's defaults of sampling (generation_config) have no part in it either.
    """
    if body.stream:
        raise InvalidRequest(
            "beam search cannot stream: which sequence is the answer is known at its end",
            param="stream",
            fix="send stream false",
        )
    check_temperature(body.temperature)
    for name, neutral in _DRAWING.items():
        value = getattr(body, name)
        if value is not None and value not in neutral:
            raise _cannot_act(name)
    values = {name: neutral[0] for name, neutral in _DRAWING.items()}
    return body.model_copy(update={**values, "temperature": 1.0})


def check_beams(params: SamplingParams) -> None:
    """Raises InvalidRequest for any other parameter that beam search does not heed."""
    if params.stop:
        raise InvalidRequest(
            "stop does not act on beam search: its sequences end at tokens",
            param="stop",
            fix="use stop_token_ids",
        )
    for name in SamplingParams.__struct_fields__:
        if name not in _ACTING and getattr(params, name) != getattr(_NEUTRAL, name):
            raise _cannot_act(_CLIENT_NAMES.get(name, name))


def _cannot_act(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} does not act on beam search, which follows the model's own probabilities",
        param=name,
        fix=f"leave {name} or use_beam_search out",
    )


def check_penalty(body: GenerationBody) -> None:
    if body.length_penalty != 1 and not body.use_beam_search:
        raise InvalidRequest(
            "length_penalty acts on beam search only",
            param="length_penalty",
            fix="send use_beam_search true, or leave it out",
        )
