"""One choice's parser: a row for reasoning and a row for calls over one `Source`.

Owns the walk between the three states (thinking, answering, calling) and what happens to text that
began like a call and is none: it is content, as it was written. Knows no family from inside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from octavo.api.text.parsers.checkpoint.regions import Regions
from octavo.api.text.parsers.checkpoint.template import Role
from octavo.api.text.parsers.families import READERS
from octavo.api.text.parsers.families.base import Full, Reader
from octavo.api.text.parsers.harmony import Harmony
from octavo.api.text.parsers.out import Out, Tail, long_id, short_id
from octavo.api.text.parsers.rows import ReasoningRow, ToolRow
from octavo.api.text.parsers.source import Fault, Markers, Sink, Source, Steps, no_text
from octavo.api.text.parts import Part

#: Characters of a text that began like a call and was none in which marks are looked for once more.
_READ_AGAIN = 512


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
    starts_in_reasoning: bool = False
    max_calls: int | None = None
    follows_grammar: bool = False  # then that ends thoughts and answers, and nothing else does
    reads_loose: bool = True  # calls without their marks are looked for, where the format has such


class OutputParser:
    """Text in, parts out. `is_done`: no more is wanted, though the model may go on."""

    def __init__(self, formats: Formats, ask: Ask) -> None:
        tool = formats.tool if ask.tools is not None else None
        new_id = short_id if tool is not None and tool.ids == "short" else long_id
        self.controls = formats.controls
        self.is_done = False
        self._follows_grammar = ask.follows_grammar
        self._reads_loose = ask.reads_loose
        self.source = Source()
        self.out = Out(self.source, new_id=new_id, max_calls=ask.max_calls)
        self._tool = tool
        self._think = formats.reasoning
        self._in_reasoning = ask.starts_in_reasoning and self._think is not None
        self._spans: list[list[int | None]] = []  # [start, end) of reasoning, in positions of the source
        self._reader: Reader | None = None
        self._call_from = 0  # where what began like a call last began
        self._steps = self._joint_steps(ask) or self._run()
        if tool is not None and tool.family in READERS:
            self._reader = READERS[tool.family](tool, self.source, self.out, ask.tools or {})
        self._advance()

    def _joint_steps(self, ask: Ask) -> Steps[None] | None:
        """Where one machine reads thoughts and calls, its steps."""
        tool, think = self._tool, self._think
        harmony = _harmony_tokens(tool, think)
        if harmony:
            calls = tool is not None
            return Harmony(self.source, self.out, self._note, spelled=harmony, parses_calls=calls).run()
        roles: list[Role] = []
        roles += ["calls"] if tool is not None and tool.response is not None else []
        roles += ["reasoning"] if think is not None and think.response is not None else []
        template = (tool.response if tool is not None else None) or (
            think.response if think is not None else None
        )
        if template is None:
            return None
        return Regions(
            template,
            self.source,
            self.out,
            self._note,
            roles=frozenset(roles),
            tools=ask.tools,
            starts_in_reasoning=self._in_reasoning,
        ).run()

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
            if not self._follows_grammar:
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

    @property
    def settled(self) -> int:
        """Up to here it is decided what the text was."""
        return self.source.position if self.source.record is None else self._call_from

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
        bare = () if reader is None else reader.row.bare
        bare += reader.row.loose if reader is not None and self._reads_loose else ()
        if think is not None and think.prefixes:
            out.content(think.prefixes)
        if self._in_reasoning:
            yield from source.has_any(opens)  # the model may say again what the prompt has said
            drops += yield from self._reason()
        while True:
            if reader is not None and bare and (yield from self._bare(reader, bare)):
                continue
            marker = yield from source.until(Markers((*opens, *starts, *drops, *escape)), out.content)
            if marker is None:
                return
            if marker in opens:
                drops += yield from self._reason()
            elif marker in escape:
                out.content("\n")
            elif marker not in drops:
                assert reader is not None
                yield from self._call(reader, marker, out.content)
                bare = reader.row.bare

    def _reason(self) -> Steps[tuple[str, ...]]:
        """Thinking until its end. Returns the marks that may still come of a thought that a call has ended."""
        think, source, out = self._think, self.source, self.out
        assert think is not None
        calls_end_it = think.is_ended_by_tools and not self._follows_grammar
        starts = self._reader.enders if self._reader is not None and calls_end_it else ()
        ends = Markers((*think.closes, *starts))
        sink = Tail(out.reasoning).push if think.strips == "tail" else out.reasoning
        self._note(True, source.position)
        while True:
            marker = yield from source.until(ends, sink)
            if marker is None or marker in think.closes:
                break
            assert self._reader is not None
            position = source.position - len(marker)
            if (yield from self._call(self._reader, marker, sink)):
                self._note(False, position)
                return think.closes
        self._note(False, source.position - len(marker or ""))
        if marker is not None and think.strips == "lead":
            yield from source.space()
        return ()

    def _bare(self, reader: Reader, bare: tuple[str, ...]) -> Steps[bool]:
        """A call without a marker, where the answer would begin. Whether there was one."""
        if self.out.has_content:
            return False
        source = self.source
        source.record = []
        if (yield from source.space()) in bare:
            marker = yield from source.has_any(reader.starts)
            return (yield from self._call(reader, marker or "", self.out.content))
        space, source.record = "".join(source.record), None
        self.out.content(space)
        return False

    def _call(self, reader: Reader, marker: str, sink: Sink) -> Steps[bool]:
        """What begins like a call. Whether it was one; what was none goes to the sink."""
        source, out = self.source, self.out
        if source.record is None:
            source.record = [marker]
        self._call_from = source.position - len(marker)
        num_told = out.num_calls
        try:
            yield from reader.read(marker)
        except Fault:
            text = source.recorded()
            if text is not None and out.num_calls == num_told and 0 < len(marker) < len(text) <= _READ_AGAIN:
                source.give_back(text[len(marker) :])
                sink(marker)
            elif text is not None:  # nothing of it was told: it is text
                sink(text)
            else:  # a call whose name is known: what is left of it goes to it as it is
                yield from source.until(reader.ends, out.arguments if out.is_open else out.content)
                out.is_broken = out.is_broken or out.is_open
        source.record = None
        return out.num_calls > num_told


def _harmony_tokens(tool: ToolRow | None, think: ReasoningRow | None) -> tuple[str, ...]:
    if think is not None and think.is_harmony:
        return think.opens
    return tool.opens if tool is not None and tool.family == "harmony" else ()
