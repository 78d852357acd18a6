"""POST /inference/v1/generate: token ids in, token ids out. Makes text only when it is asked for it."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.api.dialects.bodies import read_foreign
from octavo.api.dialects.errors import below
from octavo.api.faults import REQUEST_ID
from octavo.api.generation import Generation, salt_of
from octavo.api.middleware import clean_id
from octavo.api.router import Router
from octavo.api.routes.common import (
    answer_stream,
    answer_whole,
    api_key,
    priority_note,
    state_of,
    stream_interval,
    usage_wishes,
)
from octavo.api.sampling import build_params
from octavo.api.schema.normalise import normalise
from octavo.api.schema.tokens import OUTSIDE, REFUSED, TokenSampling, TokensBody
from octavo.api.state import ApiState
from octavo.api.writers.tokens import TokenFold, TokenOptions, TokenStream
from octavo.errors import InvalidRequest
from octavo.wire.sampling import SamplingParams, verify

router = Router()


@router.post("/inference/v1/generate")
async def generate(request: Request) -> Response:
    arrival = time.monotonic()
    state = state_of(request)
    body, warnings = await read_foreign(request, TokensBody, REFUSED)
    with below("sampling_params"):
        sampling, notes = _sampling(state, body)
        params, more = _params(state, body, sampling)
        params = await state.grammars.constrain(sampling, params)
        state.admission.check(params.n)
    usage = usage_wishes(sampling)
    prompt = state.prompts.from_ids(body.token_ids, param="token_ids")
    state.prompts.truncate(prompt, sampling.truncate_prompt_tokens, side=sampling.truncation_side)
    warnings += [*notes, *more, *prompt.notes, *priority_note(state, sampling)]
    own = _id(request, body)
    generation = Generation(
        state,
        [prompt],
        params,
        client_id=own,
        asked_tokens=sampling.max_tokens,
        default_tokens=state.defaults.max_new_tokens,
        salt=salt_of(api_key(request), body.cache_salt, shared=state.limits.share_prefix_cache),
        priority=body.priority,
        arrival=arrival,
    )
    options = TokenOptions(
        id=own,
        model=state.served_name(body.model),
        created=int(time.time()),
        mode=body.output_mode,
        num_prompt=len(prompt.ids),
        num_top=-1 if params.logprob_token_ids else params.logprobs,
        prompt_ids=prompt.ids if body.return_token_ids else None,
    )
    if body.stream:
        interval = stream_interval(state, sampling)
        return await answer_stream(
            request, generation, TokenStream(options), usage=usage, interval=interval, warnings=warnings
        )
    fold = TokenFold(options, generation.num_choices)
    return await answer_whole(request, generation, fold, warnings=warnings)


def _id(request: Request, body: TokensBody) -> str:
    """The header's id, else the body's, else the one made at the door."""
    given = None if clean_id(request.headers.get("x-request-id")) else clean_id(body.request_id)
    return given or str(request.scope[REQUEST_ID])


def _sampling(state: ApiState, body: TokensBody) -> tuple[TokenSampling, list[str]]:
    """`sampling_params` as the other routes know it. What is said of the request beside it goes along."""
    for name in OUTSIDE & body.sampling_params.keys():
        raise InvalidRequest(
            f"{name} is no sampling parameter",
            param=name,
            fix="give it beside sampling_params" if name in TokensBody.model_fields else "leave it out",
        )
    sampling, notes = normalise(TokenSampling, body.sampling_params, strict=state.strict)
    beside = {"stream": body.stream, "stream_options": body.stream_options, "priority": body.priority}
    return sampling.model_copy(update=beside), notes


def _params(state: ApiState, body: TokensBody, sampling: TokenSampling) -> tuple[SamplingParams, list[str]]:
    """Text is made for text, and for stop strings, which are looked for in it."""
    params, notes = build_params(
        sampling,
        state.defaults,
        state.codec,
        logprobs=sampling.logprobs,
        max_tokens=sampling.max_tokens,
        vocab_size=state.engine.vocab_size,
        max_logprobs=state.engine.max_logprobs,
        limits=state.limits,
    )
    if body.output_mode == "text" and sampling.detokenize is False:
        raise InvalidRequest("output_mode 'text' needs detokenize true, or left out", param="detokenize")
    wants_text = sampling.detokenize
    if wants_text is None:
        wants_text = body.output_mode == "text" or bool(params.stop)
    params = msgspec.structs.replace(params, detokenize=wants_text)
    verify(params, vocab_size=state.engine.vocab_size, max_logprobs=state.engine.max_logprobs)
    return params, notes
