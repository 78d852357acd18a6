"""Grammars in the ways people write them -> the Lark dialect that is compiled.

GBNF and EBNF are the same language here: rules `name ::= ...` (or `=`), start rule `root`; `;` may end a
rule, `#` and `(* *)` are comments; `[a-z]`, `.`, `"text"`, 'text', groups, `* + ? {m,n}`. Owns the parser
and positions in errors. Does not know what a rule compiles to.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

from octavo.grammar.base import GrammarError

_MAX_NESTING = 64
_LARK = re.compile(r"(?m)^\s*(%llguidance\b|\??start\s*(\[[^\]]*\]\s*)?:(?!:))")
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\n]*|//[^\n]*|\(\*.*?\*\))
    |(?P<define>::=|=(?!=))
    |(?P<name>[A-Za-z_][A-Za-z0-9_-]*|<[A-Za-z_][A-Za-z0-9_ -]*>)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<set>\[(?:[^\]\\\n]|\\.)*\])
    |(?P<count>\{\s*\d+\s*(?:,\s*\d*\s*)?\})
    |(?P<sign>[|()*+?.;])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "f": "\f", "v": "\v", "b": "\b"}
_Token = tuple[str, str, int]  # kind, text, offset


def is_lark(text: str) -> bool:
    """Lark has a rule `start:`; the others have `root ::=`."""
    return _LARK.search(text) is not None


def to_lark(text: str) -> str:
    """Raises GrammarError with line and column."""
    return _Parser(text).grammar()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._at = 0
        self._depth = 0
        self._used: dict[str, int] = {}

    def _split(self) -> list[_Token]:
        found, at = [], 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if match is None:
                self._fail(f"{self._text[at]!r} cannot stand here", at)
            kind = match.lastgroup or ""
            if kind != "space":
                found.append((kind, match.group(), at))
            at = match.end()
        found.append(("end", "", len(self._text)))
        return found

    def _fail(self, problem: str, at: int) -> NoReturn:
        line = self._text.count("\n", 0, at) + 1
        column = at - (self._text.rfind("\n", 0, at) + 1) + 1
        raise GrammarError(f"grammar, line {line}, column {column}: {problem}")

    def _peek(self, ahead: int = 0) -> _Token:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def _next(self) -> _Token:
        token = self._peek()
        self._at += 1
        return token

    def grammar(self) -> str:
        rules: dict[str, tuple[str, int]] = {}
        while self._peek()[0] != "end":
            kind, name, at = self._next()
            if kind != "name" or self._peek()[0] != "define":
                self._fail(f"a rule must begin here (name ::= ...), not {name or 'the end'!r}", at)
            self._next()
            if name in rules:
                self._fail(f"the rule {name!r} is there already", at)
            rules[name] = (self._choice(), at)
            if self._peek()[1] == ";":
                self._next()
        if "root" not in rules:
            first = next(iter(rules.items()), None)
            named = f"; its first rule is {first[0]!r}" if first else ""
            self._fail(f"there is no rule 'root' to start from{named}", first[1][1] if first else 0)
        for name, at in self._used.items():
            if name not in rules:
                self._fail(f"there is no rule {name!r}", at)
        numbers = {name: i for i, name in enumerate(rules)}
        lines = ["start: " + _rule(numbers["root"])]
        for name, (body, _) in rules.items():
            lines.append(f"{_rule(numbers[name])}: " + _NAME.sub(lambda m: _rule(numbers[m[1]]), body))
        return "\n".join(lines) + "\n"

    def _choice(self) -> str:
        branches = [self._sequence()]
        while self._peek()[1] == "|" and self._peek()[0] == "sign":
            self._next()
            branches.append(self._sequence())
        return " | ".join(branches)

    def _sequence(self) -> str:
        parts: list[str] = []
        while True:
            kind, text, at = self._peek()
            if kind == "name":
                if self._peek(1)[0] == "define":
                    break
                self._next()
                self._used.setdefault(text, at)
                part = f"\0{text}\0"
            elif kind == "text":
                self._next()
                part = _literal(self._unescape(text[1:-1], at + 1))
            elif kind == "set":
                self._next()
                part = self._set(text, at)
            elif text == "." and kind == "sign":
                self._next()
                part = r"/(?s:.)/"
            elif text == "(" and kind == "sign":
                part = self._group(at)
            else:
                break
            parts.append(part + self._repeat())
        return " ".join(parts) if parts else '""'

    def _group(self, at: int) -> str:
        self._next()
        self._depth += 1
        if self._depth > _MAX_NESTING:
            self._fail(f"groups are nested more than {_MAX_NESTING} deep", at)
        body = self._choice()
        _, text, where = self._next()
        if text != ")":
            self._fail(f"')' is missing; the group began {where - at} characters before", where)
        self._depth -= 1
        return f"({body})"

    def _repeat(self) -> str:
        kind, text, _ = self._peek()
        if kind == "sign" and text in "*+?":
            self._next()
            return text
        if kind == "count":
            self._next()
            return text.replace(" ", "")
        return ""

    def _unescape(self, text: str, at: int) -> str:
        out, i = [], 0
        while i < len(text):
            if text[i] != "\\":
                out.append(text[i])
                i += 1
                continue
            char, width = text[i + 1], {"x": 2, "u": 4, "U": 8}.get(text[i + 1], 0)
            if width:
                digits = text[i + 2 : i + 2 + width]
                if len(digits) < width or not re.fullmatch("[0-9A-Fa-f]+", digits):
                    self._fail(f"\\{char} needs {width} hexadecimal digits", at + i)
                code = int(digits, 16)
                if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                    self._fail(f"\\{char}{digits} is no character", at + i)
                out.append(chr(code))
            else:
                out.append(_ESCAPES.get(char, char))
            i += 2 + width
        return "".join(out)

    def _set(self, text: str, at: int) -> str:
        """A character class. A '-' that was escaped, or stands at an end, is itself."""
        inner = text[1:-1]
        negated = inner.startswith("^")
        inner = inner[1:] if negated else inner
        if not inner:
            self._fail("an empty set matches nothing", at)
        parts = re.findall(r"\\(?:x..|u.{4}|U.{8}|.)|.", inner, re.DOTALL)
        out = []
        for i, part in enumerate(parts):
            if part == "-" and 0 < i < len(parts) - 1:
                out.append("-")
            elif part in (r"\d", r"\w", r"\s"):
                out.append({r"\d": "0-9", r"\w": "0-9A-Za-z_", r"\s": r"\x{20}\t\n\r\x{c}\x{b}"}[part])
            else:
                char = self._unescape(part, at + 1)
                out.append(char if char.isascii() and char.isalnum() else rf"\x{{{ord(char):x}}}")
        return f"/[{'^' if negated else ''}{''.join(out)}]/"


_NAME = re.compile("\0([^\0]*)\0")


def _rule(number: int) -> str:
    return f"r{number}"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
