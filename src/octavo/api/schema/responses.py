"""Body of /v1/responses as OpenAI's clients send it: its own fields, what is refused, what has no effect.

Fields of sampling pass unread to `ChatBody`, which checks them. Input items are read by
`api.dialects.response_items`, tools by `api.dialects.response_chat`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from octavo.api.schema.chat import MAX_MESSAGES
from octavo.api.schema.common import FIRST_ERROR, StreamOptions, at_most
from octavo.api.schema.normalise import normalise
from octavo.errors import InvalidRequest

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
MAX_TOOLS = 1_024
_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512  # of metadata: OpenAI's bounds

#: Fields that /v1/responses shares with chat completions; ChatBody checks them.
PASSED = (
    "model temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty seed logit_bias "
    "stop stop_token_ids bad_words allowed_token_ids min_tokens ignore_eos skip_special_tokens "
    "include_stop_str_in_output spaces_between_special_tokens priority cache_salt request_id stream_interval "
    "chat_template chat_template_kwargs structured_outputs thinking_token_budget include_reasoning"
).split()

#: Refused by name unless the value asks for nothing: (values that ask for nothing, reason).
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "access_programs": ((), "there are no programs of access"),
    "background_options": (
        ({"completion_window": "soonest"}, {}),
        "background work starts as soon as it can",
    ),
    "context_management": (([],), "compaction is not built; truncation 'auto' drops the oldest items"),
    "conversation": ((), "conversations are not kept; use previous_response_id"),
    "enable_response_messages": ((False,), "messages of other formats are not returned"),
    "image": ((), "this server takes text only"),
    "logprobs": ((False,), f"use include [{LOGPROBS!r}] and top_logprobs"),
    "max_completion_tokens": ((), "its name here is max_output_tokens"),
    "max_tokens": ((), "its name here is max_output_tokens"),
    "messages": ((), "its name here is input"),
    "moderation": ((), "nothing is moderated here"),
    "n": ((1,), "a response is one answer; send several requests"),
    "previous_input_messages": (([],), "use input or previous_response_id"),
    "prompt": ((), "prompt templates are not kept; send instructions and input"),
    "prompt_cache_options": ((), "prefixes are cached by content; there is nothing to choose"),
    "reasoning_effort": ((), "its name here is reasoning.effort"),
    "response_format": ((), "its name here is text.format"),
}


class TextConfig(BaseModel):
    model_config = ConfigDict(defer_build=True, strict=True, extra="forbid")

    format: Annotated[dict[str, Any], at_most(16)] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(BaseModel):
    model_config = ConfigDict(defer_build=True, strict=True, extra="forbid")

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None


class ResponseBody(BaseModel):
    """What is Responses' own. None = not given."""

    model_config = ConfigDict(defer_build=True, strict=True, extra="ignore", protected_namespaces=())

    input: Annotated[str | list[Any], at_most(MAX_MESSAGES)]
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    background: bool = False
    store: bool | None = None
    stream: bool = False
    stream_options: Annotated[StreamOptions | None, at_most(16)] = None
    include: Annotated[list[str], FIRST_ERROR, at_most(16)] = Field(default_factory=list)
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    metadata: Annotated[dict[str, Any] | None, at_most(_MAX_PAIRS)] = None
    parallel_tool_calls: bool = True
    reasoning: Annotated[Reasoning | None, at_most(16)] = None
    text: Annotated[TextConfig | None, at_most(16)] = None
    tools: Annotated[list[dict[str, Any]], FIRST_ERROR, at_most(MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: Annotated[str | dict[str, Any], at_most(16)] = "auto"
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    truncation: Literal["auto", "disabled"] = "disabled"
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] = "auto"
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @field_validator("metadata")
    @classmethod
    def _is_small_text(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        for key, text in (value or {}).items():
            if not isinstance(text, str) or len(key) > _MAX_KEY or len(text) > _MAX_VALUE:
                raise ValueError(
                    f"{key[:32]!r}: keys have at most {_MAX_KEY} characters, values are strings of at most {_MAX_VALUE}"
                )
        return value

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in self.include or self.top_logprobs > 0


def read(raw: dict[str, Any], *, strict: bool) -> tuple[ResponseBody, dict[str, Any], list[str]]:
    """(Responses' own fields, those that pass to ChatBody, warnings). Raises InvalidRequest naming the field."""
    raw = {name: value for name, value in raw.items() if value is not None}
    for name, (neutral, reason) in REFUSED.items():
        if name in raw:
            value = raw.pop(name)
            if not any(value == n and isinstance(value, bool) == isinstance(n, bool) for n in neutral):
                raise InvalidRequest(f"{name} is not supported: {reason}", param=name)
    passed = {name: raw.pop(name) for name in PASSED if name in raw}
    body, warnings = normalise(ResponseBody, raw, strict=strict)
    _refuse_combinations(body)
    notes = _notes(body)
    if notes and strict:
        param, note = notes[0]
        raise InvalidRequest(note, param=param, fix="leave it out (--strict)")
    return body, passed, warnings + [note for _, note in notes]


def _refuse_combinations(body: ResponseBody) -> None:
    if body.stream_options is not None:
        if not body.stream:
            raise InvalidRequest("stream_options needs stream true", param="stream_options")
        for name in ("include_obfuscation", "include_usage", "continuous_usage_stats"):
            if getattr(body.stream_options, name):
                raise InvalidRequest(
                    f"stream_options.{name} is not supported: deltas are not padded, and the last event has the usage",
                    param="stream_options",
                )
    if body.background and body.store is False:
        raise InvalidRequest(
            "background true needs store true: the answer has to be kept until it is asked for",
            param="background",
        )
    for i, name in enumerate(body.include):
        if name not in (LOGPROBS, ENCRYPTED):
            raise InvalidRequest(
                f"include[{i}] is {name[:64]!r}; this server can include {LOGPROBS!r}", param=f"include[{i}]"
            )
    _refuse_of_reasoning(body.reasoning or Reasoning())


def _refuse_of_reasoning(reasoning: Reasoning) -> None:
    for name in ("summary", "generate_summary"):
        if getattr(reasoning, name) in ("concise", "detailed"):
            raise InvalidRequest(
                f"reasoning.{name} {getattr(reasoning, name)!r} is not supported: thinking is not summed up",
                param=f"reasoning.{name}",
                fix="leave it out; reasoning items hold the text itself",
            )
    if reasoning.context not in (None, "auto"):
        raise InvalidRequest(
            "reasoning.context is not supported: the chat template decides which thinking it shows",
            param="reasoning.context",
        )
    if reasoning.mode not in (None, "standard"):
        raise InvalidRequest("reasoning.mode is not supported: there is one mode", param="reasoning.mode")


def _notes(body: ResponseBody) -> list[tuple[str, str]]:
    """(field, warning) of what was given and has no effect."""
    reasoning, text = body.reasoning or Reasoning(), body.text or TextConfig()
    inert = [
        ("max_tool_calls", body.max_tool_calls, "it bounds built-in tools, and there are none"),
        ("prompt_cache_key", body.prompt_cache_key, "prefixes are found by content"),
        ("prompt_cache_retention", body.prompt_cache_retention, "blocks are kept as long as there is room"),
        ("safety_identifier", body.safety_identifier, "nothing is recorded about users"),
        ("user", body.user, "nothing is recorded about users"),
        ("service_tier", body.service_tier not in ("auto", "default"), "there is one tier"),
        ("text.verbosity", text.verbosity not in (None, "medium"), "no model here reads it"),
        (
            "reasoning.summary",
            reasoning.summary or reasoning.generate_summary,
            "thinking is not summed up; reasoning items hold the text itself",
        ),
        ("include", ENCRYPTED in body.include, f"{ENCRYPTED}: reasoning items hold their text in clear"),
    ]
    return [
        (name, f"field {name!r} has no effect: {reason}")
        for name, value, reason in inert
        if value is not None and value is not False
    ]
