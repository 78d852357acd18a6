"""The body of a `tool_calls` region as calls: (name, arguments as JSON text).

Values are JSON texts all the way, so that numbers and spelling stay as the model wrote them. A body that does not
fit its template faults; then it is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from octavo.api.text.parsers.checkpoint.pattern import Matcher, compiled
from octavo.api.text.parsers.checkpoint.template import PLACEHOLDER, Field
from octavo.api.text.parsers.literals import Transcriber, quoted
from octavo.api.text.parsers.source import CONTROL, Fault, Source, Steps, decoded, lenient
from octavo.api.text.parsers.values import as_json, property_schema

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NUMBER_WORDS = {"int": "integer", "float": "number", "bool": "boolean"}
Tools = Mapping[str, Mapping[str, Any]]


def calls_of(
    body: str, made: Field, captures: Mapping[str, str], tools: Tools, spelled: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Raises Fault for a body that is no call."""
    scope = {name: quoted(text) for name, text in captures.items()}
    name = captures.get("name", "")
    content = _content(body, made, dict(tools.get(name, {})), spelled)
    if made.is_each:
        found = [_applied(made.transform, {**scope, **dict(members(x))}) for x in items(content)]
    elif made.transform is not None:
        found = [_applied(made.transform, {**scope, "content": content})]
    else:
        found = [content]
    flat = [x for value in found for x in (items(value) if value[:1] == "[" else [value])]
    if not flat:
        raise Fault
    return [_call(value) for value in flat]


def _call(value: str) -> tuple[str, str]:
    held = dict(members(value))
    function = dict(members(held["function"])) if "function" in held else held
    name, arguments = function.get("name", '""'), function.get("arguments", "{}")
    if name[:1] != '"' or not (name := decoded(name).strip()) or any(c.isspace() for c in name):
        raise Fault
    if arguments[:1] == '"':  # an object that was written as a string
        arguments = decoded(arguments).strip() or "{}"
        lenient(arguments)
    arguments = "{}" if arguments == "null" else arguments
    if arguments[:1] != "{":
        raise Fault
    return name, arguments


