"""Body of /v1/chat/completions and its messages, as OpenAI's clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator

from octavo.api.schema.common import FIRST_ERROR, GenerationBody, at_most

MAX_MESSAGES = 16_384  # and parts of one
ROLES = ("system", "developer", "user", "assistant", "tool")


class Message(BaseModel):
    """One turn. Other keys are kept: templates may read them. An assistant's content may be absent."""

    model_config = ConfigDict(defer_build=True, extra="allow")

    role: str
    content: Annotated[str | list[Any] | None, at_most(MAX_MESSAGES)] = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[dict[str, Any]], FIRST_ERROR] | None = None
    reasoning: str | None = Field(
        default=None, validation_alias=AliasChoices("reasoning", "reasoning_content")
    )

    @field_validator("role")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in ROLES:
            raise ValueError(f"{value[:32]!r} is not a role; allowed are {', '.join(ROLES)}")
        return value

    @field_validator("content", mode="before")
    @classmethod
    def _one_part_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value


class ChatFields(BaseModel):
    """What decides the prompt of a chat; /tokenize takes the same."""

    model_config = ConfigDict(defer_build=True)
    messages: Annotated[list[Message], FIRST_ERROR, Field(min_length=1), at_most(MAX_MESSAGES)]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    tools: Annotated[list[dict[str, Any]], FIRST_ERROR] | None = None
    documents: Annotated[list[dict[str, Any]], FIRST_ERROR, at_most(MAX_MESSAGES)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None


class ChatBody(ChatFields, GenerationBody):
    logprobs: bool = False
    top_logprobs: int = 0
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    thinking_token_budget: Annotated[int, Field(ge=-1)] | None = None
    return_prompt_text: bool = False
