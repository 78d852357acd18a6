"""Flags of vLLM that Octavo knows but does not have: refused by name, with a reason (law 3).

The names are data (known_flags.txt); nothing here knows what any of them does.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def refused_flags() -> dict[str, str]:
    """Reason of each refused flag, by every spelling of it."""
    reasons: dict[str, str] = {}
    reason = ""
    for line in (Path(__file__).parent / "known_flags.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            reason = line[1:-1]
        elif line.startswith("-"):
            reasons.update(dict.fromkeys(line.split(), reason))
    return reasons


def why_refused(flag: str) -> str | None:
    """The reason when `flag` (or its --no- twin, or a dotted sub-key of it) is a known one."""
    stem = flag.partition(".")[0]
    reasons = refused_flags()
    return reasons.get(stem) or reasons.get("--" + stem.removeprefix("--no-"))
