"""Answers as a checkpoint's response_template says: one region after another, each between its delimiters.

The walk over a message's regions, as text comes; a region of calls is read when it is whole, and what is no call
is content, as it was written. Knows nothing of how a template is read or a body parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from octavo.api.text.parsers.checkpoint.pattern import Match, Matcher, Pattern
from octavo.api.text.parsers.checkpoint.template import Field, ResponseTemplate, Role
from octavo.api.text.parsers.checkpoint.values import calls_of
from octavo.api.text.parsers.families.base import Full
from octavo.api.text.parsers.out import Out, Tail
from octavo.api.text.parsers.source import Fault, Sink, Source, Steps, bounded

MAX_DELIMITER = 4_096  # characters that one delimiter may have
MAX_BODY = 1 << 20  # characters of one region of calls
_WINDOW = 256  # characters that are looked at before what was found is used


@dataclass(frozen=True, slots=True)
class _Delimiter:
    kind: Literal["open", "close"]
    field: Field
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class _Found:
    delimiter: _Delimiter
    text: str
    captures: dict[str, str]


class Regions:
    """`current`: the field whose region is open; None outside of all. `roles`: what is looked for."""

    def __init__(
        self,
        template: ResponseTemplate,
        source: Source,
        out: Out,
        note: Callable[[bool, int], None],
        *,
        roles: frozenset[Role],
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        starts_in_reasoning: bool = False,
    ) -> None:
        self._source, self._out, self._note = source, out, note
        self._tools = tools or {}
        self._spelled = template.spelled
        fields = [f for f in template.fields if f.role in roles or f.role == "content"]
        self._opens = [
            _Delimiter("open", f, f.open.compiled(template.spelled)) for f in fields if f.open is not None
        ]
        self._closes = {
            f.name: _Delimiter("close", f, f.close.compiled(template.spelled))
            for f in fields
            if f.close is not None
        }
        self._outside = next((f for f in fields if f.open is None), None)
        self._drops_outside = self._outside is None and template.has("content")
        self._begins_in = (
            next((f for f in fields if f.role == "reasoning"), None) if starts_in_reasoning else None
        )
        self._unclaimed: list[str] | None = []  # what stood outside of all regions while there was none
        self._said: set[str] = set()  # fields with `join` that have text
        self.current: Field | None = None
        self._captures: dict[str, str] = {}

    def run(self) -> Steps[None]:
        source = self._source
        found: _Found | None = None
        if self._begins_in is not None:
            self.current, self._unclaimed = self._begins_in, None
            if self._begins_in.open is not None:  # the model may say again what the prompt has said
                yield from source.has_any(self._begins_in.open.texts)
        while True:
            if self.current is None:
                found = yield from self._between()
            elif self.current.role == "calls":
                found = yield from self._calls(self.current, found)
            else:
                found = yield from self._text(self.current)
            if found is None:
                return
            self.current = found.delimiter.field if found.delimiter.kind == "open" else None

    # ---- regions --------------------------------------------------------------------------------

    def _between(self) -> Steps[_Found | None]:
        """Text outside of all regions, to where one opens."""
        field, watched = self._outside, list(self._opens)
        if field is not None and field.role == "reasoning":
            self._unclaimed = None
            return (yield from self._text(field, extra=watched))
        if field is not None and field.name in self._closes:
            watched.append(self._closes[field.name])
        if not self._drops_outside:
            return (yield from self._content(field, watched))
        found = yield from self._until(watched, self._keep)
        if found is None and self._unclaimed is not None:  # no region at all: an answer without any marks
            self._out.content("".join(self._unclaimed))
        self._unclaimed = None if found is not None else self._unclaimed
        return found

    def _keep(self, text: str) -> None:
        if self._unclaimed is not None:
            self._unclaimed.append(text)

    def _text(self, field: Field, *, extra: list[_Delimiter] | None = None) -> Steps[_Found | None]:
        watched = list(extra or ())
        if field.name in self._closes:
            watched.append(self._closes[field.name])
        if field.role == "content":
            return (yield from self._content(field, watched))
        self._note(True, self._source.position)
        sink = self._joined(field, self._out.reasoning)
        if field.strips:
            yield from self._source.space()
            sink = Tail(sink).push
        found = yield from self._until(watched, sink)
        self._note(False, self._source.position - (len(found.text) if found is not None else 0))
        return found

    def _content(self, field: Field | None, watched: list[_Delimiter]) -> Steps[_Found | None]:
        strips = field is None or field.strips
        if strips:
            yield from self._source.space()
        sink = self._out.content if field is None else self._joined(field, self._out.content)
        found = yield from self._until(watched, sink)
        if strips:
            self._out.forget_space()
        return found

    def _joined(self, field: Field, sink: Sink) -> Sink:
        """With what a template wants between two regions of one field."""
        if not field.join:
            return sink
        is_next = field.name in self._said

        def push(text: str) -> None:
            nonlocal is_next
            if is_next:
                sink(field.join)
                is_next = False
            self._said.add(field.name)
            sink(text)

        return push

    def _calls(self, field: Field, opened: _Found | None) -> Steps[_Found | None]:
        assert opened is not None
        source, out = self._source, self._out
        source.record = [opened.text]
        _, sink = bounded(MAX_BODY)
        close = self._closes.get(field.name)
        try:
            yield from self._value(field, sink)
            found = yield from self._until([] if close is None else [close], sink)
            body = "".join(source.record)[len(opened.text) :]
            if found is not None:
                body = body[: len(body) - len(found.text)]
            captures = {**opened.captures, **(found.captures if found is not None else {})}
            calls = calls_of(body, field, captures, self._tools, self._spelled)
        except Fault:
            out.content(source.recorded() or "")
            return _Found(_Delimiter("close", field, opened.delimiter.pattern), "", {})
        source.record = None
        for name, arguments in calls:
            out.begin(name)
            out.arguments(arguments)
            # Without its end a call is whole only where its own syntax says so.
            out.is_broken = found is None and field.content in ("xml-inline", "kv-lines")
            out.end()
            if out.is_full:
                raise Full
        return found

    def _value(self, field: Field, sink: Sink) -> Steps[None]:
        """A body that is JSON, to where it ends: a delimiter in one of its strings is none."""
        if field.content != "json" or field.args.get("string_delims") or field.args.get("unquoted_keys"):
            return
        if (yield from self._source.space()) in ("{", "["):
            yield from self._source.json(sink)

    # ---- delimiters -----------------------------------------------------------------------------

    def _until(self, watched: list[_Delimiter], sink: Sink) -> Steps[_Found | None]:
        """Text before the next delimiter to the sink; reads the delimiter. None at the end."""
        source = self._source
        if not watched:
            while True:
                self._take_all(sink)
                if source.is_closed:
                    return None
                yield
        before = source.text[source.at - 1 : source.at] if source.at else ""
        scans = [(d, Matcher(d.pattern, source.position, before, limit=MAX_DELIMITER)) for d in watched]
        end = source.position
        while True:
            last = source.base + len(source.text)
            end = min(end + _WINDOW, last)
            for _, matcher in scans:
                self._advance(matcher, end, is_over=source.is_closed and end == last)
            found, hold = _earliest(scans)
            if hold > source.position:
                sink(source.take(hold - source.position))
            if found is not None:
                return self._read(*found)
            if end == last:
                if source.is_closed:
                    self._take_all(sink)
                    return None
                yield

    def _advance(self, matcher: Matcher, end: int, *, is_over: bool) -> None:
        source, was = self._source, matcher.work
        if matcher.found is None and matcher.position < end:
            matcher.feed(source.text[: end - source.base], matcher.position - source.base)
        if is_over:
            matcher.close()
        source.work += matcher.work - was

    def _take_all(self, sink: Sink) -> None:
        source = self._source
        if source.at < len(source.text):
            sink(source.take(len(source.text) - source.at))

    def _read(self, delimiter: _Delimiter, match: Match) -> _Found:
        source = self._source
        captures = {
            name: source.text[start - source.base : end - source.base]
            for name, (start, end) in match.groups.items()
        }
        return _Found(delimiter, source.take(match.end - match.start), captures)


_Scans = list[tuple[_Delimiter, Matcher]]


def _earliest(scans: _Scans) -> tuple[tuple[_Delimiter, Match] | None, int]:
    """(the delimiter that comes next, if that is decided; where the text ends that belongs to none).

    Of two that begin at one place the longer counts, then one that opens, then the name.
    """
    matches = [(d, m.found) for d, m in scans if m.found is not None]
    open_ends = [m.pending for _, m in scans if m.found is None and not m.is_over]
    best = min(
        matches,
        key=lambda x: (x[1].start, x[1].start - x[1].end, x[0].kind == "close", x[0].field.name),
        default=None,
    )
    hold = min([*open_ends, *(m.start for _, m in matches)], default=scans[0][1].position)
    if best is None or any(pending <= best[1].start for pending in open_ends):
        return None, hold
    return best, hold


def field_at_end(template: ResponseTemplate, prompt: str) -> Field | None:
    """The field whose region a prompt leaves open."""
    source = Source()
    source.feed(template.after_anchor(prompt))
    source.is_closed = True
    regions = Regions(template, source, Out(source), no_note, roles=frozenset({"reasoning", "calls"}))
    for _ in regions.run():
        break
    return regions.current


def no_note(_is_reasoning: bool, _position: int) -> None:
    """For who does not count."""
