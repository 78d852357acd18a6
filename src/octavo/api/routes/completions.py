"""POST /v1/completions: one prompt or many, as text or token ids."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from octavo.api.beam_generation import generation_of
from octavo.api.generation import salt_of
from octavo.api.prompt import Prompt
from octavo.api.router import Router
from octavo.api.routes.common import (
    answer_stream,
    answer_whole,
    api_key,
    client_id,
    priority_note,
    read_body,
    state_of,
    stream_interval,
    usage_wishes,
)
from octavo.api.sampling import build_params
from octavo.api.schema.completions import CompletionBody
from octavo.api.state import ApiState
from octavo.api.writers.completions import CompletionFold, CompletionOptions, CompletionStream
from octavo.errors import InvalidRequest
from octavo.wire.sampling import SamplingParams

router = Router()


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    arrival = time.monotonic()
    state = state_of(request)
    body, warnings = await read_body(request, CompletionBody)
    usage = usage_wishes(body)
    given = _prompts(body, state.limits.max_prompts)
    params, notes = _params(state, body)
    params = await state.grammars.constrain(body, params)
    if len(given) * params.n > state.limits.max_choices:
        raise InvalidRequest(
            f"{len(given)} prompts x n {params.n} are {len(given) * params.n} choices; "
            f"allowed are {state.limits.max_choices}",
            param="n",
        )
    state.admission.check(len(given) * params.n)
    prompts = [await _make_prompt(state, body, item) for item in given]
    for prompt in prompts:
        state.prompts.truncate(prompt, body.truncate_prompt_tokens, side=body.truncation_side)
    warnings += notes + [n for p in prompts for n in p.notes] + priority_note(state, body)
    asked = _asked_tokens(body)
    generation = generation_of(body)(
        state,
        prompts,
        params,
        client_id=f"cmpl-{client_id(request, body)}",
        asked_tokens=1 if _hides_output(body) else asked,
        default_tokens=body.max_tokens,
        salt=salt_of(api_key(request), body.cache_salt, shared=state.limits.share_prefix_cache),
        priority=body.priority,
        arrival=arrival,
        hides_output=_hides_output(body),
    )
    options = _options(request, state, body, warnings)
    if body.stream:
        writer = CompletionStream(options, state.codec, generation.prompt_of)
        interval = stream_interval(state, body)
        return await answer_stream(
            request, generation, writer, usage=usage, interval=interval, warnings=warnings
        )
    fold = CompletionFold(options, state.codec, generation.prompt_of, generation.num_choices)
    return await answer_whole(request, generation, fold, warnings=warnings)


def _asked_tokens(body: CompletionBody) -> int | None:
    if body.max_completion_tokens is not None:
        return body.max_completion_tokens
    return body.max_tokens if "max_tokens" in body.model_fields_set else None


def _hides_output(body: CompletionBody) -> bool:
    """echo with max_tokens 0 scores the prompt only: one token is made and dropped."""
    return body.echo and _asked_tokens(body) == 0


def _prompts(body: CompletionBody, max_prompts: int) -> list[str] | list[list[int]]:
    prompt = body.prompt
    if not prompt:
        raise InvalidRequest(
            "prompt is missing or empty; it is text, token ids, or a list of either", param="prompt"
        )
    many: list[str] | list[list[int]]
    if isinstance(prompt, str):
        many = [prompt]
    elif isinstance(prompt[0], int):
        many = [prompt]  # a list of ids is one prompt
    else:
        many = prompt
    if len(many) > max_prompts:
        raise InvalidRequest(f"prompt holds {len(many)} prompts; allowed are {max_prompts}", param="prompt")
    return many


async def _make_prompt(state: ApiState, body: CompletionBody, item: str | list[int]) -> Prompt:
    if isinstance(item, str):
        return await state.prompts.from_text(item, add_special_tokens=body.add_special_tokens)
    return state.prompts.from_ids(item)


def _params(state: ApiState, body: CompletionBody) -> tuple[SamplingParams, list[str]]:
    asked = _asked_tokens(body)
    shown = 0 if body.logprob_token_ids else body.logprobs  # chosen ids are those of drawn tokens
    if body.echo and shown is not None:
        # The prompt is echoed with its logprobs, so they have to be computed.
        most = -1 if -1 in (shown, body.prompt_logprobs) else max(shown, body.prompt_logprobs or 0)
        scored = body.model_copy(update={"prompt_logprobs": most})
    else:
        scored = body
    return build_params(
        scored,
        state.defaults,
        state.codec,
        logprobs=body.logprobs,
        max_tokens=1 if _hides_output(body) else body.max_tokens if asked is None else asked,
        vocab_size=state.engine.vocab_size,
        max_logprobs=state.engine.max_logprobs,
        limits=state.limits,
    )


def _options(
    request: Request, state: ApiState, body: CompletionBody, warnings: list[str]
) -> CompletionOptions:
    return CompletionOptions(
        id=f"cmpl-{client_id(request, body)}",
        model=state.served_name(body.model),
        created=int(time.time()),
        fingerprint=state.fingerprint,
        logprobs=-1 if body.logprob_token_ids else body.logprobs,
        prompt_logprobs=body.prompt_logprobs is not None,
        tokens_as_ids=body.return_tokens_as_token_ids,
        return_token_ids=body.return_token_ids,
        echo=body.echo,
        skip_special_tokens=body.skip_special_tokens,
        hides_output=_hides_output(body),
        warnings=warnings,
    )
