"""Stop strings over a growing text.

The result is a function of the text alone, not of how it was cut: the match that *starts* first wins,
and of two that start together the one that stands first in the request. A character is held back
only while a match that includes it is still possible. One Knuth-Morris-Pratt automaton per string
(Knuth, Morris and Pratt 1977) makes a character cost O(1), whatever the strings are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    stop: str
    push: int  # the push whose text completed the match, counted from 1


class _Automaton:
    """`state` = length of the longest prefix of `text` that ends where the scan stands."""

    __slots__ = ("_fail", "found", "state", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.state = 0
        self.found: tuple[int, int] | None = None  # (start, push) of the first match
        fail = [0] * len(text)
        k = 0
        for i in range(1, len(text)):
            while k and text[i] != text[k]:
                k = fail[k - 1]
            if text[i] == text[k]:
                k += 1
            fail[i] = k
        self._fail = fail

    def step(self, char: str) -> bool:
        """Reads one character; true when a match ends on it."""
        k = self.state
        while k and char != self.text[k]:
            k = self._fail[k - 1]
        self.state = k + 1 if char == self.text[k] else k
        return self.state == len(self.text)


class StopScanner:
    """Releases text that no stop string can claim any more; says which stop fired.

    `released <= position`; the text between them is held. After a match, `match` is set and what
    `push` or `flush` returned last was the end of the text.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._automata = [_Automaton(s) for s in stops]
        self._include_stop = include_stop
        self._held = ""
        self._released = 0
        self._position = 0
        self._pushes = 0
        self._has_found = False
        self.match: StopMatch | None = None

    @property
    def is_undecided(self) -> bool:
        """A stop has matched, but an earlier one may still complete."""
        return self._has_found and self.match is None

    @property
    def completed_push(self) -> int | None:
        """The push that completed the match which wins as things stand."""
        best = self._best()
        return None if best is None else best[2]

    def push(self, text: str, *, counts: bool = True) -> str:
        """Adds text; returns what may be shown. Text that does not count (below min_tokens) cannot match."""
        self._pushes += 1
        if not self._automata:
            return text
        if not counts:
            self._position += len(text)
            self._released += len(text)
            return text
        self._held += text
        for char in text:
            self._position += 1
            for automaton in self._automata:
                if automaton.found is None and automaton.step(char):
                    automaton.found = (self._position - len(automaton.text), self._pushes)
                    self._has_found = True
            if self._has_found and self._try_decide():
                return self._cut()
        return self._release()

    def flush(self) -> str:
        """The text is over: the best match wins, or everything held is shown."""
        if self.match is None and self._best() is not None:
            self._decide()
            return self._cut()
        text, self._held = self._held, ""
        self._released += len(text)
        return text

    def _best(self) -> tuple[int, int, int] | None:
        """(start, list order, push) of the match that wins so far."""
        found = [(a.found[0], i, a.found[1]) for i, a in enumerate(self._automata) if a.found]
        return min(found) if found else None

    def _earliest_hope(self) -> tuple[int, int] | None:
        """(start, list order) of the earliest match that may still complete."""
        hopes = [
            (self._position - a.state, i) for i, a in enumerate(self._automata) if a.found is None and a.state
        ]
        return min(hopes) if hopes else None

    def _try_decide(self) -> bool:
        best = self._best()
        if best is None:
            return False
        hope = self._earliest_hope()
        if hope is not None and hope < best[:2]:
            return False
        self._decide()
        return True

    def _decide(self) -> None:
        best = self._best()
        assert best is not None
        self.match = StopMatch(self._automata[best[1]].text, best[2])

    def _cut(self) -> str:
        best = self._best()
        assert best is not None
        end = best[0] + (len(self._automata[best[1]].text) if self._include_stop else 0)
        text = self._held[: end - self._released]
        self._held = ""
        return text

    def _release(self) -> str:
        """Everything before the earliest match, done or hoped for."""
        starts = [a.found[0] if a.found else self._position - a.state for a in self._automata]
        safe = max(0, min(starts) - self._released)
        text, self._held = self._held[:safe], self._held[safe:]
        self._released += safe
        return text
