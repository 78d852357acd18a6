"""Where parsers put what they found: pieces of content, reasoning and calls, in order.

Owns indexes and ids of calls, and the rule of white space: a run of it that touches a call is dropped.
"""

from __future__ import annotations

import secrets
import string
import uuid
from collections.abc import Callable

from octavo.api.text.parsers.source import CONTROL, Sink, Source
from octavo.api.text.parts import CallPart, ContentPart, Part, ReasoningPart

_ALPHANUMERIC = string.ascii_letters + string.digits


def long_id() -> str:
    return f"chatcmpl-tool-{uuid.uuid4().hex}"


def short_id() -> str:
    """Nine letters or digits: the only ids that Mistral's templates take."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


class Tail:
    """Holds white space back until something follows it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held: list[str] = []

    def push(self, text: str) -> None:
        body = text.rstrip()
        if body:
            self._sink("".join(self._held) + body)
            self._held = []
        if len(body) < len(text):
            self._held.append(text[len(body) :])


class Out:
    """`num_calls` were begun; `is_open`: the last one has not ended, nor will one that `is_broken`."""

    def __init__(
        self, source: Source, *, new_id: Callable[[], str] = long_id, max_calls: int | None = None
    ) -> None:
        self._source = source
        self.num_calls = 0
        self.is_open = False
        self.is_broken = False
        self.max_calls = max_calls
        self._new_id = new_id
        self._parts: list[Part] = []
        self._ids: set[str] = set()
        self._space: list[tuple[str, int]] = []  # white space that waits for what follows it
        self._touches_call = False
        self._has_arguments = False
        self.has_content = False

    @property
    def is_full(self) -> bool:
        """As many calls as are wanted have ended."""
        return self.max_calls is not None and self.num_calls >= self.max_calls and not self.is_open

    def drain(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def content(self, text: str) -> None:
        """Text that was read last from the source."""
        start = self._source.position - len(text)
        text = CONTROL.sub("", text)
        if not text:
            return
        body = text.rstrip()
        if body:
            lead = "".join(text for text, _ in self._space)
            if self._space:
                start = self._space[0][1]
            whole = lead + body
            if self._touches_call:
                whole = whole.lstrip()
                start += len(lead) + len(body) - len(whole)
            self._space = []
            self._add_content(whole, start)
            start += len(whole)
            self._touches_call = False
            self.has_content = True
        if len(body) < len(text):
            self._space.append((text[len(body) :], start))

    def _add_content(self, text: str, start: int) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, ContentPart) and last.start + len(last.text) == start:
            last.text += text
        else:
            self._parts.append(ContentPart(text, start))

    def reasoning(self, text: str) -> None:
        text = CONTROL.sub("", text)
        if not text:
            return
        last = self._parts[-1] if self._parts else None
        if isinstance(last, ReasoningPart):
            last.text += text
        else:
            self._parts.append(ReasoningPart(text))

    def begin(self, name: str, call_id: str | None = None) -> None:
        """A call: its name is known."""
        self._space = []
        if call_id is None or call_id in self._ids:  # a model may count wrong
            call_id = self._new_id()
        self._ids.add(call_id)
        self._parts.append(CallPart(self.num_calls, "", call_id, CONTROL.sub("", name)))
        self.num_calls += 1
        self.is_open, self._has_arguments = True, False
        self._touches_call = True

    def arguments(self, text: str) -> None:
        """Bytes of the open call's arguments."""
        text = CONTROL.sub("", text)
        if not text:
            return
        self._has_arguments = True
        last = self._parts[-1] if self._parts else None
        if isinstance(last, CallPart) and last.index == self.num_calls - 1:
            last.arguments += text
        else:
            self._parts.append(CallPart(self.num_calls - 1, text))

    def end(self) -> None:
        """The open call is whole; without arguments it gets `{}`."""
        if self.is_open and not self._has_arguments:
            self.arguments("{}")
        self.is_open = False
        self._space = []
        self._touches_call = True

    def forget_space(self) -> None:
        """White space that was said last is none of the content."""
        self._space = []

    def close(self) -> None:
        """The text is over: white space at its end belongs to the content, unless it touches a call."""
        if self._space and not self._touches_call:
            self._add_content("".join(text for text, _ in self._space), self._space[0][1])
        self._space = []
