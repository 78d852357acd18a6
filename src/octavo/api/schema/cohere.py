"""Body of Cohere's v2 chat. Owns types; ranges that depend on the model are checked where ours are."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from octavo.api.schema.chat import MAX_MESSAGES
from octavo.api.schema.common import FIRST_ERROR, Int64, Strings, at_most
from octavo.api.schema.messages import MAX_TOOLS

MAX_DOCUMENTS = 1_024
Parts = Annotated[list[dict[str, Any]], FIRST_ERROR]


class _Strict(BaseModel):
    model_config = ConfigDict(defer_build=True, strict=True, extra="forbid")


class CohereMessage(_Strict):
    role: Literal["system", "user", "assistant", "tool"]
    content: Annotated[str | Parts | None, at_most(MAX_MESSAGES)] = None
    tool_calls: Annotated[list[dict[str, Any]], FIRST_ERROR, at_most(MAX_TOOLS)] | None = None
    tool_call_id: str | None = None
    tool_plan: str | None = None
    citations: Annotated[list[Any], at_most(MAX_MESSAGES)] | None = None


class Document(_Strict):
    data: dict[str, Any]
    id: str | None = None


class CitationOptions(_Strict):
    mode: Literal["ENABLED", "DISABLED", "FAST", "ACCURATE", "OFF"] | None = None


class CohereFormat(_Strict):
    """`json_schema` is what the client package sends; `schema` its older name."""

    type: Literal["text", "json_object"]
    json_schema: dict[str, Any] | None = None
    older_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class CohereThinking(_Strict):
    type: Literal["enabled", "disabled"]
    token_budget: Annotated[int, Field(ge=1)] | None = None


class CohereBody(BaseModel):
    model_config = ConfigDict(defer_build=True, strict=True, extra="ignore", protected_namespaces=())

    model: str | None = None
    messages: Annotated[list[CohereMessage], FIRST_ERROR, Field(min_length=1), at_most(MAX_MESSAGES)]
    stream: bool = False
    tools: Annotated[list[dict[str, Any]], FIRST_ERROR, at_most(MAX_TOOLS)] | None = None
    strict_tools: StrictBool = False
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    documents: Annotated[list[str | Document], FIRST_ERROR, at_most(MAX_DOCUMENTS)] | None = None
    citation_options: CitationOptions | None = None
    response_format: CohereFormat | None = None
    safety_mode: Literal["CONTEXTUAL", "STRICT", "OFF"] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    stop_sequences: Strings = Field(default_factory=list)
    temperature: float | None = None
    seed: Int64 | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    p: float | None = None
    logprobs: bool = False
    thinking: CohereThinking | None = None
    priority: Int64 = 0
    cache_salt: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
