"""From messages, text or token ids to the token ids of a prompt.

Owns chat templates (through the template pool), content formats, the rule of one BOS, truncation on
request and the check against the context. Rendering ends in ids: rendered text is encoded here, once,
and nowhere else. Knows no engine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.api.schema.chat import ChatFields, Message
from octavo.api.template_pool import TemplatePool
from octavo.api.text.codec import TextCodec
from octavo.api.text.parsers.rows import ToolRow
from octavo.api.tool_prompt import can_teach, taught
from octavo.errors import ContextOverflow, InvalidRequest

RESERVED_KWARGS = frozenset(
    "add_generation_prompt bos_token chat_template continue_final_message conversation documents eos_token "
    "loop max_length messages padding raise_exception return_assistant_tokens_mask return_dict return_tensors "
    "self strftime_now template_kwargs tokenize tokenizer_kwargs tools truncation varargs kwargs caller".split()
)
_CUT = "\u2063octavo-continue\u2063"
_INLINE_CHARS = 4_096  # longer texts are encoded beside the event loop
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
ContentFormat = Literal["auto", "string", "openai"]


@dataclass(slots=True)
class Prompt:
    """`text` is what was rendered or given; None for a prompt of token ids."""

    ids: list[int]
    text: str | None = None
    notes: list[str] = field(default_factory=list)
    was_truncated: bool = False


class ChatTemplate:
    """The model's template (or the operator's). Stateless but for what `prepare` learns about it."""

    def __init__(
        self,
        source: str | None,
        codec: TextCodec,
        pool: TemplatePool,
        *,
        content_format: ContentFormat = "auto",
        trust_request: bool = False,
        default_kwargs: Mapping[str, Any] | None = None,
        special_tokens: Mapping[str, str] | None = None,
        tool_row: ToolRow | None = None,
    ) -> None:
        self._tool_row = tool_row
        self.source = source
        self._special_tokens = {**_named_tokens(codec), **(special_tokens or {})}
        self._pool = pool
        self._trust_request = trust_request
        self._defaults = dict(default_kwargs or {})
        self._fixed_format = content_format
        self._forms: dict[str, dict[str, bool]] = {}

    def check(self) -> None:
        """Raises InvalidRequest for a template that is none; what it makes of messages is not tried."""
        if self.source is not None:
            self._pool.run({"kind": "compile", "template": self.source, "variables": {}})

    async def render(self, fields: ChatFields) -> tuple[str, list[str]]:
        """(text, notes). Raises InvalidRequest when the template refuses, fails or is too slow."""
        source = self._source_for(fields)
        adds_turn = _adds_turn(fields)
        takes_string, takes_parts = await self._content_forms(source)
        messages = [
            _for_template(m, i, source, takes_string=takes_string, takes_parts=takes_parts)
            for i, m in enumerate(fields.messages)
        ]
        notes = self._show_tools(fields, source, messages)
        if fields.documents and "documents" not in source:
            raise InvalidRequest(
                "documents is not supported: the chat template of this model does not read documents",
                param="documents",
                fix="put them into a message",
            )
        if fields.continue_final_message:
            _mark_end(messages)
        given = _checked_kwargs(fields)
        variables = {
            **self._special_tokens,
            **self._defaults,
            **given,
            "messages": messages,
            "tools": fields.tools or None,
            "documents": fields.documents or None,
            "add_generation_prompt": adds_turn,
        }
        job = {"kind": "render", "template": source, "variables": variables}
        text: str = await self._pool.run_async(job)
        if fields.continue_final_message:
            text = _cut_at_mark(text)
        notes += [f"the chat template does not read {k!r}" for k in given if k not in source]
        return text, notes

    def _show_tools(self, fields: ChatFields, source: str, messages: list[dict[str, Any]]) -> list[str]:
        """Tools for a template that has no place for them go into the system message."""
        if not fields.tools or "tools" in source:
            return []
        row = self._tool_row
        if row is None or not can_teach(row):
            raise InvalidRequest(
                "tools is not supported: the chat template of this model does not show tools",
                param="tools",
                fix="start the server with a --chat-template that shows them",
            )
        messages[:] = taught(messages, fields.tools, row)
        return ["the chat template does not show tools: the system message describes them"]

    def _source_for(self, fields: ChatFields) -> str:
        if fields.chat_template is not None:
            if not self._trust_request:
                raise InvalidRequest(
                    "chat_template is not taken from requests",
                    param="chat_template",
                    fix="start the server with --trust-request-chat-template",
                )
            return fields.chat_template
        if self.source is None:
            raise InvalidRequest(
                "this model has no chat template",
                param="messages",
                fix="use /v1/completions, or start the server with --chat-template",
            )
        return self.source

    async def _content_forms(self, source: str) -> tuple[bool, bool]:
        """(takes a string, takes a list of parts)."""
        if self._fixed_format != "auto":
            return self._fixed_format == "string", self._fixed_format == "openai"
        forms = self._forms.get(source)
        if forms is None:
            variables = {**self._special_tokens, **self._defaults, "add_generation_prompt": True}
            variables |= {"tools": None, "documents": None}
            forms = await self._pool.run_async({"kind": "probe", "template": source, "variables": variables})
            assert forms is not None
            if len(self._forms) >= 16:
                self._forms.clear()
            self._forms[source] = forms
        # A template that shows neither in the probe (it may want other roles) gets strings.
        return forms["string"] or not forms["parts"], forms["parts"]


def _named_tokens(codec: TextCodec) -> dict[str, str]:
    """bos_token and eos_token by id, then the names that the tokenizer itself has for its special tokens."""
    ids = {"bos_token": codec.bos_id, "eos_token": min(codec.eos_ids, default=None)}
    names = {n: "" if i is None else codec.token_bytes(i).decode("utf-8", "replace") for n, i in ids.items()}
    return names | dict(getattr(codec, "special_texts", {}))


def _adds_turn(fields: ChatFields) -> bool:
    if not fields.continue_final_message:
        return fields.add_generation_prompt
    if fields.add_generation_prompt and "add_generation_prompt" in fields.model_fields_set:
        raise InvalidRequest(
            "add_generation_prompt and continue_final_message are both true: a new turn cannot continue the last",
            param="continue_final_message",
        )
    return False


def _checked_kwargs(fields: ChatFields) -> dict[str, Any]:
    given = dict(fields.chat_template_kwargs)
    for name in given:
        if name in RESERVED_KWARGS:
            raise InvalidRequest(
                f"chat_template_kwargs may not set {name!r}; reserved are {', '.join(sorted(RESERVED_KWARGS))}",
                param="chat_template_kwargs",
            )
    if fields.reasoning_effort is not None:
        given.setdefault("reasoning_effort", fields.reasoning_effort)
    return given


def _for_template(
    message: Message, index: int, source: str, *, takes_string: bool, takes_parts: bool
) -> dict[str, Any]:
    """A message as templates expect it: content never null, arguments as objects, both names of reasoning."""
    out: dict[str, Any] = dict(message.model_extra or {})
    out.pop("reasoning_content", None)
    # Few templates know the role `developer`; it is the newer name of `system`.
    is_renamed = message.role == "developer" and "developer" not in source
    out["role"] = "system" if is_renamed else message.role
    parts = text_parts(message, index)
    is_list = isinstance(message.content, list) and bool(parts)
    if takes_parts and (is_list or not takes_string):
        out["content"] = [{"type": "text", "text": p} for p in parts]
    else:
        out["content"] = "\n".join(parts)
    if message.name is not None:
        out["name"] = message.name
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        out["tool_calls"] = [_with_object_arguments(call) for call in message.tool_calls]
    if message.reasoning is not None:
        out["reasoning"] = out["reasoning_content"] = message.reasoning
    return out


def text_parts(message: Message, index: int) -> list[str]:
    """The texts of a message's content. Raises InvalidRequest for a part that is no text."""
    if message.content is None:
        if message.role != "assistant":  # an assistant's turn may be nothing but tool calls
            place = f"messages[{index}].content"
            raise InvalidRequest(
                f"{place} is missing; a {message.role} message needs it, as text or a list of text parts",
                param=place,
            )
        return []
    if isinstance(message.content, str):
        return [message.content]
    parts = []
    for i, part in enumerate(message.content):
        place = f"messages[{index}].content[{i}]"
        if isinstance(part, str):
            parts.append(part)
            continue
        kind = part.get("type", "text" if "text" in part else None) if isinstance(part, dict) else None
        key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
        if key is None:
            name = kind[:32] if isinstance(kind, str) else "of no type"
            raise InvalidRequest(
                f"{place}: a part {name!r} is not supported; this model takes {', '.join(_TEXT_PARTS)}",
                param=f"{place}.type",
            )
        text = part.get(key)
        if not isinstance(text, str):
            raise InvalidRequest(f"{place}.{key} must be a string", param=f"{place}.{key}")
        parts.append(text)
    return parts


