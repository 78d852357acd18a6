"""Which parsers a model gets: named by a flag, or found by the markers of its chat template.

Owns the check against the vocabulary and where thinking stands when the first token comes. Knows no request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal

from octavo.api.text.codec import TextCodec
from octavo.api.text.parsers.checkpoint.regions import field_at_end
from octavo.api.text.parsers.checkpoint.template import ResponseTemplate, Role, Unusable, read_template
from octavo.api.text.parsers.machine import Formats
from octavo.api.text.parsers.reasoning_rows import REASONING_ROWS
from octavo.api.text.parsers.rows import ReasoningRow, Row, ToolRow, translated
from octavo.api.text.parsers.source import FIRST_CONTROL
from octavo.api.text.parsers.tool_rows import TOOL_ROWS
from octavo.errors import ConfigError

Thinking = Literal["no", "may", "open"]
_DEFAULT_TOOL = "hermes"
_TAIL_CHARS = 65_536
#: Some checkpoints write their tags as `<tool_calls:6124c78e>`.
_SUFFIX = r"(?::[0-9A-Za-z_-]{1,32})"
_TAG_SUFFIX = re.compile(rf"(?<=think|calls|_call|l_sep|g_key|value){_SUFFIX}>")
_SUFFIXED = re.compile(rf"</?(?:think|tool_calls?)({_SUFFIX})>")


@dataclass(frozen=True, slots=True)
class Parsers:
    """The choice for one model. Rows as written; `formats` has them in the characters of a Source.

    `teaches`: the template does not show tools, so they are described in the system message.
    """

    tool: ToolRow | None
    reasoning: ReasoningRow | None
    formats: Formats
    plain: Formats  # for requests that see special tokens as text
    controls: Mapping[str, int] = field(default_factory=dict)  # spelling of a control token to its id
    teaches: bool = False
    table: list[list[str]] = field(default_factory=list)

    def thinking(
        self, tail: str, variables: Mapping[str, Any], *, effort: str | None = None, continues: bool = False
    ) -> Thinking:
        """What of thinking may come: none, a thought that the model opens, or one that the prompt has opened."""
        if self.reasoning is None:
            return "no"
        if self.reasoning.response is not None:
            at_end = field_at_end(self.reasoning.response, tail[-_TAIL_CHARS:])
            return "may" if at_end is None else "open" if at_end.role == "reasoning" else "no"
        if not self.reasoning.closes:
            return "no"
        place = _place(self.reasoning, tail[-_TAIL_CHARS:], continues=continues)
        if place is not None:
            return "open" if place else "no"
        row = self.reasoning
        is_on = row.start == "reasoning" or (row.start == "asked" and _is_on(row, variables, effort))
        return "open" if is_on else "may"

    def starts_in_reasoning(
        self, tail: str, variables: Mapping[str, Any], *, effort: str | None = None, continues: bool = False
    ) -> bool:
        """Whether the first token is thought. What the prompt ends with decides; else the row."""
        row = self.reasoning
        if row is None or row.is_harmony:
            return False
        return self.thinking(tail, variables, effort=effort, continues=continues) == "open"


def _place(row: ReasoningRow, tail: str, *, continues: bool) -> bool | None:
    """Whether the prompt ends inside a thought; None when its end does not say."""
    opened, end = max(((tail.rfind(o), tail.rfind(o) + len(o)) for o in row.opens), default=(-1, -1))
    closed, after = max(((tail.rfind(c), tail.rfind(c) + len(c)) for c in row.closes), default=(-1, -1))
    if opened > closed and (continues or not tail[end:].strip()):
        return True
    if closed > opened and (continues or not tail[after:].strip()):
        return False
    return None


def _is_on(row: ReasoningRow, variables: Mapping[str, Any], effort: str | None) -> bool:
    given = [variables[name] for name in row.switches if name in variables]
    if given:
        return any(bool(value) for value in given)
    effort = variables.get("reasoning_effort", effort)
    if effort is not None and row.effort_off:
        return effort not in row.effort_off
    return row.default_on


def choose(
    template: str | None, codec: TextCodec, *, tool: str | None = None, reasoning: str | None = None
) -> Parsers:
    """The parsers of a model. Raises ConfigError for a name that is unknown or does not fit the vocabulary."""
    unused = ""
    try:
        own = _own(template, codec, tool, reasoning)
    except Unusable as error:
        if _HF in (tool, reasoning):
            raise
        own, unused = None, f"; not used: {error}"
    if own is not None:
        (tool_row, tool_why), (reasoning_row, reasoning_why) = own
    else:
        tool_row, tool_why = _tool(template, codec, tool)
        tool_why += unused
        reasoning_row, reasoning_why = _reasoning(template, codec, reasoning)
    tool_row, reasoning_row = _suffixed(tool_row, codec), _suffixed(reasoning_row, codec)
    names = control_tokens(codec, (*_markers(tool_row), *_markers(reasoning_row)))
    spelled = {token: chr(FIRST_CONTROL + n) for n, token in enumerate(names)}
    formats = Formats(
        None if tool_row is None else translated(tool_row, spelled),
        None if reasoning_row is None else translated(reasoning_row, spelled),
        {names[token]: char for token, char in spelled.items()},
    )
    teaches = template is not None and "tools" not in template
    if teaches and tool_row is not None:
        tool_why += "; the template does not show tools: the system message describes them"
    table = [
        ["tool calls", "not parsed" if tool_row is None else tool_row.name, tool_why],
        ["reasoning", "not split" if reasoning_row is None else reasoning_row.name, reasoning_why],
    ]
    return Parsers(
        tool_row, reasoning_row, formats, Formats(tool_row, reasoning_row, {}), names, teaches, table
    )


def _suffixed(row: Row | None, codec: TextCodec) -> Row | None:
    """Tags as this vocabulary has them: `<tag:SUFFIX>`, where its control tokens are written so."""
    if row is None or not row.has_suffix:
        return row
    for token in range(codec.vocab_size):
        if codec.is_special(token):
            found = _SUFFIXED.fullmatch(codec.token_bytes(token).decode("utf-8", "replace"))
            if found is not None:
                tags = {m for m in row.markers if m.startswith("<") and m.endswith(">")}
                return translated(row, {tag: f"{tag[:-1]}{found[1]}>" for tag in tags})
    return row


# ---- the checkpoint's own ------------------------------------------------------------------------

_HF = "hf"
_Chosen = tuple[tuple[ToolRow | None, str], tuple[ReasoningRow | None, str]]


def _own(template: str | None, codec: TextCodec, tool: str | None, reasoning: str | None) -> _Chosen | None:
    """Both rows by the checkpoint's response_template, when a flag says so, or nothing else does. Raises Unusable."""
    if _HF not in (tool, reasoning):
        if tool is not None or reasoning is not None or template is None:
            return None
        if fitting_tool_row(template, codec) is not None or fitting_reasoning_row(template) is not None:
            return None
        held = read_template(codec.metadata)
        return None if held is None else _own_rows(held, "the checkpoint's response_template")
    if not {tool, reasoning} <= {None, _HF}:
        raise ConfigError(
            f"--tool-call-parser is {tool!r} and --reasoning-parser {reasoning!r}: hf reads both",
            fix="give hf for both, or for neither",
        )
    held = read_template(codec.metadata)
    if held is None:
        older = "" if "response_schema" not in codec.metadata else ": response_schema is an older form"
        raise ConfigError(
            f"hf needs a response_template in tokenizer_config.json, which this model does not have{older}",
            fix="name another parser, or leave the flag out",
        )
    wanted: tuple[tuple[str, str | None, Role], ...] = (
        ("--tool-call-parser", tool, "calls"),
        ("--reasoning-parser", reasoning, "reasoning"),
    )
    for flag, name, role in wanted:
        if name == _HF and not held.has(role):
            raise ConfigError(
                f"{flag} is 'hf', but the checkpoint's response_template has no field of {role}",
                fix="name another parser, or leave the flag out",
            )
    return _own_rows(held, "the checkpoint's response_template, by flag")