def _applied(transform: Any, scope: Mapping[str, str]) -> str:
    """A transform's JSON text with the placeholders' values in it."""
    if isinstance(transform, dict):
        pairs = (f"{quoted(str(k))}: {_applied(v, scope)}" for k, v in transform.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(transform, list):
        return "[" + ", ".join(_applied(v, scope) for v in transform) + "]"
    found = PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if found is None:
        return json.dumps(transform, ensure_ascii=False)
    root, *keys = found[1].split(".")
    if root not in scope:
        raise Fault
    value = scope[root]
    for key in keys:
        held = dict(members(value))
        if key not in held:
            raise Fault
        value = held[key]
    return value


# ---- JSON text, taken apart without being written anew ---------------------------------------------


def _value(source: Source) -> str:
    """The JSON value that comes next in a closed source, byte for byte."""
    pieces: list[str] = []
    for _ in source.space():
        raise Fault
    for _ in source.json(pieces.append):
        raise Fault
    for _ in source.space():
        raise Fault
    return "".join(pieces)


def _inside(text: str, opening: str, closing: str) -> Source:
    """What stands between two brackets, as a closed source behind its first white space."""
    if text[:1] != opening or text[-1:] != closing:
        raise Fault
    source = _closed(text[1:-1])
    for _ in source.space():
        raise Fault
    return source


def _closed(text: str) -> Source:
    source = Source()
    source.feed(text)
    source.is_closed = True
    return source


def _is_over(source: Source, count: int) -> bool:
    """Whether nothing follows; reads the comma between two elements."""
    if source.at == len(source.text):
        return True
    if count and source.take(1) != ",":
        raise Fault
    return False


def members(text: str) -> list[tuple[str, str]]:
    """(key, value as it stands) of a JSON object. Raises Fault."""
    source = _inside(text, "{", "}")
    out: list[tuple[str, str]] = []
    while not _is_over(source, len(out)):
        key = _value(source)
        if key[:1] != '"' or source.take(1) != ":":
            raise Fault
        out.append((decoded(key), _value(source)))
    return out


def items(text: str) -> list[str]:
    """The elements of a JSON array, as they stand. Raises Fault."""
    source = _inside(text, "[", "]")
    out: list[str] = []
    while not _is_over(source, len(out)):
        out.append(_value(source))
    return out


# ---- content types -------------------------------------------------------------------------------


def _content(body: str, made: Field, schema: dict[str, Any], spelled: Mapping[str, str]) -> str:
    match made.content:
        case "json":
            return _json(body, made.args, spelled)
        case "xml-inline":
            return _tags(body, made.args, schema, spelled)
        case "kv-lines":
            return _lines(body, made.args, schema)
    return _call_list(CONTROL.sub("", body))


def _json(body: str, args: Mapping[str, Any], spelled: Mapping[str, str]) -> str:
    delims = args.get("string_delims", [])
    if not delims and not args.get("unquoted_keys"):
        text = CONTROL.sub("", body).strip()
    else:
        text = _Loose(body, args, spelled).read()
    try:
        lenient(text)
    except Fault:
        if not args.get("allow_non_json"):
            raise
        return quoted(CONTROL.sub("", body).strip())
    return text


class _Loose:
    """JSON whose keys may lack quotes and whose strings may stand between other marks, as JSON text."""

    def __init__(self, body: str, args: Mapping[str, Any], spelled: Mapping[str, str]) -> None:
        self._body = body
        self._closes: dict[str, str] = {}
        for opening, closing in args.get("string_delims", []):
            for token, char in spelled.items():
                opening, closing = opening.replace(token, char), closing.replace(token, char)
            self._closes.setdefault(opening, closing)
        marks = "|".join(re.escape(m) for m in sorted(self._closes, key=len, reverse=True))
        bare = r"|(?<=[{,])(?P<lead>\s*)(?P<key>\w+)(?P<tail>\s*):" if args.get("unquoted_keys") else ""
        self._next = re.compile(rf'(?P<mark>{marks or r"(?!)"})|(?P<quote>"){bare}')

    def read(self) -> str:
        body, at, out = self._body, 0, []
        while (found := self._next.search(body, at)) is not None:
            out.append(body[at : found.start()])
            if found["mark"] is not None:
                closing = self._closes[found["mark"]]
                end = body.find(closing, found.end())
                if end < 0:
                    raise Fault
                out.append(quoted(CONTROL.sub("", body[found.end() : end])))
                at = end + len(closing)
            elif found["quote"] is not None:
                at = self._string(found.start(), out)
            else:
                out.append(f'{found["lead"]}"{found["key"]}"{found["tail"]}:')
                at = found.end()
        out.append(body[at:])
        return CONTROL.sub("", "".join(out)).strip()

    def _string(self, start: int, out: list[str]) -> int:
        found = _STRING.match(self._body, start)
        if found is None:
            raise Fault
        out.append(found.group())
        return found.end()


def _tags(body: str, args: Mapping[str, Any], schema: dict[str, Any], spelled: Mapping[str, str]) -> str:
    pattern = compiled(args["tag_pattern"], spelled)
    found: dict[str, list[str]] = {}
    at, work = 0, 0
    while True:
        matcher = Matcher(pattern, at, body[at - 1 : at] if at else "")
        matcher.feed(body, at)
        matcher.close()
        work += matcher.work
        if work > 60 * len(body) + 10_000:  # a pattern that looks at everything behind each of its matches
            raise Fault
        if matcher.found is None:
            break
        at = matcher.found.end
        texts = {name: CONTROL.sub("", body[s:e]) for name, (s, e) in matcher.found.groups.items()}
        key, value = texts.get("key", "").strip(), texts.get("value", "")
        held = found.setdefault(key, [])
        if not args.get("merge_duplicates"):
            held.clear()
        held.append(_typed(value, property_schema(schema, key), args.get("value_parser")))
    pairs = (f"{quoted(k)}: {v[0] if len(v) == 1 else '[' + ', '.join(v) + ']'}" for k, v in found.items())
    return "{" + ", ".join(pairs) + "}"


def _lines(body: str, args: Mapping[str, Any], schema: dict[str, Any]) -> str:
    strips, separator = args.get("strip", True), args.get("kv_sep", ":")
    found: dict[str, str] = {}
    for line in CONTROL.sub("", body).split(args.get("line_sep", "\n")):
        key, mark, value = line.partition(separator)
        if not mark:
            continue
        if strips:
            key, value = key.strip(), value.strip()
        found[key] = _typed(value, property_schema(schema, key), args.get("value_parser"))
    return "{" + ", ".join(f"{quoted(k)}: {v}" for k, v in found.items()) + "}"


def _typed(text: str, schema: Any, parser: Mapping[str, Any] | None) -> str:
    """By the tool's schema where it says something, else by the template's own parser of values."""
    if schema is not None:
        return as_json(text, schema)
    name, args = ("text", {}) if parser is None else (parser.get("name", "text"), parser.get("args", {}))
    if name == "json":
        return _json(text, args, {})
    if name in _NUMBER_WORDS:
        return as_json(text, {"type": _NUMBER_WORDS[name]})
    return quoted(text if parser is None else text.strip())


def _call_list(body: str) -> str:
    """`[f(a=1), g()]` as a list of {"name", "arguments"}."""
    source = _closed(body.strip())
    calls: list[str] = []

    def one(_: str, __: int) -> Steps[None]:
        name, arguments = yield from Transcriber(source, []).call()
        calls.append(f'{{"name": {quoted(name)}, "arguments": {arguments}}}')

    def steps() -> Steps[None]:
        yield from source.expect("[")
        yield from source.listed("]", one)

    for _ in steps():
        raise Fault
    if source.at < len(source.text):
        raise Fault
    return "[" + ", ".join(calls) + "]"
