"""The switches that a model has for thinking, whatever its template calls them."""

from __future__ import annotations

import re
from typing import Any

from octavo.api.state import ApiState

_USUAL = ("enable_thinking", "thinking")


def can_think(state: ApiState) -> bool:
    """Whether thoughts are told from answers here."""
    return state.parsers.reasoning is not None


def switched(state: ApiState, *, on: bool) -> dict[str, Any]:
    """Fields of a chat body that turn thinking on or off; empty for a model that has no switch."""
    row, template = state.parsers.reasoning, state.prompts.template.source or ""
    if row is None:
        return {}
    names = [name for name in row.switches or _USUAL if _reads(template, name)]
    if names:
        return {"chat_template_kwargs": dict.fromkeys(names, on)}
    if row.effort_off and not on:
        return {"reasoning_effort": row.effort_off[0]}
    return {}


def _reads(template: str, name: str) -> bool:
    """Whether the variable stands in the template by itself, not as a part of another name."""
    return re.search(rf"(?<![\w.]){name}(?!\w)", template) is not None
