"""One turn of a chat at the engine, whatever dialect asked for it.

A dialect translates its own body into a `ChatBody`, calls `begin`, and writes the events of
`turn.generation` its own way. Owns what of a chat body decides the prompt, the parameters and the
parsers. Knows no dialect's answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from starlette.requests import Request

from octavo.api.beam_generation import generation_of
from octavo.api.generation import Generation, salt_of
from octavo.api.output_grammar import Composed, Shape, compose
from octavo.api.prompt import Prompt
from octavo.api.routes.common import api_key, priority_note, state_of
from octavo.api.sampling import build_params, eos_ids
from octavo.api.schema.chat import ChatBody, ChatFields
from octavo.api.state import ApiState
from octavo.api.structured import param_of, spec_of
from octavo.api.text.parsers.choose import Thinking
from octavo.api.text.parsers.machine import Ask, OutputParser
from octavo.api.tools import ToolWish, tool_wish, without_tools
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
    request: Request, body: ChatBody, *, client_id: str, arrival: float | None = None, fits: bool = False
) -> ChatTurn:
    """Prompt, parameters and parsers of a chat; nothing runs until its events are asked for.

    `fits`: max_tokens that the context has no room for are cut to what it has, not refused.
    Raises InvalidRequest for whatever cannot act: before anything costs.
    """
    arrival = time.monotonic() if arrival is None else arrival
    state = state_of(request)
    wish = _wish(state, body)
    params, notes = _params(state, body)
    state.admission.check(params.n)
    prompt = await state.prompts.from_chat(_shown(state, body, wish))
    state.prompts.truncate(prompt, body.truncate_prompt_tokens, side=body.truncation_side)
    thinking = thinking_of(state, body, prompt)
    params, composed = await _constrained(state, body, params, wish, thinking)
    notes += composed.notes
    asked, default = _asked_tokens(body), state.defaults.max_new_tokens
    if fits and asked is not None:
        asked, default = None, asked
    generation = generation_of(body)(
        state,
        [prompt],
        params,
        client_id=client_id,
        asked_tokens=asked,
        default_tokens=default,
        salt=salt_of(api_key(request), body.cache_salt, shared=state.limits.share_prefix_cache),
        priority=body.priority,
        arrival=arrival,
        new_parser=_parser_of(state, thinking, wish, params, reads_loose=composed.has_loose),
    )
    return ChatTurn(body, prompt, generation, [*notes, *prompt.notes, *priority_note(state, body)])


async def prompt_of(state: ApiState, body: ChatBody) -> Prompt:
    """The prompt that `begin` would make, for who only counts its tokens."""
    return await state.prompts.from_chat(_shown(state, body, _wish(state, body)))


def _asked_tokens(body: ChatBody) -> int | None:
    """`max_completion_tokens` is the newer name and wins."""
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens


def _wish(state: ApiState, body: ChatBody) -> ToolWish:
    """Raises InvalidRequest for tools that cannot act."""
    wish = tool_wish(body.tools, body.tool_choice, is_parallel=body.parallel_tool_calls, limits=state.limits)
    if not wish.may_call:
        return wish
    if state.parsers.tool is None:
        raise InvalidRequest(
            "tools is not supported: no format of tool calls is known for this model",
            param="tools",
            fix="start the server with --tool-call-parser",
        )
    if wish.choice == "auto" and not state.server.auto_tool_choice:
        raise InvalidRequest(
            'tool_choice "auto" is switched off on this server (--no-enable-auto-tool-choice)',
            param="tool_choice",
            fix='send "none", "required" or a function',
        )
    return wish


def _shown(state: ApiState, body: ChatBody, wish: ToolWish) -> ChatFields:
    """The body as the template gets it: with tool_choice "none" it is not told of tools, so that none is called."""
    return body if wish.may_call or not state.server.hides_tools_on_none else without_tools(body)


async def _constrained(
    state: ApiState, body: ChatBody, params: SamplingParams, wish: ToolWish, thinking: Thinking
) -> tuple[SamplingParams, Composed]:
    """(parameters with the one grammar for thinking, calls and answer, what is told of it)."""
    answer = spec_of(body, state.engine)
    budget = body.thinking_token_budget
    if budget is not None and (budget < 0 or (budget >= state.max_model_len and state.parsers.reasoning)):
        budget = None  # no bound, or one that no answer reaches
    shape = Shape(
        wish=wish,
        thinking=thinking,
        budget=budget,
        answer=answer,
        level=state.server.tool_strict_level,
    )
    composed = compose(shape, state.parsers, state.codec, eos_ids(state.codec, state.defaults, params))
    if composed.spec is None:
        return await state.grammars.constrain(body, params), composed
    field = "tools" if wish.may_call else "thinking_token_budget"
    for name in ("ignore_eos", "use_beam_search"):
        if getattr(body, name):
            raise InvalidRequest(
                f"{name} is true with {field}: the answer follows a grammar, which {name} would break",
                param=name,
                fix="leave one of them out",
            )
    if answer is not None:  # by itself first: an error in it names its own keyword
        await state.grammars.check(answer, param_of(body))
    await state.grammars.check(composed.spec, field if answer is None or wish.may_call else param_of(body))
    return msgspec.structs.replace(params, structured=composed.spec), composed


def _parser_of(
    state: ApiState, thinking: Thinking, wish: ToolWish, params: SamplingParams, *, reads_loose: bool
) -> Callable[[], OutputParser] | None:
    """What makes the parser of each choice; None where the text is the answer.

    `reads_loose`: the grammar, where there is one, lets calls through without their marks.
    """
    parsers = state.parsers
    ask = Ask(
        tools=wish.schemas if wish.may_call else None,
        starts_in_reasoning=thinking == "open",
        max_calls=None if wish.is_parallel or not wish.may_call else 1,
        follows_grammar=params.structured is not None,
        reads_loose=reads_loose or params.structured is None,
    )
    if ask.tools is None and parsers.reasoning is None:
        return None
    # Who sees special tokens as text gets markers as text, and the parser reads them there.
    formats = parsers.formats if params.skip_special_tokens else parsers.plain
    return lambda: OutputParser(formats, ask)


def thinking_of(state: ApiState, body: ChatBody, prompt: Prompt) -> Thinking:
    """Whether the answer begins inside a thought that the prompt has opened, or may open one."""
    parsers = state.parsers
    if parsers.reasoning is None:
        return "no"
    tail = prompt.text
    if tail is None or prompt.was_truncated:
        tail = state.codec.decode(prompt.ids[-256:], skip_special_tokens=False)
    return parsers.thinking(
        tail,
        {**state.server.default_chat_template_kwargs, **body.chat_template_kwargs},
        effort=body.reasoning_effort,
        continues=body.continue_final_message,
    )


def _params(state: ApiState, body: ChatBody) -> tuple[SamplingParams, list[str]]:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs true", param="top_logprobs")
    logprobs = body.top_logprobs if body.logprobs else None
    if body.logprob_token_ids:  # they are the logprobs; a number of others may only repeat how many
        if not body.logprobs and "logprobs" in body.model_fields_set:
            raise InvalidRequest("logprob_token_ids needs logprobs true, or left out", param="logprobs")
        logprobs = body.top_logprobs if "top_logprobs" in body.model_fields_set else None
    return build_params(
        body,
        state.defaults,
        state.codec,
        logprobs=logprobs,
        max_tokens=_asked_tokens(body),
        vocab_size=state.engine.vocab_size,
        max_logprobs=state.engine.max_logprobs,
        limits=state.limits,
    )
