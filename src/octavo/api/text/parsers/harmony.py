"""The harmony format: messages with a channel in their header. Analysis is reasoning, final is content.

A message to `functions.NAME` is a call; its body is forwarded as arguments. One machine for both
parsers, for a message's header says what it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from octavo.api.text.parsers.families.base import Full
from octavo.api.text.parsers.out import Out
from octavo.api.text.parsers.source import Fault, Markers, Source, Steps, lenient

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
TOKENS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
_RECIPIENT = re.compile(r"to=functions\.([A-Za-z0-9_.\-]{1,256})")
_MAX_HEADER = 1_024


def _is_json(text: str) -> bool:
    try:
        lenient(text)
    except Fault:
        return False
    return True


class Harmony:
    """`spelled`: TOKENS as they stand in the source, in that order."""

    def __init__(
        self,
        source: Source,
        out: Out,
        note: Callable[[bool, int], None],
        *,
        spelled: Sequence[str] = TOKENS,
        parses_calls: bool = True,
    ) -> None:
        self._source, self._out, self._note = source, out, note
        self._parses_calls = parses_calls
        self._names = dict(zip(spelled, TOKENS, strict=True))
        self._all = Markers(spelled)
        self._ends = Markers([s for s, token in self._names.items() if token != CONSTRAIN])
        self._saw_header = False

    def run(self) -> Steps[None]:
        """Header, body, header, body. A text without a single header is an answer."""
        header: list[str] = []
        while True:
            marker = yield from self._source.until(self._all, header.append)
            if marker is None:
                if not self._saw_header:
                    self._out.content("".join(header))
                return
            self._saw_header = True
            name = self._names[marker]
            if name == MESSAGE:
                marker = yield from self._body("".join(header))
                name = self._names[marker] if marker is not None else START
            if name in (START, END, CALL, RETURN, MESSAGE):
                header = []
            header.append(" channel=" if name == CHANNEL else " ")
            if sum(map(len, header)) > _MAX_HEADER:
                header = []

    def _body(self, header: str) -> Steps[str | None]:
        """A message's text, to where its channel leads. Returns the marker that ended it."""
        source, out = self._source, self._out
        recipient = _RECIPIENT.search(header)
        if recipient is not None and self._parses_calls:
            out.begin(recipient.group(1))
            pieces: list[str] = []

            def sink(text: str) -> None:
                pieces.append(text)
                out.arguments(text)

            marker = yield from source.until(self._ends, sink)
            if marker is not None or _is_json("".join(pieces)):  # the last mark may have ended the answer
                out.end()
                if out.is_full:
                    raise Full
        elif "channel=analysis" in header:
            self._note(True, source.position)
            marker = yield from source.until(self._ends, out.reasoning)
            self._note(False, source.position - len(marker or ""))
        else:
            marker = yield from source.until(self._ends, out.content)
        return marker
