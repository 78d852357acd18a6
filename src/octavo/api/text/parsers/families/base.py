"""What every family of call formats shares. A reader reads one call, or one list of them, behind its marker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from octavo.api.text.parsers.out import Out
from octavo.api.text.parsers.rows import ToolRow
from octavo.api.text.parsers.source import CONTROL, Fault, Markers, Source, Steps

MAX_NAME = 256


class Full(Exception):
    """As many calls as the request wants have been read."""


class Reader(ABC):
    """`starts`: markers that lead here; `ends`: where reading goes on after a fault behind the name."""

    family: ClassVar[str]

    def __init__(self, row: ToolRow, source: Source, out: Out, tools: dict[str, dict[str, Any]]) -> None:
        self.row = row
        self.source = source
        self.out = out
        self.tools = tools
        section = row.section or ("", "")
        self._begins = tuple(m for m in (section[0], *row.section_begins) if m)
        self.starts: tuple[str, ...] = (*self._begins, *row.opens)
        self.ends = Markers((*row.closes, section[1]))
        self.is_bare = False  # no marker said that this is a call: only names of known tools count
        self._in_section = False
        #: Markers that end a thought: letters that a thought may well have are none.
        self.enders = tuple(m for m in self.starts if m not in row.bare and not m.startswith("```"))
        if section[1]:
            self.starts += (section[1],)

    def read(self, marker: str) -> Steps[None]:
        """A call behind `marker`. Raises Fault for what is none; Full when no more are wanted."""
        section, was = self.row.section, self._in_section
        self.is_bare = not marker or marker in self.row.bare
        if section is not None and marker == section[1] and marker not in self.row.opens:
            if not self._in_section:
                raise Fault
            self._in_section = False
            return
        if marker in self._begins and marker not in self.row.opens:
            first = yield from self.source.space()
            inner = yield from self.source.has_any(self.row.opens)
            if inner is None and not (self.row.takes_json and first == "{"):
                raise Fault
            self._in_section, marker = True, inner or ""
        yield from self._within(marker, was)

    def _within(self, marker: str, was_in_section: bool) -> Steps[None]:
        """A call; a section in which none was told has not begun."""
        num_told = self.out.num_calls
        try:
            yield from self.call(marker)
        except Fault:
            if self.out.num_calls == num_told:
                self._in_section = was_in_section
            raise

    @abstractmethod
    def call(self, marker: str) -> Steps[None]:
        """One call, or one list of them, behind `marker`; '' for a JSON object in place of a call."""

    # ---- what families do with what they found ----------------------------------------------------

    def begin(self, name: str, call_id: str | None = None) -> None:
        """From here on it is a call, whatever follows."""
        name = CONTROL.sub("", name).strip()
        if not name or any(c.isspace() for c in name) or (self.is_bare and name not in self.tools):
            raise Fault
        self.source.record = None
        self.out.begin(name, call_id)

    def end(self) -> None:
        self.out.end()
        if self.out.is_full:
            raise Full

    def start_record(self) -> None:
        """The next call of a list: should it be none, its text is content."""
        if self.source.record is None:
            self.source.record = []

    def schema_of(self, name: str) -> dict[str, Any]:
        return self.tools.get(name.strip(), {})
