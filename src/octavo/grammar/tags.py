"""Structural tags -> one Lark grammar: free text in which tagged parts follow schemas.

Two forms: {"structures": [{begin, schema, end}], "triggers": [...]}, and {"format": {...}}, a tree of typed
nodes. Owns the table of node types. What a node does not know is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

import llguidance

from octavo.grammar.base import GrammarError
from octavo.grammar.schema import parse, prepare
from octavo.wire.sampling import StructuredSpec

_ANY = "/(?s:.*)/"
Options = dict[str, Any]


def tags_to_lark(spec: StructuredSpec, options: Options | None = None) -> str:
    """Raises GrammarError with the place in the tag."""
    given = parse(spec.text, "structural_tag")
    if not isinstance(given, dict):
        raise GrammarError("structural_tag must be an object with a format, or with structures and triggers")
    builder = _Builder(spec, options or {"whitespace_flexible": False})
    if "structures" in given:
        _only(given, ("type", "structures", "triggers"), "")
        root = builder.triggered(_from_structures(given), "")
    elif "format" in given:
        _only(given, ("type", "format"), "")
        root = builder.node(given["format"], "/format")
    else:
        raise GrammarError("structural_tag has neither a format nor structures")
    return builder.grammar(root)


def _from_structures(given: dict[str, Any]) -> dict[str, Any]:
    tags = []
    for i, one in enumerate(_list(given, "structures", "")):
        at = f"/structures/{i}"
        _only(one, ("begin", "schema", "end"), at)
        content = {"type": "json_schema", "json_schema": one.get("schema", {})}
        tags.append({"begin": _text(one, "begin", at), "content": content, "end": _text(one, "end", at)})
    return {"type": "triggered_tags", "triggers": given.get("triggers"), "tags": tags}


class _Builder:
    def __init__(self, spec: StructuredSpec, options: Options) -> None:
        self._spec = spec
        self._options = options
        self._lines: list[str] = []
        self._nodes: dict[str, Callable[[dict[str, Any], str], str]] = {
            "const_string": self._const,
            "json_schema": self._json,
            "regex": self._regex,
            "any_text": self._any,
            "sequence": self._sequence,
            "or": self._or,
            "tag": self._tag,
            "triggered_tags": self.triggered,
            "tags_with_separator": self._separated,
        }

    def grammar(self, root: str) -> str:
        return "\n".join(["%llguidance {}", f"start: {root}", *self._lines]) + "\n"

    def _rule(self, body: str, options: str = "") -> str:
        name = f"n{len(self._lines)}"
        self._lines.append(f"{name}{options}: {body}")
        return name

    def _terminal(self, body: str) -> str:
        name = f"T{len(self._lines)}"
        self._lines.append(f"{name}: {body}")
        return name

    def node(self, given: Any, at: str) -> str:
        """The name of the rule that a node has become."""
        kind = given.get("type") if isinstance(given, dict) else None
        if not isinstance(kind, str) or kind not in self._nodes:
            _refuse(f"{at}/type is {kind!r}; known are {', '.join(self._nodes)}")
        return self._nodes[kind](given, at)

    def _const(self, given: dict[str, Any], at: str) -> str:
        _only(given, ("type", "value"), at)
        return self._rule(_literal(_text(given, "value", at)))

    def _json(self, given: dict[str, Any], at: str) -> str:
        _only(given, ("type", "json_schema"), at)
        schema = given.get("json_schema", {})
        made = prepare(json.dumps(schema), additional_properties=self._spec.additional_properties)
        return self._rule("%json " + json.dumps({**made, "x-guidance": self._options}))

    def _regex(self, given: dict[str, Any], at: str) -> str:
        _only(given, ("type", "pattern"), at)
        return self._rule(f"/{llguidance.regex_to_lark(_text(given, 'pattern', at), '')}/")

    def _any(self, given: dict[str, Any], at: str) -> str:
        _only(given, ("type",), at)
        return self._rule(_ANY)

    def _sequence(self, given: dict[str, Any], at: str) -> str:
        _only(given, ("type", "elements"), at)
        parts = _list(given, "elements", at)
        return self._rule(" ".join(self.node(one, f"{at}/elements/{i}") for i, one in enumerate(parts)))

    def _or(self, given: dict[str, Any], at: str) -> str:
        _only(given, ("type", "elements"), at)
        parts = _list(given, "elements", at)
        return self._rule(" | ".join(self.node(one, f"{at}/elements/{i}") for i, one in enumerate(parts)))

    def _tag(self, given: dict[str, Any], at: str, cut: int = 0) -> str:
        """A tag, without the first `cut` characters of its begin."""
        _only(given, ("type", "begin", "content", "end"), at)
        begin, end = _text(given, "begin", at)[cut:], _text(given, "end", at)
        content = given.get("content")
        head = f"{_literal(begin)} " if begin else ""
        if isinstance(content, dict) and content.get("type") == "any_text" and end:
            free = self._rule(f"{_ANY} {_literal(end)}", "[lazy]")  # it stops at the first end
            return self._rule(head + free)
        return self._rule(f"{head}{self.node(content, f'{at}/content')} {_literal(end)}")

    def triggered(self, given: dict[str, Any], at: str) -> str:
        """Free text; after a trigger, one of the tags that begin with it."""
        _only(given, ("type", "triggers", "tags", "at_least_one", "stop_after_first"), at)
        triggers, tags = _list(given, "triggers", at), _list(given, "tags", at)
        parts: dict[str, list[str]] = {}
        for trigger in triggers:
            if not isinstance(trigger, str) or not trigger:
                _refuse(f"{at}/triggers must be texts of at least one character")
            parts[trigger] = []
        for i, tag in enumerate(tags):
            where = f"{at}/tags/{i}"
            if not isinstance(tag, dict):
                _refuse(f"{where} must be an object")
            begin = _text(tag, "begin", where)
            trigger = max((t for t in parts if begin.startswith(t)), key=len, default=None)
            if trigger is None:
                _refuse(f"{where}/begin is {begin!r}, which starts with none of the triggers")
            parts[trigger].append(self._tag(tag, where, cut=len(trigger)))
        branches = []
        for trigger, names in parts.items():
            if names:
                head = self._rule(f"{_ANY} {_literal(trigger)}", "[lazy]")
                branches.append(self._rule(f"{head} ({' | '.join(names)})"))
        choice = "(" + " | ".join(branches) + ")"
        banned = " | ".join(_literal(t) for t in parts)
        tail = self._terminal(f"{_ANY} & ~({_ANY} ({banned}) {_ANY})")
        at_least_one, is_single = _flag(given, "at_least_one", at), _flag(given, "stop_after_first", at)
        if is_single:
            return self._rule(choice if at_least_one else f"{choice} | {tail}")
        return self._rule(f"{choice}{'+' if at_least_one else '*'} {tail}")

    def _separated(self, given: dict[str, Any], at: str) -> str:
        _only(given, ("type", "tags", "separator", "at_least_one", "stop_after_first"), at)
        tags = [self._tag(one, f"{at}/tags/{i}") for i, one in enumerate(_list(given, "tags", at))]
        choice, separator = "(" + " | ".join(tags) + ")", _text(given, "separator", at)
        body = choice
        if not _flag(given, "stop_after_first", at):
            body += f" ({_literal(separator)} {choice})*"
        return self._rule(body if _flag(given, "at_least_one", at) else f"({body})?")


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _refuse(problem: str) -> NoReturn:
    raise GrammarError(f"structural_tag: {problem}")


def _only(given: Any, known: tuple[str, ...], at: str) -> None:
    if not isinstance(given, dict):
        _refuse(f"{at or '/'} must be an object")
    for key in given:
        if key not in known:
            _refuse(f"{at}/{key} is not supported; known are {', '.join(known)}")


def _text(given: dict[str, Any], key: str, at: str) -> str:
    value = given.get(key)
    if not isinstance(value, str):
        _refuse(f"{at}/{key} must be text")
    return value


def _list(given: dict[str, Any], key: str, at: str) -> list[Any]:
    value = given.get(key)
    if not isinstance(value, list) or not value:
        _refuse(f"{at}/{key} must be a list that is not empty")
    return value


def _flag(given: dict[str, Any], key: str, at: str) -> bool:
    value = given.get(key, False)
    if not isinstance(value, bool):
        _refuse(f"{at}/{key} must be true or false")
    return value
