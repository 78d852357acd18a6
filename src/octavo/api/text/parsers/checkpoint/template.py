"""The checkpoint's own word on how its answers are read: `response_template` in tokenizer_config.json.

Owns the reading of that object (the format of transformers 5, version 1) and every refusal of what cannot act
here. Its fields become regions: delimiters, a content type, a transform. Knows no stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.api.text.parsers.checkpoint.pattern import Matcher, Pattern, compiled
from octavo.api.text.parsers.checkpoint.pattern_tree import PatternError, literal_runs, parsed, shortest
from octavo.errors import ConfigError

Role = Literal["reasoning", "content", "calls"]
CONTENTS = ("text", "json", "xml-inline", "kv-lines", "python-call-list")
ROLES: dict[str, Role] = {
    "thinking": "reasoning",
    "reasoning": "reasoning",
    "reasoning_content": "reasoning",
    "content": "content",
    "tool_calls": "calls",
}
PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")
_TOP = frozenset({"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"})
_FIELD = frozenset(
    "open open_pattern close close_pattern content content_args repeats join optional transform transform_each".split()
)
_ARGS = {
    "text": {"strip"},
    "json": {"unquoted_keys", "string_delims", "allow_non_json"},
    "xml-inline": {"tag_pattern", "value_parser", "merge_duplicates"},
    "kv-lines": {"line_sep", "kv_sep", "strip", "value_parser"},
    "python-call-list": set[str](),
}


class Unusable(ConfigError):
    """A response_template that cannot act here."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the checkpoint's response_template: {what}",
            fix="name another --tool-call-parser and --reasoning-parser, or correct tokenizer_config.json",
        )


