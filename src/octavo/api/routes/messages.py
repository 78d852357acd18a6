"""Anthropic's POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from octavo.api.dialects.anthropic import NAMES, REFUSED, Translated, to_chat, to_prompt
from octavo.api.dialects.blocks import LateSystem
from octavo.api.dialects.bodies import chat_body, read_foreign
from octavo.api.dialects.errors import in_terms_of, prompt_too_long
from octavo.api.faults import REQUEST_ID
from octavo.api.router import Router
from octavo.api.routes import turn
from octavo.api.routes.common import answer_foreign, json_response, or_gone, state_of
from octavo.api.schema.chat import ChatBody
from octavo.api.schema.messages import CountBody, MessagesBody
from octavo.api.template_pool import TemplateFailure
from octavo.api.writers.messages import FRAMING, MessageFold, MessageOptions, MessageStream
from octavo.errors import InvalidRequest

router = Router()
Result = TypeVar("Result")

_VERSION = re.compile(r"20\d\d-[01]\d-[0-3]\d")


@router.post("/v1/messages")
async def messages(request: Request) -> Response:
    arrival = time.monotonic()
    state = state_of(request)
    _check_version(request)
    body, warnings = await read_foreign(request, MessagesBody, REFUSED)
    own = f"msg_{request.scope[REQUEST_ID]}"

    async def begin(chat: ChatBody) -> turn.ChatTurn:
        return await turn.begin(request, chat, client_id=own, arrival=arrival, fits=True)

    begun, notes = await _translated(
        request, body, lambda late_system: to_chat(body, state, late_system=late_system), begin
    )
    warnings += [*notes, *begun.warnings]
    generation = begun.generation
    options = MessageOptions(
        id=own,
        model=state.served_name(body.model),
        usage=lambda: generation.usage,
        is_cut=len(begun.prompt.ids) + body.max_tokens > state.max_model_len,
        shows_thoughts=body.thinking is None or body.thinking.display != "omitted",
    )
    return await answer_foreign(
        request,
        generation,
        streams=body.stream,
        writer=MessageStream(options),
        fold=MessageFold(options),
        framing=FRAMING,
        warnings=warnings,
    )


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request) -> Response:
    """The tokens of the very prompt that /v1/messages would make of the same body."""
    state = state_of(request)
    _check_version(request)
    body, warnings = await read_foreign(request, CountBody, REFUSED)

    def translate(late_system: LateSystem) -> Translated:
        done = to_prompt(body, state, late_system=late_system)
        if done.chat["messages"][-1]["role"] == "assistant":
            done.chat["add_generation_prompt"] = False
        return done

    async def count() -> int:
        prompt, notes = await _translated(request, body, translate, lambda chat: turn.prompt_of(state, chat))
        warnings.extend([*notes, *prompt.notes])
        return len(prompt.ids)

    shape: dict[str, Any] = {"input_tokens": await or_gone(request, count())}
    return json_response(shape, warnings=warnings)


async def _translated(
    request: Request,
    body: CountBody,
    translate: Callable[[LateSystem], Translated],
    work: Callable[[ChatBody], Awaitable[Result]],
) -> tuple[Result, list[str]]:
    """(what `work` makes of the chat, notes). A template that takes no system messages between the turns, as
    Claude Code sends them, gets them as the user's."""

    async def attempt(late_system: LateSystem) -> tuple[Result, list[str]]:
        done = translate(late_system)
        with in_terms_of(NAMES), prompt_too_long():
            chat, notes = chat_body(state_of(request), done.chat)
            return await work(chat), [*done.notes, *notes]

    try:
        return await attempt("system")
    except TemplateFailure:
        if not any(message.role == "system" for message in body.messages):
            raise
        return await attempt("user")


def _check_version(request: Request) -> None:
    """All versions so far write what this route writes. `anthropic-beta` is not looked at: what it allows is in
    the body, and is judged there."""
    version = request.headers.get("anthropic-version")
    if version is not None and not _VERSION.fullmatch(version):
        raise InvalidRequest(
            f"the header anthropic-version is {version[:32]!r}; it is a date such as 2023-06-01",
            param="anthropic-version",
        )
