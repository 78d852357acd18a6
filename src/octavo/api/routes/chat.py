"""POST /v1/chat/completions."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from octavo.api.dialects.errors import in_terms_of
from octavo.api.prompt import Prompt, text_parts
from octavo.api.router import Router
from octavo.api.routes import turn
from octavo.api.routes.common import (
    answer_stream,
    answer_whole,
    client_id,
    read_body,
    state_of,
    stream_interval,
    usage_wishes,
)
from octavo.api.schema.chat import ChatBody
from octavo.api.state import ApiState
from octavo.api.writers.chat import ChatFold, ChatOptions, ChatStream

router = Router()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    arrival = time.monotonic()
    state = state_of(request)
    body, warnings = await read_body(request, ChatBody)
    usage = usage_wishes(body)
    with in_terms_of(_names(body)):
        chat = await turn.begin(
            request, body, client_id=f"chatcmpl-{client_id(request, body)}", arrival=arrival
        )
    warnings += chat.warnings
    options = options_of(request, state, body, chat.prompt, warnings)
    if body.stream:
        writer = ChatStream(options, state.codec)
        interval = stream_interval(state, body)
        return await answer_stream(
            request, chat.generation, writer, usage=usage, interval=interval, warnings=warnings
        )
    fold = ChatFold(options, state.codec, chat.generation.num_choices)
    return await answer_whole(request, chat.generation, fold, warnings=warnings)


def _names(body: ChatBody) -> dict[str, str]:
    """Fields that a body may give by another name than the parameter that is refused."""
    names = {"logprobs": "top_logprobs"} if body.logprobs and "top_logprobs" in body.model_fields_set else {}
    return names if body.max_completion_tokens is None else {**names, "max_tokens": "max_completion_tokens"}


def options_of(
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
        logprobs=body.logprobs or bool(body.logprob_token_ids),
        top_logprobs=-1 if body.logprob_token_ids else body.top_logprobs,
        tokens_as_ids=body.return_tokens_as_token_ids,
        return_token_ids=body.return_token_ids,
        prompt_ids=prompt.ids,
        prompt_text=prompt.text if body.return_prompt_text else None,
        echo="\n".join(text_parts(body.messages[last], last)) if body.echo else "",
        warnings=warnings,
        include_reasoning=body.include_reasoning,
        reasoning_alias=state.server.reasoning_alias,
    )