def _own_rows(held: ResponseTemplate, why: str) -> _Chosen:
    tool = replace(TOOL_ROWS[_HF], response=held) if held.has("calls") else None
    if not held.has("reasoning"):
        return (tool, why), (None, "the checkpoint's response_template has none")
    thought = next(f for f in held.fields if f.role == "reasoning")
    row = replace(
        REASONING_ROWS[_HF],
        response=held,
        opens=() if thought.open is None else thought.open.spellings(),
        closes=() if thought.close is None else thought.close.spellings(),
    )
    return (tool, why if tool is not None else "the checkpoint's response_template has none"), (row, why)


def _markers(row: ToolRow | ReasoningRow | None) -> tuple[str, ...]:
    return () if row is None else row.markers


def _tool(template: str | None, codec: TextCodec, name: str | None) -> tuple[ToolRow | None, str]:
    if name is not None:
        row = _named("--tool-call-parser", name, TOOL_ROWS)
        _check_vocabulary("--tool-call-parser", row, codec)
        return row, f"--tool-call-parser; for {row.models}"
    if template is None:
        return None, "the model has no chat template"
    row_or_none = fitting_tool_row(template, codec)
    if row_or_none is not None:
        return (
            row_or_none,
            f"the chat template has {', '.join(row_or_none.at)}; --tool-call-parser changes it",
        )
    return TOOL_ROWS[_DEFAULT_TOOL], "the chat template shows no format; --tool-call-parser changes it"


