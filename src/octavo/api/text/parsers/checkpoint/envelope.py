"""Calls as a checkpoint's response_template reads them, as a grammar: delimiters and bodies written backwards.

What a pattern takes is written as short as it can be. A template that cannot be turned round is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.api.text.parsers.checkpoint.pattern import Matcher
from octavo.api.text.parsers.checkpoint.pattern_tree import (
    Chars,
    Hole,
    Node,
    PatternError,
    Repeat,
    inner_groups,
    parsed,
    shortest,
)
from octavo.api.text.parsers.checkpoint.template import Delimiter, ResponseTemplate
from octavo.api.text.parsers.lark import ANY, Lark, quoted
from octavo.api.text.parsers.nested import Braces, NotWritable

Body = Callable[[], str]  # a rule for arguments as a JSON object
Parameters = Sequence[tuple[str, Any, bool]]
Value = Callable[[str, Any, str, str], str]  # (key, schema, the text behind it, any text) -> rule


class ResponseCalls:
    """`field`: the one of calls. `is_list`: all calls stand in one region."""

    def __init__(self, template: ResponseTemplate, lark: Lark) -> None:
        self.field = next(f for f in template.fields if f.role == "calls")
        self._lark = lark
        self.is_list = self.field.is_each or self.field.content == "python-call-list"
        if self.field.content == "kv-lines" or self.field.open is None:
            raise self._no("its calls are lines of text")
        self._open = _written(self.field.open)
        self._close = [] if self.field.close is None else _written(self.field.close)
        if any(isinstance(part, Hole) for part in self._close):
            raise self._no("its calls end with a name")
        self._name, self._arguments = self._paths()

    def _no(self, why: str) -> NotWritable:
        return NotWritable(
            f"calls of this checkpoint's response_template are not written as a grammar: {why}"
        )

    @property
    def first(self) -> str:
        """The text with which every call begins."""
        return self._open[0] if isinstance(self._open[0], str) else ""

    def head(self, name: str) -> str:
        """The rest of the opening delimiter."""
        rest = "".join(name if isinstance(part, Hole) else part for part in self._open[1:])
        opening = self.field.open
        assert opening is not None
        if not _takes(opening, self.first + rest, name):
            raise self._no(f"the function name {name!r} does not fit its delimiters")
        return rest

    @property
    def close(self) -> str:
        return "".join(part for part in self._close if isinstance(part, str))

    # ---- bodies ---------------------------------------------------------------------------------

    def _paths(self) -> tuple[str, str]:
        """Where a transform takes name and arguments from: a capture, "content", or "content.KEY"."""
        held = self.field.transform
        held = held.get("function", held) if isinstance(held, Mapping) else held
        if held in (None, "{content}"):
            return "content.name", "content.arguments"
        if not isinstance(held, Mapping):
            raise self._no("its transform makes no function")
        name, arguments = (str(held.get(key, "")).strip("{}") for key in ("name", "arguments"))
        if self.field.is_each:
            name, arguments = f"content.{name}", f"content.{arguments}"
        if not name or not arguments or max(name.count("."), arguments.count(".")) > 1:
            raise self._no("its transform makes no name or no arguments")
        return name, arguments

    def body(self, name: str, schema: Any, parameters: Parameters, arguments: Body, value: Value) -> str:
        """A rule for what stands between the delimiters of one call."""
        if self.field.content == "xml-inline":
            return self._tags(schema, parameters, value)
        whole = arguments()
        if "string_delims" in self.field.args and self.field.args.get("unquoted_keys"):
            whole = self._loose(schema)
        name_key, key = self._name.partition(".")[2], self._arguments.partition(".")[2]
        if not key:
            return whole
        head = f"{quoted(name_key)}: {json.dumps(name)}, " if name_key else ""
        return self._lark.rule(f"{quoted('{' + head + quoted(key) + ': ')} {whole} {quoted('}')}")

    def _loose(self, schema: Any) -> str:
        opening, closing = self.field.args["string_delims"][0]
        if opening != closing:
            raise self._no("its strings begin and end with different marks")
        values = Braces(self._lark, schema, "hf", opening)
        return values.any_mapping() if schema is None else values.value({"type": "object", **schema}, "")

    def _tags(self, schema: Any, parameters: Parameters, value: Value) -> str:
        source = self.field.args["tag_pattern"]
        parts = shortest(parsed(source))
        holes = [part.name for part in parts if isinstance(part, Hole)]
        if holes != ["key", "value"] or self._arguments != "content" or "." in self._name:
            raise self._no("its tags do not have a key and then a value")
        text = _any_text(inner_groups(parsed(source))["value"])
        if text is None:
            raise self._no("its tags take only some values")
        at = [i for i, part in enumerate(parts) if isinstance(part, Hole)]
        head, middle, tail = (
            _join(p) for p in (parts[: at[0]], parts[at[0] + 1 : at[1]], parts[at[1] + 1 :])
        )
        out = []
        for key, held, is_required in parameters:
            if not _takes(Delimiter(source=source), head + key + middle + "x" + tail, key, group="key"):
                raise self._no(f"the key {key!r} does not fit its tags")
            one = f"{self._lark.literal(head + key + middle)} {value(key, held, tail, text)}"
            out.append(one if is_required else f"({self._lark.rule(one)})?")
        if schema is None:
            key_rule = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
            pair = [
                self._lark.literal(head),
                key_rule,
                self._lark.literal(middle),
                self._lark.until(tail, text),
            ]
            out.append(f"({self._lark.rule(' '.join(p for p in pair if p))})*")
        return " ".join(out)


def _join(parts: Sequence[str | Hole]) -> str:
    return "".join(part for part in parts if isinstance(part, str))


def _any_text(node: Node) -> str | None:
    """The regular expression of a group that takes any text; None for one that does not."""
    if isinstance(node, Repeat) and node.body == Chars() and node.most is None and node.least <= 1:
        return ANY if node.least == 0 else "/(?s:.+)/"
    return None


def _written(delimiter: Delimiter) -> list[str | Hole]:
    """A delimiter as short as can be, texts joined; the function's name is a hole."""
    if delimiter.texts:
        return [delimiter.texts[0]]
    try:
        parts = shortest(parsed(delimiter.source))
    except PatternError as error:
        raise NotWritable(
            f"a delimiter of this checkpoint's response_template cannot be written: {error}"
        ) from None
    out: list[str | Hole] = []
    for part in parts:
        if isinstance(part, str) and out and isinstance(out[-1], str):
            out[-1] += part
        else:
            out.append(part)
    return out or [""]


def _takes(delimiter: Delimiter, text: str, name: str, *, group: str = "name") -> bool:
    matcher = Matcher(delimiter.compiled({}))
    matcher.feed(text)
    matcher.close()
    found = matcher.found
    if found is None or (found.start, found.end) != (0, len(text)):
        return False
    return all(text[s:e] == name for g, (s, e) in found.groups.items() if g == group)
