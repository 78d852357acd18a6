"""One choice's parser: a row for reasoning and a row for calls over one `Source`.

Owns the walk between the three states (thinking, answering, calling) and what happens to text that
began like a call and is none: it is content, as it was written. Knows no family from inside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from octavo.api.text.parsers.families import READERS
from octavo.api.text.parsers.families.base import Full, Reader
from octavo.api.text.parsers.harmony import Harmony
from octavo.api.text.parsers.out import Out, long_id, short_id
from octavo.api.text.parsers.rows import ReasoningRow, ToolRow
from octavo.api.text.parsers.source import Fault, Markers, Source, Steps, no_text
from octavo.api.text.parts import Part


@dataclass(frozen=True, slots=True)
class Formats:
    """What one model writes. `controls`: token id to the character that stands for it in a Source."""

    tool: ToolRow | None = None
    reasoning: ReasoningRow | None = None
    controls: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one request wants of the parser. `tools` is None where calls are not looked for."""

    tools: dict[str, dict[str, Any]] | None = None
    splits_reasoning: bool = True
    starts_in_reasoning: bool = False
    max_calls: int | None = None
    ends_when_full: bool = (
        True  # off where a grammar ends the answer: what is left of the last call is dropped
    )


class OutputParser:
    """Text in, parts out. `is_done`: no more is wanted, though the model may go on."""

    def __init__(self, formats: Formats, ask: Ask) -> None:
        tool = formats.tool if ask.tools is not None else None
        new_id = short_id if tool is not None and tool.ids == "short" else long_id
        self.controls = formats.controls
        self.is_done = False
        self._ends_when_full = ask.ends_when_full
        self.source = Source()
        self.out = Out(self.source, new_id=new_id, max_calls=ask.max_calls)
        self._tool = tool
        self._think = formats.reasoning if ask.splits_reasoning else None
        self._in_reasoning = ask.starts_in_reasoning and self._think is not None
        self._spans: list[list[int | None]] = []  # [start, end) of reasoning, in positions of the source
        self._reader: Reader | None = None
        harmony = _harmony_tokens(tool, self._think)
        if harmony:
            calls = tool is not None
            self._steps = Harmony(
                self.source, self.out, self._note, spelled=harmony, parses_calls=calls
            ).run()
        else:
            if tool is not None:
                self._reader = READERS[tool.family](tool, self.source, self.out, ask.tools or {})
            self._steps = self._run()
        self._advance()

    # ---- driving --------------------------------------------------------------------------------

    def feed(self, text: str) -> list[Part]:
        """The parts that this text settles."""
        if self.is_done:
            return []
        self.source.feed(text)
        self._advance()
        return self.out.drain()

    def close(self) -> list[Part]:
        """The text is over: what was held back is decided."""
        self.source.is_closed = True
        while not self.is_done:
            self._advance()
        self.out.close()
        return self.out.drain()

    def _advance(self) -> None:
        try:
            next(self._steps)
        except StopIteration:
            self.is_done = True
        except Full:
            if self._ends_when_full:
                self.is_done = True
                return
            self.source.record = None
            self._steps = self._drop()
            self._advance()

    def _drop(self) -> Steps[None]:
        yield from self.source.until(Markers(()), no_text)

    @property
    def has_whole_calls(self) -> bool:
        """There are calls, and none was cut."""
        return self.out.num_calls > 0 and not (self.out.is_open or self.out.is_broken)

    # ---- where reasoning was --------------------------------------------------------------------

    def _note(self, is_reasoning: bool, position: int) -> None:
        if is_reasoning:
            self._spans.append([position, None])
        elif self._spans:
            self._spans[-1][1] = position

    def is_reasoning_at(self, position: int) -> bool:
        """Whether the character at a position that has been read was reasoning. Ask in rising order."""
        while self._spans and self._spans[0][1] is not None and self._spans[0][1] <= position:
            del self._spans[0]
        return bool(self._spans) and (self._spans[0][0] or 0) <= position

    # ---- the walk -------------------------------------------------------------------------------

    def _run(self) -> Steps[None]:
        think, reader, source, out = self._think, self._reader, self.source, self.out
        opens = think.opens if think is not None else ()
        starts = reader.starts if reader is not None else ()
        drops = think.drops if think is not None else ()
        escape = ("\\n",) if think is not None and think.unescapes else ()
        anywhere = Markers((*opens, *starts, *drops, *escape))
        marker: str | None = None
        if think is not None and think.prefixes:
            out.content(think.prefixes)
        if self._in_reasoning:
            yield from source.has_any(opens)  # the model may say again what the prompt has said
            marker = yield from self._reason(starts)
        while True:
            if marker is None and reader is not None and reader.row.bare:
                yield from self._bare(reader)
            if marker is None:
                marker = yield from source.until(anywhere, out.content)
            if marker is None:
                return
            if marker in opens:
                marker = yield from self._reason(starts)
            elif marker in drops:
                marker = None
            elif marker in escape:
                out.content("\n")
                marker = None
            else:
                assert reader is not None
                yield from self._call(reader, marker)
                marker = None

    def _reason(self, starts: tuple[str, ...]) -> Steps[str | None]:
        """Thinking until its end; returns the marker of a call that ended it."""
        think, source, out = self._think, self.source, self.out
        assert think is not None
        self._note(True, source.position)
        ends = Markers((*think.closes, *(starts if think.is_ended_by_tools else ())))
        sink = _Tail(out.reasoning) if think.strips == "tail" else None
        marker = yield from source.until(ends, sink.push if sink is not None else out.reasoning)
        self._note(False, source.position - len(marker or ""))
        if marker is None or marker not in think.closes:
            return marker
        if think.strips == "lead":
            yield from source.space()
        return None

    def _bare(self, reader: Reader) -> Steps[None]:
        """A call without a marker, where the answer would begin."""
        if self.out.has_content:
            return
        source = self.source
        source.record = []
        if (yield from source.space()) in reader.row.bare:
            marker = yield from source.has_any(reader.starts)
            yield from self._call(reader, marker or "")
            return
        space, source.record = "".join(source.record), None
        self.out.content(space)

    def _call(self, reader: Reader, marker: str) -> Steps[None]:
        source, out = self.source, self.out
        if source.record is None:
            source.record = [marker]
        try:
            yield from reader.read(marker)
        except Fault:
            text = source.recorded()
            if text is not None:  # nothing of it was told: it is text
                out.content(text)
            else:  # a call whose name is known: what is left of it goes to it as it is
                yield from source.until(reader.ends, out.arguments if out.is_open else out.content)
                out.is_broken = out.is_broken or out.is_open
        source.record = None


def _harmony_tokens(tool: ToolRow | None, think: ReasoningRow | None) -> tuple[str, ...]:
    if think is not None and think.is_harmony:
        return think.opens
    return tool.opens if tool is not None and tool.family == "harmony" else ()


class _Tail:
    """Holds white space back until something follows it."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._held: list[str] = []

    def push(self, text: str) -> None:
        body = text.rstrip()
        if body:
            self._sink("".join(self._held) + body)
            self._held = []
        if len(body) < len(text):
            self._held.append(text[len(body) :])
