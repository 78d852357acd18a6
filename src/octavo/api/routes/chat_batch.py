"""POST /v1/chat/completions/batch: several conversations with one set of parameters, answered as one completion.

Each conversation is a chat turn of its own; here is only how they are told apart and put together.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import fields
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.api.generation import Usage, engine_error
from octavo.api.router import Router
from octavo.api.routes import turn
from octavo.api.routes.chat import options_of
from octavo.api.routes.common import client_id, json_response, or_gone, read_json, state_of
from octavo.api.schema.chat import ChatBody, ChatFields
from octavo.api.schema.normalise import normalise
from octavo.api.state import ApiState
from octavo.api.writers.chat import ChatFold
from octavo.api.writers.shapes import usage_shape
from octavo.errors import InvalidRequest

router = Router()
#: What a batch does not have, and the values that ask for nothing.
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), "each conversation gets one choice"),
    "stream": ((False,), "a batch is answered as a whole"),
    "stream_options": ((), "a batch is answered as a whole"),
    "tools": (([],), "a batch calls no tools"),
    "tool_choice": (("none",), "a batch calls no tools"),
    "use_beam_search": ((False,), "a batch has no beam search; send its conversations one by one"),
    "early_stopping": ((False,), "it acts on beam search only"),
}


@router.post("/v1/chat/completions/batch")
async def chat_batch(request: Request) -> Response:
    arrival = time.monotonic()
    state = state_of(request)
    bodies, warnings = _bodies(state, await read_json(request))
    state.admission.check(len(bodies))
    answer_id = f"chatcmpl-{client_id(request, bodies[0])}"
    turns = [
        await turn.begin(request, body, client_id=f"{answer_id}-{i}", arrival=arrival)
        for i, body in enumerate(bodies)
    ]
    for one in turns:
        warnings += [w for w in one.warnings if w not in warnings]
    return json_response(await or_gone(request, _answer(request, state, turns, warnings)), warnings=warnings)


def _bodies(state: ApiState, given: dict[str, Any]) -> tuple[list[ChatBody], list[str]]:
    """(a body for each conversation, warnings). Raises InvalidRequest with the conversation's place."""
    given = {name: value for name, value in given.items() if value is not None}
    for name, (neutral, reason) in _REFUSED.items():
        if name in given and not any(given[name] == v and type(given[name]) is type(v) for v in neutral):
            raise InvalidRequest(f"{name} is not supported in a batch: {reason}", param=name)
    conversations = given.get("messages")
    if not isinstance(conversations, list) or not conversations:
        raise InvalidRequest(
            "messages is missing or empty; in a batch it is a list of conversations", param="messages"
        )
    most = state.limits.max_prompts
    if len(conversations) > most:
        raise InvalidRequest(
            f"messages holds {len(conversations)} conversations; allowed are {most}", param="messages"
        )
    if isinstance(given.get("model"), str):
        state.served_name(given["model"])
    fields_of = [_conversation(i, messages, state.strict) for i, messages in enumerate(conversations)]
    others = {name: value for name, value in given.items() if name not in _REFUSED}  # neutral ones
    first, warnings = normalise(ChatBody, {**others, "messages": conversations[0]}, strict=state.strict)
    return [first.model_copy(update={"messages": f.messages}) for f in fields_of], warnings


def _conversation(index: int, messages: Any, strict: bool) -> ChatFields:
    if not isinstance(messages, list):
        raise InvalidRequest(
            "messages is one conversation; in a batch it is a list of conversations",
            param=f"messages[{index}]",
        )
    try:
        return normalise(ChatFields, {"messages": messages}, strict=strict)[0]
    except InvalidRequest as error:
        param = f"messages[{index}]{(error.param or '').removeprefix('messages')}"
        message = f"messages[{index}]{error.message.removeprefix('messages')}"
        raise InvalidRequest(message, param=param, fix=error.fix) from None


async def _answer(
    request: Request, state: ApiState, turns: list[turn.ChatTurn], warnings: list[str]
) -> dict[str, Any]:
    """All turns side by side, as many as the engine has rows for; one that fails ends the others."""
    places = asyncio.Semaphore(state.engine.scheduler.max_num_seqs)

    async def one(index: int) -> dict[str, Any]:
        chat = turns[index]
        options = options_of(request, state, chat.body, chat.prompt, [])
        fold = ChatFold(options, state.codec, 1)
        async with places, aclosing(chat.generation.events(interval=1 << 40)) as events:
            async for event in events:
                if event.error is not None:
                    raise engine_error(event)
                fold.add(event)
        return _plain(fold.result(usage_shape(chat.generation.usage)))

    tasks = [asyncio.create_task(one(i)) for i in range(len(turns))]
    try:
        answers = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return _joined(answers, [chat.generation.usage for chat in turns], warnings)


def _plain(answer: Any) -> dict[str, Any]:
    plain = msgspec.to_builtins(answer)
    assert isinstance(plain, dict)
    return plain


def _joined(answers: list[dict[str, Any]], usages: list[Usage], warnings: list[str]) -> dict[str, Any]:
    """One completion: choice i is conversation i's. What the answers say of their prompts goes to the choices."""
    choices = []
    for i, answer in enumerate(answers):
        (choice,) = answer["choices"]
        choice["index"] = i
        for name in ("prompt_token_ids", "prompt_text"):
            if name in answer:
                choice[name] = answer.pop(name)
        choices.append(choice)
    total = Usage(**{f.name: _sum([getattr(u, f.name) for u in usages]) for f in fields(Usage)})
    whole = {**answers[0], "choices": choices, "usage": usage_shape(total)}
    return whole | ({"warnings": warnings} if warnings else {})


def _sum(counts: list[Any]) -> Any:
    """None where something was not counted."""
    return None if None in counts else sum(counts)
