"""Bodies of Anthropic's /v1/messages and /v1/messages/count_tokens.

Owns types and ranges of the fields. Blocks of messages are looked at where they are translated
(`dialects.anthropic`), which names their place.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from octavo.api.schema.chat import MAX_MESSAGES
from octavo.api.schema.common import FIRST_ERROR, Int64, Strings, at_most

MAX_TOOLS = 1_024
LEAST_BUDGET = 1_024
_Block = dict[str, Any]
Blocks = Annotated[list[_Block], FIRST_ERROR]


class _Strict(BaseModel):
    model_config = ConfigDict(defer_build=True, strict=True, extra="forbid")


class CacheControl(_Strict):
    """A mark for a cache of prefixes. Octavo's finds every prefix by itself, marked or not."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: Literal["organization", "global"] | None = None


class Turn(_Strict):
    role: Literal["user", "assistant", "system"]
    content: Annotated[str | Blocks, at_most(MAX_MESSAGES)]


class Thinking(_Strict):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=LEAST_BUDGET)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class ToolChoice(_Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: StrictBool = False


class OutputFormat(_Strict):
    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(_Strict):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Metadata(_Strict):
    """Who the client's user is: for the operator of an API that counts users. Nothing is kept here."""

    user_id: Annotated[str, Field(max_length=512)] | None = None


class ContextManagement(_Strict):
    edits: Annotated[list[dict[str, Any]], FIRST_ERROR, at_most(16)] = Field(default_factory=list)


class CountBody(BaseModel):
    """What decides the prompt."""

    model_config = ConfigDict(defer_build=True, strict=True, extra="ignore", protected_namespaces=())

    model: str | None = None
    messages: Annotated[list[Turn], FIRST_ERROR, Field(min_length=1), at_most(MAX_MESSAGES)]
    system: Annotated[str | Blocks | None, at_most(MAX_MESSAGES)] = None
    tools: Annotated[list[dict[str, Any]], FIRST_ERROR, at_most(MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the name of output_config.format in an earlier beta
    context_management: ContextManagement | None = None
    cache_control: CacheControl | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)


class MessagesBody(CountBody):
    """The fields of Anthropic, and a few of Octavo: cache_salt, priority, seed, chat_template_kwargs."""

    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)]
    stop_sequences: Strings = Field(default_factory=list)
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Int64, Field(ge=0)] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    speed: Literal["standard"] | None = None
    cache_salt: str | None = None
    priority: Int64 = 0
    seed: Int64 | None = None
