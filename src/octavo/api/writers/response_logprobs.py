"""Which logprobs belong to the text of a message, and which to thinking, calls and markup around them.

An entry belongs to the message that its text lies in, whole or in part; what adds no text goes with what
follows it. So the list depends on tokens only, never on how they were grouped into events.
"""

from __future__ import annotations

from typing import Any

from octavo.api.text.pipeline import ChoiceEvent, ContentPart, TokenEntry
from octavo.api.writers.shapes import finite

Logprob = dict[str, Any]


class LogprobSplitter:
    """Places are characters of the raw answer: where entries start, and where pieces of the message do."""

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._pending: list[TokenEntry] = []
        self._num_raw = 0
        self._spans: list[tuple[int, int]] = []  # of the message that is open

    def take(self, event: ChoiceEvent) -> None:
        """An event comes; after it its pieces, by `of`."""
        self._pending += event.entries
        self._raw_start, self._num_raw = self._num_raw, self._num_raw + len(event.text)
        self._is_plain = event.parts is None  # the text is the one piece

    def of(self, part: ContentPart) -> list[Logprob]:
        """Logprobs that a piece of the message brings out."""
        start = self._raw_start if self._is_plain else part.start
        end = start + len(part.text)
        if self._spans and self._spans[-1][1] == start:
            self._spans[-1] = (self._spans[-1][0], end)
        else:
            self._spans.append((start, end))
        return self._due(end)

    def rest(self) -> list[Logprob]:
        """What came after its text; the message ends."""
        found = self._due(self._spans[-1][1]) if self._spans else []
        self._spans = []
        return found

    def _due(self, end: int) -> list[Logprob]:
        """Takes the entries that start before `end`; gives those of the message."""
        found: list[Logprob] = []
        held: list[TokenEntry] = []  # without text of their own, until it is known where they belong
        count = 0
        for i, entry in enumerate(self._pending):
            if entry.offset >= end:
                break
            held.append(entry)
            if not entry.text:
                continue
            if any(a < entry.offset + len(entry.text) and entry.offset < b for a, b in self._spans):
                found += [self._shape(e) for e in held]
            held, count = [], i + 1
        del self._pending[:count]
        return found

    def _shape(self, entry: TokenEntry) -> Logprob:
        top = [
            {"token": a.text, "logprob": finite(a.logprob), "bytes": list(a.data)}
            for a in entry.top[: self._num_top]
        ]
        return {
            "token": entry.text,
            "logprob": finite(entry.logprob),
            "bytes": list(entry.data),
            "top_logprobs": top,
        }
