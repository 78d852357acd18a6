"""POST /tokenize and /detokenize: the same path to ids as a real request."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from octavo.api.router import Router
from octavo.api.routes.common import json_response, read_json, state_of
from octavo.api.schema.normalise import normalise
from octavo.api.schema.tokenise import Detokenise, TokeniseChat, TokeniseText
from octavo.api.text.pipeline import spell
from octavo.api.tools import functions_of
from octavo.errors import InvalidRequest

router = Router()


@router.post("/tokenize")
async def tokenise(request: Request) -> Response:
    state = state_of(request)
    raw = await read_json(request)
    if "messages" in raw:
        chat, warnings = normalise(TokeniseChat, raw, strict=state.strict)
        state.served_name(chat.model)
        if chat.tools is not None:
            functions_of(chat.tools, state.limits)
        prompt, has_texts = await state.prompts.from_chat(chat), chat.return_token_strs
    else:
        if raw.get("prompt") is None:
            raise InvalidRequest(
                "neither prompt nor messages is given", param="prompt", fix="send one of them"
            )
        text, warnings = normalise(TokeniseText, raw, strict=state.strict)
        state.served_name(text.model)
        prompt = await state.prompts.from_text(text.prompt, add_special_tokens=text.add_special_tokens)
        has_texts = text.return_token_strs
    warnings += prompt.notes
    answer: dict[str, object] = {
        "count": len(prompt.ids),
        "max_model_len": state.max_model_len,
        "tokens": prompt.ids,
    }
    if has_texts:
        codec = state.codec
        answer["token_strs"] = [
            spell(codec.token_bytes(i), is_special=codec.is_special(i)) for i in prompt.ids
        ]
    if warnings:
        answer["warnings"] = warnings
    return json_response(answer, warnings=warnings)


@router.post("/detokenize")
async def detokenise(request: Request) -> Response:
    state = state_of(request)
    body, warnings = normalise(Detokenise, await read_json(request), strict=state.strict)
    state.served_name(body.model)
    ids = state.prompts.from_ids(body.tokens, param="tokens").ids
    text = await asyncio.to_thread(state.codec.decode, ids, skip_special_tokens=False)
    answer: dict[str, object] = {"prompt": text}
    if warnings:
        answer["warnings"] = warnings
    return json_response(answer, warnings=warnings)
