"""Body of /v1/chat/completions and its messages, as OpenAI's clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator

from octavo.api.schema.common import GenerationBody


class Message(BaseModel):
    """One turn. Other keys are kept: templates may read them. Content may be absent beside tool calls."""

    model_config = ConfigDict(extra="allow")

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str | list[Any] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    reasoning: str | None = Field(
        default=None, validation_alias=AliasChoices("reasoning", "reasoning_content")
    )

    @field_validator("content", mode="before")
    @classmethod
    def _one_part_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value


class ChatFields(BaseModel):
    """What decides the prompt of a chat; /tokenize takes the same."""

    messages: Annotated[list[Message], Field(min_length=1)]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    tools: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None


class ChatBody(ChatFields, GenerationBody):
    logprobs: bool = False
    top_logprobs: int = 0
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    return_prompt_text: bool = False
