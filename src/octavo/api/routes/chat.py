"""POST /v1/chat/completions."""

from __future__ import annotations

import time

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo.api.generation import Generation, salt_of
from octavo.api.prompt import Prompt, text_parts
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
from octavo.api.schema.chat import ChatBody
from octavo.api.state import ApiState
from octavo.api.writers.chat import ChatFold, ChatOptions, ChatStream
from octavo.errors import InvalidRequest
from octavo.wire.sampling import SamplingParams

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    arrival = time.monotonic()
    state = state_of(request)
    body, warnings = await read_body(request, ChatBody)
    usage = usage_wishes(body)
    _check_tools(body)
    params, notes = _params(state, body)
    state.admission.check(params.n)
    prompt = await state.prompts.from_chat(body)
    state.prompts.truncate(prompt, body.truncate_prompt_tokens, side=body.truncation_side)
    warnings += notes + prompt.notes + priority_note(state, body)
    generation = Generation(
        state,
        [prompt],
        params,
        client_id=f"chatcmpl-{client_id(request, body)}",
        asked_tokens=_asked_tokens(body),
        default_tokens=state.defaults.max_new_tokens,
        salt=salt_of(api_key(request), body.cache_salt, shared=state.limits.share_prefix_cache),
        priority=body.priority,
        arrival=arrival,
    )
    options = _options(request, state, body, prompt, warnings)
    if body.stream:
        writer = ChatStream(options, state.codec)
        interval = stream_interval(state, body)
        return await answer_stream(
            request, generation, writer, usage=usage, interval=interval, warnings=warnings
        )
    fold = ChatFold(options, state.codec, generation.num_choices)
    return await answer_whole(request, generation, fold, warnings=warnings)


def _asked_tokens(body: ChatBody) -> int | None:
    """`max_completion_tokens` is the newer name and wins."""
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens


def _check_tools(body: ChatBody) -> None:
    """Tools may be given with tool_choice "none" (the template is not told of them); calls are not parsed yet."""
    if body.tools and body.tool_choice != "none":
        raise InvalidRequest(
            "tools is not supported: tool calls are not parsed yet",
            param="tools",
            fix='leave tools out or send tool_choice "none"',
        )
    if not body.tools and body.tool_choice not in (None, "none"):
        raise InvalidRequest("tool_choice needs tools", param="tool_choice")


def _params(state: ApiState, body: ChatBody) -> tuple[SamplingParams, list[str]]:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs true", param="top_logprobs")
    return build_params(
        body,
        state.defaults,
        state.codec,
        logprobs=body.top_logprobs if body.logprobs else None,
        max_tokens=_asked_tokens(body),
        vocab_size=state.engine.vocab_size,
        max_logprobs=state.engine.max_logprobs,
        limits=state.limits,
    )


def _options(
    request: Request,
    state: ApiState,
    body: ChatBody,
    prompt: Prompt,
    warnings: list[str],
) -> ChatOptions:
    last = len(body.messages) - 1
    return ChatOptions(
        id=f"chatcmpl-{client_id(request, body)}",
        model=state.served_name(body.model),
        created=int(time.time()),
        fingerprint=state.fingerprint,
        role=state.server.response_role,
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs,
        tokens_as_ids=body.return_tokens_as_token_ids,
        return_token_ids=body.return_token_ids,
        prompt_ids=prompt.ids,
        prompt_text=prompt.text if body.return_prompt_text else None,
        echo="\n".join(text_parts(body.messages[last], last)) if body.echo else "",
        warnings=warnings,
    )
