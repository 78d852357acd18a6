"""Bodies of /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from octavo.api.schema.chat import ChatFields
from octavo.api.schema.common import FIRST_ERROR, at_most


class TokeniseText(BaseModel):
    model_config = ConfigDict(defer_build=True, strict=True, protected_namespaces=())

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class TokeniseChat(ChatFields):
    model_config = ConfigDict(defer_build=True, strict=True, protected_namespaces=())

    model: str | None = None
    return_token_strs: bool = False


class Detokenise(BaseModel):
    model_config = ConfigDict(defer_build=True, strict=True, protected_namespaces=())

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, le=2**63 - 1)]], FIRST_ERROR, at_most(1 << 20)]
