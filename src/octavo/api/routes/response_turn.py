"""From a Responses body to a turn at the engine: earlier turns, input items, truncation, what is echoed."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from octavo.api.dialects.response_chat import chat_body, own_terms
from octavo.api.dialects.response_items import Item, kept, last_cut, read_items
from octavo.api.response_store import ResponseStore, Stored, Turn, conversation
from octavo.api.routes import turn
from octavo.api.routes.common import api_key, client_id, state_of
from octavo.api.schema.chat import ChatBody
from octavo.api.schema.responses import LOGPROBS, ResponseBody
from octavo.api.state import ApiState
from octavo.api.writers.responses import ResponseOptions
from octavo.errors import ContextOverflow, InvalidRequest

_PLAIN_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")  # what stands in a path as it is


@dataclass(slots=True)
class Asked:
    """One request, read: nothing has been spent on it yet but the reading."""

    body: ResponseBody
    passed: dict[str, Any]
    id: str
    owner: str
    sent: list[Item]
    parent: Turn | None
    stores: bool
    warnings: list[str] = field(default_factory=list)

    @property
    def items(self) -> list[Item]:
        return [*conversation(self.parent), *self.sent]


def owner_of(request: Request) -> str:
    """Whom a stored response belongs to: the API key, or everybody where there are none."""
    key = api_key(request)
    return "" if key is None else hashlib.sha256(key.encode()).hexdigest()


def ask(request: Request, body: ResponseBody, passed: dict[str, Any], warnings: list[str]) -> Asked:
    """Raises InvalidRequest for items that cannot be read and responses that are not there."""
    state, owner = state_of(request), owner_of(request)
    stores = _stores(state, body)
    response_id = _response_id(request, passed, warnings, owner if stores else None)
    parent = _parent(state.responses, owner, body)
    prefix = f"{response_id}_in"
    sent = read_items(body.input, prefix, lambda i, place: state.responses.item(owner, i, place))
    return Asked(body, passed, f"resp_{response_id}", owner, sent, parent, stores, warnings)


def _stores(state: ApiState, body: ResponseBody) -> bool:
    """Whether the answer is kept: by default yes, where there is a store. Refuses what needs one and has none."""
    off = state.responses.off
    for name, is_asked in (("background", body.background), ("store", body.store is True)):
        if is_asked and off is not None:
            raise InvalidRequest(
                f"{name} true needs stored responses: {off}",
                param=name,
                fix="leave it out, or send store false",
            )
    return off is None and body.store is not False


def _response_id(request: Request, passed: dict[str, Any], warnings: list[str], owner: str | None) -> str:
    """The client's id of the request where it can be the response's, else a new one. `owner`: if it is stored."""
    given = passed.get("request_id")
    if isinstance(given, str) and not _PLAIN_ID.fullmatch(given):
        raise InvalidRequest(
            "request_id becomes part of a path: 1 to 128 letters, digits and . _ : -", param="request_id"
        )
    found = client_id(request, ChatBody.model_construct(request_id=given if isinstance(given, str) else None))
    is_taken = owner is not None and state_of(request).responses.is_taken(owner, f"resp_{found}")
    if is_taken and found == given:
        raise InvalidRequest(
            f"a response 'resp_{found}' is stored already; a request_id can be used once", param="request_id"
        )
    if _PLAIN_ID.fullmatch(found) and not is_taken:
        return found
    why = "is that of a stored response" if is_taken else "cannot stand in a path"
    warnings.append(f"X-Request-Id {why}, so the response has an id of its own")
    return uuid.uuid4().hex


def _parent(store: ResponseStore, owner: str, body: ResponseBody) -> Turn | None:
    name = body.previous_response_id
    if name is None:
        return None
    before = store.get(owner, name, param="previous_response_id")
    if not before.can_be_continued:
        raise InvalidRequest(
            f"the response {name[:256]!r} is {before.status}; only a completed or incomplete one can be continued",
            param="previous_response_id",
        )
    return before.turn


# ---- the turn -----------------------------------------------------------------------------------


async def begin(request: Request, asked: Asked, *, arrival: float) -> turn.ChatTurn:
    """The turn at the engine. With truncation "auto" the oldest items go until the prompt fits."""
    state = state_of(request)
    chat, items_note = await chat_of(state, asked)
    with own_terms():
        begun = await turn.begin(request, chat, client_id=asked.id, arrival=arrival)
    asked.warnings += [*items_note, *begun.warnings]
    return begun


async def chat_of(state: ApiState, asked: Asked) -> tuple[ChatBody, list[str]]:
    """(the chat, notes), truncated if the body says so."""
    items = asked.items
    chat, notes = chat_body(asked.body, asked.passed, items, strict=state.strict)
    if asked.body.truncation == "disabled":
        return chat, notes
    least = asked.body.max_output_tokens or 1
    if await _fits(state, chat, least):
        return chat, notes
    # Without a number from the client a cut leaves a quarter of the context to the answer.
    wanted = asked.body.max_output_tokens or max(1, state.max_model_len // 4)
    first, best = await _first_that_fits(state, asked, items, wanted)
    if best is None:
        return chat, notes  # and the prompt is refused, with the numbers
    count = len(items) - len(kept(items, first))
    word = "1 item was" if count == 1 else f"{count} items were"
    return best, [
        *notes,
        f"truncation auto: the oldest {word} dropped, so that the prompt fits {state.max_model_len} tokens",
    ]


async def _first_that_fits(
    state: ApiState, asked: Asked, items: list[Item], wanted: int
) -> tuple[int, ChatBody | None]:
    """The least number of items to drop, by bisection: each try renders the prompt."""
    low, high = 1, last_cut(items)
    best: ChatBody | None = None
    first = high
    while low <= high:
        middle = (low + high) // 2
        chat, _ = chat_body(asked.body, asked.passed, kept(items, middle), strict=state.strict)
        if await _fits(state, chat, wanted):
            first, best, high = middle, chat, middle - 1
        else:
            low = middle + 1
    return first, best


async def _fits(state: ApiState, chat: ChatBody, num_output: int) -> bool:
    try:
        with own_terms():
            prompt = await turn.prompt_of(state, chat)
    except ContextOverflow:
        return False
    await asyncio.sleep(0)  # a long search lets others in between
    return len(prompt.ids) + num_output <= state.max_model_len


# ---- what the response says of the request --------------------------------------------------------


def options_of(state: ApiState, asked: Asked, chat: ChatBody) -> ResponseOptions:
    """`chat` is what ran: sampling that was not given shows the server's defaults."""
    body, defaults = asked.body, state.defaults

    def used(name: str) -> Any:
        value = getattr(chat, name)
        return getattr(defaults, name) if value is None else value

    reasoning, text = body.reasoning, body.text
    echo = {
        "model": state.served_name(chat.model),
        "instructions": body.instructions,
        "previous_response_id": body.previous_response_id,
        "background": body.background,
        "store": asked.stores,
        "metadata": body.metadata or {},
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning": {"effort": reasoning.effort if reasoning is not None else None, "summary": None},
        "service_tier": "default",
        "temperature": used("temperature"),
        "top_p": used("top_p"),
        "presence_penalty": used("presence_penalty"),
        "frequency_penalty": used("frequency_penalty"),
        "text": {"format": (text.format if text is not None else None) or {"type": "text"}},
        "tool_choice": body.tool_choice,
        "tools": [_shown(tool) for tool in body.tools],
        "top_logprobs": body.top_logprobs,
        "truncation": body.truncation,
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
    }
    return ResponseOptions(
        id=asked.id,
        created=int(time.time()),
        echo=echo,
        has_logprobs=body.wants_logprobs,
        top_logprobs=body.top_logprobs,
        shows_reasoning=chat.include_reasoning,
        warnings=asked.warnings,
    )


def _shown(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool with the keys that clients expect in any case."""
    return {"description": None, "parameters": None, "strict": None, **tool}


def check_include(stored: Stored, include: list[str]) -> None:
    """Raises InvalidRequest for something that the response was not made with."""
    for name in include:
        if name != LOGPROBS or not stored.has_logprobs:
            raise InvalidRequest(
                f"include {name[:64]!r} is not in this response; {LOGPROBS!r} is, if it was made with it",
                param="include",
            )
