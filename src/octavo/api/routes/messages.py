"""Anthropic's POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import re
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from octavo.api.dialects.anthropic import NAMES, REFUSED, to_chat, to_prompt
from octavo.api.dialects.bodies import chat_body, read_foreign
from octavo.api.dialects.errors import in_terms_of
from octavo.api.faults import REQUEST_ID
from octavo.api.router import Router
from octavo.api.routes import turn
from octavo.api.routes.common import answer_stream, answer_whole, json_response, or_gone, state_of
from octavo.api.schema.messages import CountBody, MessagesBody
from octavo.api.writers.messages import FRAMING, MessageFold, MessageOptions, MessageStream
from octavo.errors import InvalidRequest

router = Router()

_VERSION = re.compile(r"20\d\d-[01]\d-[0-3]\d")


@router.post("/v1/messages")
async def messages(request: Request) -> Response:
    arrival = time.monotonic()
    state = state_of(request)
    _check_version(request)
    body, warnings = await read_foreign(request, MessagesBody, REFUSED)
    done = to_chat(body, state)
    own = f"msg_{request.scope[REQUEST_ID]}"
    with in_terms_of(NAMES):
        chat, notes = chat_body(state, done.chat)
        begun = await turn.begin(request, chat, client_id=own, arrival=arrival, fits=True)
    warnings += [*done.notes, *notes, *begun.warnings]
    generation = begun.generation
    options = MessageOptions(
        id=own,
        model=state.served_name(body.model),
        usage=lambda: generation.usage,
        is_cut=len(begun.prompt.ids) + body.max_tokens > state.max_model_len,
        shows_thoughts=body.thinking is None or body.thinking.display != "omitted",
    )
    if body.stream:
        return await answer_stream(
            request,
            generation,
            MessageStream(options),
            usage=(True, False),
            interval=state.server.stream_interval,
            warnings=warnings,
            framing=FRAMING,
        )
    return await answer_whole(request, generation, MessageFold(options), warnings=warnings)


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request) -> Response:
    """The tokens of the very prompt that /v1/messages would make of the same body."""
    state = state_of(request)
    _check_version(request)
    body, warnings = await read_foreign(request, CountBody, REFUSED)
    done = to_prompt(body, state)
    if done.chat["messages"][-1]["role"] == "assistant":
        done.chat["add_generation_prompt"] = False

    async def count() -> int:
        with in_terms_of(NAMES):
            chat, notes = chat_body(state, done.chat)
            prompt = await turn.prompt_of(state, chat)
        warnings.extend([*done.notes, *notes, *prompt.notes])
        return len(prompt.ids)

    shape: dict[str, Any] = {"input_tokens": await or_gone(request, count())}
    return json_response(shape, warnings=warnings)


def _check_version(request: Request) -> None:
    """All versions so far write what this route writes. `anthropic-beta` is not looked at: what it allows is in
    the body, and is judged there."""
    version = request.headers.get("anthropic-version")
    if version is not None and not _VERSION.fullmatch(version):
        raise InvalidRequest(
            f"the header anthropic-version is {version[:32]!r}; it is a date such as 2023-06-01",
            param="anthropic-version",
        )