def _with_object_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _mark_end(messages: list[dict[str, Any]]) -> None:
    last = messages[-1]
    if isinstance(last["content"], list):
        last["content"] = [
            *last["content"][:-1],
            {"type": "text", "text": last["content"][-1]["text"] + _CUT},
        ]
    else:
        last["content"] += _CUT


def _cut_at_mark(text: str) -> str:
    at = text.rfind(_CUT)
    if at < 0:
        raise InvalidRequest(
            "continue_final_message: the chat template does not show the last message as it is",
            param="continue_final_message",
        )
    return text[:at]


class PromptMaker:
    """Prompts of one model. `max_model_len`, `model_max_len` and `vocab_size` are the engine's."""

    def __init__(
        self,
        codec: TextCodec,
        template: ChatTemplate,
        *,
        max_model_len: int,
        vocab_size: int,
        model_max_len: int = 0,
    ) -> None:
        self.codec = codec
        self.template = template
        self.max_model_len = max_model_len
        self.model_max_len = model_max_len
        self.vocab_size = vocab_size
        self._longest_token: int | None = None

    async def from_chat(self, fields: ChatFields) -> Prompt:
        text, notes = await self.template.render(fields)
        ids = await self._encode(text, add_special_tokens=fields.add_special_tokens)
        return Prompt(ids, text, notes)

    async def from_text(self, text: str, *, add_special_tokens: bool) -> Prompt:
        return Prompt(await self._encode(text, add_special_tokens=add_special_tokens), text)

    def from_ids(self, ids: Sequence[int], *, param: str = "prompt") -> Prompt:
        if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            bad = next(i for i in ids if not 0 <= i < self.vocab_size)
            raise InvalidRequest(
                f"{param} holds the token id {bad}; allowed is 0 to {self.vocab_size - 1}, the vocabulary",
                param=param,
            )
        return Prompt(list(ids))

    async def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if len(text) <= _INLINE_CHARS:
            return one_bos(self.codec, self._encode_now(text, add_special_tokens))
        await asyncio.to_thread(self._refuse_hopeless, text)
        return one_bos(self.codec, await asyncio.to_thread(self._encode_now, text, add_special_tokens))

    def _encode_now(self, text: str, add_special_tokens: bool) -> list[int]:
        try:
            return self.codec.encode(text, add_special_tokens=add_special_tokens, parse_special=True)
        except UnicodeEncodeError:
            raise InvalidRequest(
                "the prompt holds a lone surrogate, which is no character", param="prompt"
            ) from None

    def _refuse_hopeless(self, text: str) -> None:
        """A text that is too long even if every token were the longest one is not worth tokenising."""
        if self._longest_token is None:
            data = self.codec.token_bytes
            self._longest_token = max(1, max(len(data(i)) for i in range(self.codec.vocab_size)))
        least = -(-len(text) // self._longest_token)
        if least > self.max_model_len:
            raise ContextOverflow(
                f"the prompt has {len(text)} characters, at least {least} tokens; "
                f"this model takes {self.max_model_len}",
                param="prompt",
                num_prompt=least,
                max_prompt=self.max_model_len - 1,
                fix="shorten it" + _or_raise(self.max_model_len, self.model_max_len),
            )

    def truncate(self, prompt: Prompt, keep: int | None, *, side: str) -> None:
        """Cuts a prompt to `keep` tokens (-1: what leaves room for one token), and says so in its notes."""
        if keep is None:
            return
        if keep > self.max_model_len:
            raise InvalidRequest(
                f"truncate_prompt_tokens is {keep}; this model takes {self.max_model_len}",
                param="truncate_prompt_tokens",
            )
        keep = self.max_model_len - 1 if keep == -1 else keep
        dropped = len(prompt.ids) - keep
        if dropped <= 0:
            return
        prompt.was_truncated = True
        kept_end = "last" if side == "left" else "first"
        prompt.ids = prompt.ids[dropped:] if side == "left" else prompt.ids[:keep]
        prompt.notes.append(
            f"the prompt was truncated from {keep + dropped} to its {kept_end} {keep} tokens (truncate_prompt_tokens)"
        )


def one_bos(codec: TextCodec, ids: list[int]) -> list[int]:
    """Takes away a second BOS: the template (or the user) wrote one and the tokenizer added one."""
    if codec.bos_id is not None and codec.add_bos and ids[:2] == [codec.bos_id, codec.bos_id]:
        return ids[1:]
    return ids


def _or_raise(max_model_len: int, model_max_len: int) -> str:
    """The advice to raise the limit, when the model itself takes more."""
    return f", or raise --max-model-len (up to {model_max_len})" if max_model_len < model_max_len else ""


def room(
    num_prompt: int, asked: int | None, default: int | None, max_model_len: int, model_max_len: int = 0
) -> int:
    """Tokens that may be generated. Raises InvalidRequest with limit, prompt and what was asked.

    `asked` comes from the request and must fit; `default` is the server's and is cut to what is left.
    `model_max_len` is the model's own maximum (0 = not known), for the advice in the error.
    """
    left = max_model_len - num_prompt
    if num_prompt == 0:
        raise InvalidRequest("the prompt has no tokens; at least 1 is needed", param="prompt")
    if left < 1 or (asked is not None and asked > left):
        wanted = (
            f" and {asked} were asked for (max_tokens)" if asked is not None else ", which leaves no room"
        )
        raise ContextOverflow(
            f"the context has {max_model_len} tokens; the prompt has {num_prompt}{wanted}",
            param="max_tokens" if asked is not None and left >= 1 else "prompt",
            num_prompt=num_prompt,
            max_prompt=max_model_len - 1,
            fix="shorten the prompt or ask for fewer tokens" + _or_raise(max_model_len, model_max_len),
        )
    return asked if asked is not None else left if default is None else min(default, left)
