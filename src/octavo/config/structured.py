"""What --structured-outputs-config may say, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.errors import ConfigError

BACKENDS = ("llguidance", "xgrammar", "outlines", "lm-format-enforcer")
ALIASES = {"auto": "llguidance", "guidance": "llguidance", "outlines-core": "outlines"}
_FLAG = "--structured-outputs-config"
_ELSEWHERE = {
    "reasoning_parser": "give --reasoning-parser",
    "reasoning_parser_plugin": "parsers are chosen by name with --reasoning-parser",
    "enable_in_reasoning": "a grammar begins where thinking ends; leave it out",
    "disable_fallback": "a backend that is named never falls back to another; leave it out",
}
_SWITCHES = ("disable_any_whitespace", "disable_additional_properties")


class StructuredPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults of structured output; a request's own fields win."""

    backend: str = "llguidance"
    any_whitespace: bool = False  # bounded white space between JSON tokens instead of none
    additional_properties: bool = True


def structured_plan(asked: Mapping[str, Any]) -> StructuredPlan:
    """Raises ConfigError for what cannot act."""
    known = ("backend", *_SWITCHES)
    for key, value in asked.items():
        if key in _ELSEWHERE:
            raise ConfigError(f"{_FLAG} sets {key!r}, which does not act here", fix=_ELSEWHERE[key])
        if key not in known:
            raise ConfigError(f"{_FLAG} sets {key!r}", fix=f"allowed: {', '.join(known)}")
        if key in _SWITCHES and not isinstance(value, bool):
            raise ConfigError(f"{_FLAG}: {key} is {value!r}", fix="give true or false")
    name = asked.get("backend", "auto")
    backend = ALIASES.get(name, name) if isinstance(name, str) else name
    if backend not in BACKENDS:
        raise ConfigError(f"{_FLAG}: backend is {name!r}", fix=f"allowed: {', '.join((*ALIASES, *BACKENDS))}")
    return StructuredPlan(
        backend=backend,
        any_whitespace=not asked.get("disable_any_whitespace", True),
        additional_properties=not asked.get("disable_additional_properties", False),
    )
