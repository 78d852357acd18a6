"""One turn of a chat at the engine, whatever dialect asked for it.

A dialect translates its own body into a `ChatBody`, calls `begin`, and writes the events of
`turn.generation` its own way. Owns what of a chat body decides the prompt, the parameters and the
parsers. Knows no dialect's answer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from starlette.requests import Request

from octavo.api.generation import Generation, salt_of
from octavo.api.prompt import Prompt
from octavo.api.routes.common import api_key, priority_note, state_of
from octavo.api.sampling import build_params
from octavo.api.schema.chat import ChatBody
from octavo.api.state import ApiState
from octavo.errors import InvalidRequest
from octavo.wire.sampling import SamplingParams


@dataclass(slots=True)
class ChatTurn:
    """`warnings` are what the client should hear besides the answer."""

    body: ChatBody
    prompt: Prompt
    generation: Generation
    warnings: list[str] = field(default_factory=list)


async def begin(
    request: Request, body: ChatBody, *, client_id: str, arrival: float | None = None
) -> ChatTurn:
    """Prompt, parameters and parsers of a chat; nothing runs until its events are asked for.

    Raises InvalidRequest for whatever cannot act: before anything costs.
    """
    arrival = time.monotonic() if arrival is None else arrival
    state = state_of(request)
    _check_tools(body)
    params, notes = _params(state, body)
    state.admission.check(params.n)
    prompt = await state.prompts.from_chat(body)
    state.prompts.truncate(prompt, body.truncate_prompt_tokens, side=body.truncation_side)
    generation = Generation(
        state,
        [prompt],
        params,
        client_id=client_id,
        asked_tokens=_asked_tokens(body),
        default_tokens=state.defaults.max_new_tokens,
        salt=salt_of(api_key(request), body.cache_salt, shared=state.limits.share_prefix_cache),
        priority=body.priority,
        arrival=arrival,
    )
    return ChatTurn(body, prompt, generation, [*notes, *prompt.notes, *priority_note(state, body)])


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