@dataclass(frozen=True, slots=True)
class Delimiter:
    """`texts`: any of these literals; or a pattern by its `source`."""

    texts: tuple[str, ...] = ()
    source: str = ""

    def compiled(self, spelled: Mapping[str, str]) -> Pattern:
        source = self.source or "|".join(re.escape(t) for t in sorted(self.texts, key=len, reverse=True))
        return compiled(source, spelled)

    def literals(self) -> list[str]:
        """Texts in which control tokens may be named."""
        return literal_runs(parsed(self.source)) if self.source else list(self.texts)

    def spellings(self) -> tuple[str, ...]:
        """Whole delimiters, as a model would write them."""
        if not self.source:
            return self.texts
        return ("".join(p for p in shortest(parsed(self.source)) if isinstance(p, str)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of the template. Without `open` it takes what no other field does."""

    name: str
    role: Role
    open: Delimiter | None
    close: Delimiter | None
    content: str = "text"
    args: Mapping[str, Any] = field(default_factory=dict)
    join: str = ""
    transform: Any = None
    is_each: bool = False  # the content is a list, and the transform is for each element

    @property
    def strips(self) -> bool:
        return bool(self.args.get("strip", True))


@dataclass(frozen=True, slots=True)
class ResponseTemplate:
    """`spelled`: control tokens as the characters that stand for them in a `Source`."""

    fields: tuple[Field, ...]
    anchor: Delimiter
    spelled: Mapping[str, str] = field(default_factory=dict)

    def has(self, role: Role) -> bool:
        return any(f.role == role for f in self.fields)

    def literals(self) -> list[str]:
        """Every text in which a control token may be named."""
        found: list[str] = []
        for f in self.fields:
            for delimiter in (f.open, f.close):
                found += [] if delimiter is None else delimiter.literals()
            found += [mark for pair in f.args.get("string_delims", ()) for mark in pair]
            if f.content == "xml-inline":
                found += literal_runs(parsed(f.args["tag_pattern"]))
        return list(dict.fromkeys(found))

    def after_anchor(self, prompt: str) -> str:
        """What of a prompt belongs to the message that is being written."""
        end = 0
        for start, stop in _matches(self.anchor.compiled({}), prompt):
            end = max(end, stop if stop > start else end)
        return prompt[end:]


def _matches(pattern: Pattern, text: str) -> Iterator[tuple[int, int]]:
    at = 0
    while True:
        matcher = Matcher(pattern, at, text[at - 1 : at] if at else "")
        matcher.feed(text, at)
        matcher.close()
        if matcher.found is None:
            return
        yield matcher.found.start, matcher.found.end
        at = matcher.found.end


# ---- reading -------------------------------------------------------------------------------------


def read_template(metadata: Mapping[str, Any]) -> ResponseTemplate | None:
    """The response_template of a tokenizer_config; None when it has none. Raises Unusable."""
    given = metadata.get("response_template")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise Unusable(f"is {type(given).__name__}, not an object")
    _only(given, _TOP, "it")
    if given.get("version", 1) != 1:
        raise Unusable(f"has version {given['version']!r}; read here is 1")
    defaults, raw = given.get("defaults", {}), given.get("fields")
    if not isinstance(defaults, dict) or set(defaults) - {"role"}:
        raise Unusable("defaults has more than 'role', which an answer has no place for")
    if not isinstance(raw, dict) or not raw:
        raise Unusable("fields must be an object with at least one field")
    fields = tuple(_field(name, value) for name, value in raw.items())
    implicit = [f.name for f in fields if f.open is None]
    if len(implicit) > 1:
        raise Unusable(f"the fields {', '.join(implicit)} have no open; only one may")
    anchor = _delimiter("it", given, "start_anchor")
    if anchor is None:
        raise Unusable("start_anchor or start_anchor_pattern is missing")
    return ResponseTemplate(fields, anchor)


def _only(given: Mapping[str, Any], known: frozenset[str] | set[str], scope: str) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise Unusable(
            f"{scope} has {unknown[0]!r}, which is not known; known are {', '.join(sorted(known))}"
        )


def _field(name: str, given: Any) -> Field:
    scope = f"fields.{name}"
    role = ROLES.get(name)
    if role is None:
        raise Unusable(f"{scope} has no place in an answer; fields are {', '.join(ROLES)}")
    if not isinstance(given, dict):
        raise Unusable(f"{scope} is no object")
    _only(given, _FIELD, scope)
    content, args = given.get("content", "text"), given.get("content_args", {})
    if content not in CONTENTS:
        raise Unusable(f"{scope}.content is {content!r}; read here are {', '.join(CONTENTS)}")
    _check_args(scope, content, args)
    transform, is_each = given.get("transform"), given.get("transform_each", False)
    made = Field(
        name=name,
        role=role,
        open=_delimiter(scope, given, "open"),
        close=_delimiter(scope, given, "close"),
        content=content,
        args=args,
        join=_join(scope, given),
        transform=transform,
        is_each=bool(is_each),
    )
    _check_field(scope, made)
    return made


def _join(scope: str, given: Mapping[str, Any]) -> str:
    join = given.get("join", "")
    if not isinstance(join, str) or (join and not given.get("repeats")):
        raise Unusable(f"{scope}.join must be a string, and needs repeats")
    return join


def _check_field(scope: str, made: Field) -> None:
    if made.role != "calls":
        if made.content != "text" or made.transform is not None:
            raise Unusable(
                f"{scope} is text; content {made.content!r} or a transform cannot be streamed as that"
            )
        return
    if made.open is None:
        raise Unusable(f"{scope} has no open, so that every text would be a call")
    if made.content == "text":
        raise Unusable(f"{scope}.content is text, which is no call")
    if made.is_each and made.transform is None:
        raise Unusable(f"{scope}.transform_each needs a transform")
    groups = set(made.open.compiled({}).names)
    groups |= set() if made.close is None else set(made.close.compiled({}).names)
    for path in placeholders(scope, made.transform):
        root = path.split(".")[0]
        if not made.is_each and root != "content" and root not in groups:
            raise Unusable(
                f"{scope}.transform names {{{path}}}; there are content, {', '.join(sorted(groups))}"
            )


def placeholders(scope: str, transform: Any) -> list[str]:
    """The paths that a transform names. Raises Unusable for a text that mixes them with other letters."""
    if isinstance(transform, Mapping):
        return [p for value in transform.values() for p in placeholders(scope, value)]
    if isinstance(transform, list):
        return [p for value in transform for p in placeholders(scope, value)]
    if not isinstance(transform, str):
        return []
    whole = PLACEHOLDER.fullmatch(transform)
    if whole is None and PLACEHOLDER.search(transform):
        raise Unusable(f"{scope}.transform {transform!r} mixes a placeholder with text")
    return [] if whole is None else [whole[1]]


def _check_args(scope: str, content: str, args: Any) -> None:
    scope += ".content_args"
    if not isinstance(args, dict):
        raise Unusable(f"{scope} is no object")
    _only(args, _ARGS[content], scope)
    for pair in args.get("string_delims", ()):
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(x, str) and x for x in pair)):
            raise Unusable(f"{scope}.string_delims must be pairs of strings")
    for key in ("line_sep", "kv_sep"):
        if not (isinstance(args.get(key, "x"), str) and args.get(key, "x")):
            raise Unusable(f"{scope}.{key} must be a string with letters")
    inner = args.get("value_parser")
    if inner is not None:
        _check_value_parser(scope + ".value_parser", inner)
    if content == "xml-inline":
        pattern = _pattern(f"{scope}.tag_pattern", args.get("tag_pattern"))
        if not {"key", "value"} <= set(pattern.names):
            raise Unusable(f"{scope}.tag_pattern needs the groups key and value")


def _check_value_parser(scope: str, given: Any) -> None:
    if not isinstance(given, dict) or given.get("name", "text") not in (
        "text",
        "json",
        "int",
        "float",
        "bool",
    ):
        raise Unusable(f"{scope} must be an object with the name text, json, int, float or bool")
    _only(given, {"name", "args"}, scope)
    if given.get("name") == "json":
        _check_args(scope, "json", given.get("args", {}))


def _delimiter(scope: str, given: Mapping[str, Any], key: str) -> Delimiter | None:
    pattern = given.get(f"{key}_pattern")
    texts = given.get(key)
    if pattern is not None and texts is not None:
        raise Unusable(f"{scope} has both {key} and {key}_pattern")
    if pattern is not None:
        _pattern(f"{scope}.{key}_pattern", pattern)
        return Delimiter(source=pattern)
    if texts is None:
        return None
    held: Sequence[Any] = [texts] if isinstance(texts, str) else texts
    if not isinstance(held, list) or not held or not all(isinstance(t, str) and t for t in held):
        raise Unusable(f"{scope}.{key} must be a text, or a list of texts")
    return Delimiter(tuple(dict.fromkeys(held)))


def _pattern(scope: str, given: Any) -> Pattern:
    if not isinstance(given, str):
        raise Unusable(f"{scope} must be a regular expression")
    try:
        return compiled(given)
    except PatternError as error:
        raise Unusable(f"{scope}: {error}") from None
