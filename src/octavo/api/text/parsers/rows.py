"""What a format looks like: one row per name. The rows themselves are in tool_rows and reasoning_rows.

A row holds literals only. `families` says how each family reads them; `envelope` how each is written as a grammar.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

from octavo.api.text.parsers.checkpoint.template import ResponseTemplate

Family = Literal["json", "named", "xml", "keyed", "pythonic", "braced", "elements", "harmony", "response"]
Start = Literal["reasoning", "content", "asked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRow:
    """One tool-call format.

    `section` wraps all calls and may be absent; `opens` begin a call (or a list of them) and `closes` end it;
    `bare`: characters that begin a call without any marker, where only known tools count.
    """

    name: str
    family: Family
    shape: str  # for docs: what a call looks like
    models: str
    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    section: tuple[str, str] | None = None
    section_begins: tuple[str, ...] = ()  # other spellings of how a section begins
    bare: tuple[str, ...] = ()
    #: Characters with which models of this format also begin an answer that is a call, without its marker; not
    #: where a grammar says what an answer is.
    loose: tuple[str, ...] = ()
    # json
    name_keys: tuple[str, ...] = ("name",)
    argument_keys: tuple[str, ...] = ("arguments", "parameters")
    id_keys: tuple[str, ...] = ()
    is_list: bool = False  # the calls are written as one list
    is_keyed: bool = False  # {"name": {arguments}}
    takes_json: bool = False  # a section may hold a JSON object in place of a call
    fences: tuple[str, ...] = ()
    separators: tuple[str, ...] = ()
    # named
    prefix: str = ""
    name_ends: tuple[str, ...] = ()
    before_arguments: tuple[str, ...] = ()
    after_arguments: tuple[str, ...] = ()
    id_mark: str = ""
    # xml
    head_end: str = ">"
    quote: str = ""
    parameter: str = ""
    parameter_close: str = ""
    keeps_newlines: bool = False  # a value is taken as it stands
    # keyed
    key: tuple[str, str] = ("", "")
    value: tuple[str, str] = ("", "")
    has_suffix: bool = False  # a checkpoint may write its tags as <tag:SUFFIX>
    kind: tuple[str, str] = ("", "")
    # braced
    string_quote: str = ""
    ids: Literal["long", "short", "own"] = "long"
    at: tuple[str, ...] = ()  # what a template that teaches the format has in it; all of them
    not_at: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # markers that only work as single tokens of the vocabulary
    response: ResponseTemplate | None = None  # the checkpoint's own, which says all of this instead

    @property
    def markers(self) -> tuple[str, ...]:
        """Every literal that may be, or hold, a control token."""
        return tuple(_literals(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningRow:
    """One way of thinking aloud.

    `start`: what the first token is when the prompt does not say: reasoning, content, or "asked":
    reasoning unless the template's variables switch it off. `off` and `on` name those variables.
    """

    name: str
    shape: str
    models: str
    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    start: Start = "content"
    switches: tuple[str, ...] = ()  # template variables that are true or false
    default_on: bool = True
    effort_off: tuple[str, ...] = ()  # values of reasoning_effort that switch it off
    is_ended_by_tools: bool = False
    drops: tuple[str, ...] = ()  # markers around the answer
    strips: Literal["", "lead", "tail"] = ""  # white space: of the content's start, or of the reasoning's end
    is_harmony: bool = False
    prefixes: str = ""  # put before the content; nothing is split
    unescapes: bool = False
    has_suffix: bool = False
    at: tuple[str, ...] = ()
    response: ResponseTemplate | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(_literals(self))


_WORDS = frozenset(
    "name family shape models start switches effort_off strips name_keys argument_keys id_keys ids at not_at "
    "needs bare loose prefixes fences response".split()
)
Row = TypeVar("Row", ToolRow, ReasoningRow)


def _literals(row: ToolRow | ReasoningRow) -> list[str]:
    found: list[str] = [] if row.response is None else row.response.literals()
    for f in fields(row):
        value = getattr(row, f.name)
        if f.name in _WORDS or value is None or isinstance(value, bool):
            continue
        found += [value] if isinstance(value, str) else [v for v in value if isinstance(v, str)]
    return [literal for literal in dict.fromkeys(found) if literal]


def translated(row: Row, spelled: dict[str, str]) -> Row:
    """The row with control tokens as the characters that stand for them in a `Source`."""

    def one(text: str) -> str:
        for token, char in spelled.items():
            text = text.replace(token, char)
        return text

    changes: dict[str, Any] = {}
    for f in fields(row):
        value = getattr(row, f.name)
        if f.name in _WORDS or value is None or isinstance(value, bool):
            continue
        changes[f.name] = one(value) if isinstance(value, str) else tuple(map(one, value))
    if row.response is not None:
        changes["response"] = replace(row.response, spelled=spelled)
    return replace(row, **changes)
