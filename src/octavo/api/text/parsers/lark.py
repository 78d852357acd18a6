"""A small writer of grammars in llguidance's Lark dialect, with control tokens by their ids.

Owns rule names and quoting. Knows no format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

ANY = "/(?s:.*)/"
NEWLINES = r"/\n{0,2}/"
#: Compact, so that arguments always end.
COMPACT = {"whitespace_flexible": False}


class Lark:
    """Rules of one grammar. `controls`: spelling of a control token to its id."""

    def __init__(self, controls: Mapping[str, int]) -> None:
        self._controls = controls
        self._split = re.compile("|".join(map(re.escape, sorted(controls, key=len, reverse=True))) or r"(?!)")
        self._lines: list[str] = []

    def rule(self, body: str, options: str = "") -> str:
        name = f"oct{len(self._lines)}"
        self._lines.append(f"{name}{options}: {body}")
        return name

    def reserve(self) -> str:
        """A rule that is written later, so that it may name itself."""
        self._lines.append("")
        return f"oct{len(self._lines) - 1}"

    def define(self, name: str, body: str) -> None:
        self._lines[int(name.removeprefix("oct"))] = f"{name}: {body}"

    def is_control(self, text: str) -> bool:
        """Whether a control token is part of the text, so that no other text is it."""
        return self._split.search(text) is not None

    def terminal(self, body: str) -> str:
        name = f"OCT{len(self._lines)}"
        self._lines.append(f"{name}: {body}")
        return name

    def add(self, text: str) -> None:
        """Rules that were written elsewhere."""
        self._lines.append(text)

    def text(self, start: str) -> str:
        return "\n".join(["%llguidance {}", f"start: {start}", *self._lines]) + "\n"

    def literal(self, text: str) -> str:
        """A text with control tokens in it, as symbols that follow each other; '' for the empty text."""
        out, at = [], 0
        for found in self._split.finditer(text):
            if found.start() > at:
                out.append(quoted(text[at : found.start()]))
            out.append(f"<[{self._controls[found.group()]}]>")
            at = found.end()
        if at < len(text):
            out.append(quoted(text[at:]))
        return " ".join(out)

    def until(self, end: str, body: str = ANY) -> str:
        """Any text, and the first `end` behind it."""
        found = self._split.search(end)
        if found is not None and found.start() == 0:
            return self.rule(f"{body} {self.literal(end)}")
        head, rest = (end, "") if found is None else (end[: found.start()], end[found.start() :])
        lazy = self.rule(f"{body} {quoted(head)}", "[lazy]")
        return f"{lazy} {self.literal(rest)}".strip()

    def without(self, texts: list[str], *, begin: str = "") -> str:
        """Any text in which none of `texts` stands, and that does not begin with the regular expression `begin`.

        Control tokens are no text, so they need no mention.
        """
        banned = " | ".join(quoted(t) for t in texts if not self._split.search(t))
        parts = [ANY, *([f"~({ANY} ({banned}) {ANY})"] if banned else [])]
        parts += [f"~(/{begin}(?s:.*)/)"] if begin else []
        return self.rule(ANY) if len(parts) == 1 else self.terminal(" & ".join(parts))

    def json(self, schema: dict[str, Any], *, space: str = "") -> str:
        """`space`: the white space between JSON's signs, as a regular expression; '' for none."""
        options: dict[str, Any] = {"whitespace_pattern": space} if space else COMPACT
        return self.rule("%json " + json.dumps({**schema, "x-guidance": options}))


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