def fitting_tool_row(template: str, codec: TextCodec | None = None) -> ToolRow | None:
    """The row with the most telling markers of those that all stand in the template."""
    template = _TAG_SUFFIX.sub(">", template)
    fits = [
        row
        for row in TOOL_ROWS.values()
        if row.at
        and all(m in template for m in row.at)
        and not any(m in template for m in row.not_at)
        and (codec is None or not _missing(row, codec))
    ]
    return max(fits, key=lambda row: sum(map(len, row.at)), default=None)


def fitting_reasoning_row(template: str) -> ReasoningRow | None:
    template = _TAG_SUFFIX.sub(">", template)
    fits = [row for row in REASONING_ROWS.values() if row.at and all(m in template for m in row.at)]
    return max(fits, key=lambda row: sum(map(len, row.at)), default=None)


def _reasoning(template: str | None, codec: TextCodec, name: str | None) -> tuple[ReasoningRow | None, str]:
    if name is not None:
        row = _named("--reasoning-parser", name, REASONING_ROWS)
        return row, f"--reasoning-parser; for {row.models}"
    found = None if template is None else fitting_reasoning_row(template)
    if found is None:
        return None, "the chat template has no marker of it; --reasoning-parser changes it"
    # Nobody said that this model always thinks: only what the prompt ends with decides.
    why = f"the chat template has {', '.join(found.at)}; --reasoning-parser changes it"
    return replace(found, start="content"), why


def _named(flag: str, name: str, rows: Mapping[str, Row]) -> Row:
    if name in rows:
        return rows[name]
    close = get_close_matches(name, rows, 1)
    near = f"did you mean {close[0]}? " if close else ""
    raise ConfigError(f"{flag} is {name!r}", fix=f"{near}allowed is one of {', '.join(sorted(rows))}")


def _check_vocabulary(flag: str, row: ToolRow, codec: TextCodec) -> None:
    missing = _missing(row, codec)
    if missing:
        raise ConfigError(
            f"{flag} {row.name} needs the token {missing[0]!r}, which this model's vocabulary does not have",
            fix="leave the flag out, so that the parser follows the chat template",
        )


def _missing(row: ToolRow, codec: TextCodec) -> list[str]:
    return [m for m in row.needs if len(codec.encode(m, add_special_tokens=False, parse_special=True)) != 1]


def control_tokens(codec: TextCodec, markers: Sequence[str]) -> dict[str, int]:
    """Spelling and id of each control token that a marker names or holds."""
    found: dict[str, int] = {}
    for marker in markers:
        for token in codec.encode(marker, add_special_tokens=False, parse_special=True):
            if codec.is_special(token):
                text = codec.token_bytes(token).decode("utf-8", "replace")
                if text and text in marker:
                    found[text] = token
    return found
