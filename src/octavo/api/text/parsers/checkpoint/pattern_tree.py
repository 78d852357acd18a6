"""Regular expressions that a checkpoint brings, as trees: a part of Python's syntax, without lookaround and references.

Owns the reading of a pattern, control tokens in it as the one character that stands for them, and a text that it
takes. `.` takes every character, `$` stands at the end only. Knows nothing of matching.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MAX_REPEAT = 1_000
MAX_DEPTH = 50
_TRIED = " \nax_0" + "".join(map(chr, range(0x21, 0x7F)))
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_SETS = "dDwWsS"
_HEX = {"x": 2, "u": 4, "U": 8}


class PatternError(ValueError):
    """A pattern that is none, or that this subset does not have."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character. `literal`: that one; else any that the class `source` (as Python's `re` writes it) has."""

    literal: str = ""
    source: str = ""  # '' with no literal: every character


@dataclass(frozen=True, slots=True)
class Assert:
    kind: str  # "start", "end", "edge" of a word, "inside"


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    body: Node


@dataclass(frozen=True, slots=True)
class Repeat:
    """`most` None: without end."""

    body: Node
    least: int
    most: int | None
    is_lazy: bool


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Node, ...]


Node = Chars | Assert | Group | Repeat | Sequence | Choice


class _Reader:
    """The text of a pattern to its tree."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._names: set[str] = set()

    def read(self) -> Node:
        node = self._choice()
        if self._at < len(self._text):
            raise PatternError(f"unbalanced ')' at {self._at}")
        return node

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, literal: str) -> bool:
        if self._text.startswith(literal, self._at):
            self._at += len(literal)
            return True
        return False

    def _choice(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise PatternError(f"groups are nested more than {MAX_DEPTH} deep")
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        self._depth -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._one()))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeated(self, body: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return body
        if isinstance(body, Assert):
            raise PatternError("an assertion is repeated")
        is_lazy = self._take("?")
        if self._peek() in ("+", "*") or self._bounds() is not None:
            raise PatternError(f"a repeat of a repeat, or a possessive one, at {self._at}")
        return Repeat(body, *bounds, is_lazy)

    def _bounds(self) -> tuple[int, int | None] | None:
        for mark, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(mark):
                return bounds
        counted = re.compile(r"\{([0-9]{0,9})(,?)([0-9]{0,9})\}").match(self._text, self._at)
        if counted is None or counted.group() in ("{}", "{,}"):
            return None
        self._at = counted.end()
        least = int(counted[1] or 0)
        most = int(counted[3]) if counted[3] else None if counted[2] else least
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            raise PatternError(f"{counted.group()} repeats more than {MAX_REPEAT} times, or less than none")
        return least, most

    def _one(self) -> Node:
        char = self._peek()
        self._at += 1
        match char:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                return Chars()
            case "^":
                return Assert("start")
            case "$":
                return Assert("end")
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise PatternError(f"nothing to repeat at {self._at - 1}")
        return Chars(char)

    def _group(self) -> Node:
        name = ""
        if self._take("?"):
            named = re.compile(r"P?<([A-Za-z_]\w*)>").match(self._text, self._at)
            if named is not None:
                self._at, name = named.end(), named[1]
                if name in self._names:
                    raise PatternError(f"the group {name!r} is there twice")
                self._names.add(name)
            elif self._take("s)"):  # `.` takes every character anyway
                return Sequence(())
            elif not (self._take(":") or self._take("s:")):
                kind = self._text[self._at - 1 : self._at + 2]
                what = "lookaround" if kind[1:2] in ("=", "!", "<") else "this kind of group"
                raise PatternError(f"{what} ({kind!r} at {self._at - 1}) is not supported")
        body = self._choice()
        if not self._take(")"):
            raise PatternError("a ')' is missing")
        return Group(name, body) if name else body

    def _escape(self) -> Node:
        char = self._peek()
        self._at += 1
        if char in ("b", "B"):
            return Assert("edge" if char == "b" else "inside")
        if char in ("A", "Z", "z"):
            return Assert("start" if char == "A" else "end")
        found = self._escaped(char)
        return found if isinstance(found, Chars) else Chars(found)

    def _escaped(self, char: str) -> Chars | str:
        """A set, or the one character that is meant."""
        if char and char in _SETS:
            return Chars(source="\\" + char)
        if char in _HEX:
            digits = self._text[self._at : self._at + _HEX[char]]
            if not re.fullmatch(f"[0-9a-fA-F]{{{_HEX[char]}}}", digits) or int(digits, 16) > 0x10FFFF:
                raise PatternError(f"a wrong escape at {self._at}")
            self._at += len(digits)
            return chr(int(digits, 16))
        if char in _SIMPLE:
            return _SIMPLE[char]
        if not char or (char.isascii() and char.isalnum()):
            raise PatternError(f"the escape '\\{char}' is not supported")
        return char

    def _class(self) -> Chars:
        """`[...]`, rewritten so that nothing in it has a meaning that it did not have."""
        items = ["^"] if self._take("^") else []
        is_first = True
        while is_first or self._peek() != "]":
            low = self._member()
            is_range = self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", "")
            if isinstance(low, str) and is_range:
                self._at += 1
                high = self._member()
                if isinstance(high, Chars) or high < low:
                    raise PatternError(f"a wrong range at {self._at}")
                items.append(f"{in_class(low)}-{in_class(high)}")
            else:
                items.append(low.source if isinstance(low, Chars) else in_class(low))
            is_first = False
        self._at += 1
        return Chars(source=f"[{''.join(items)}]")

    def _member(self) -> Chars | str:
        char = self._peek()
        if not char:
            raise PatternError("a ']' is missing")
        self._at += 1
        if char != "\\":
            return char
        char = self._peek()
        self._at += 1
        return "\b" if char == "b" else self._escaped(char)


def in_class(char: str) -> str:
    """A character as a class of `re` has it, whatever it means there."""
    return f"\\U{ord(char):08x}"


def parsed(text: str) -> Node:
    """Raises PatternError."""
    return _Reader(text).read()


def literal_runs(node: Node) -> list[str]:
    """The texts of characters that stand beside each other in a pattern: where control tokens may be named."""
    runs: list[str] = []
    match node:
        case Chars():
            return [node.literal] if node.literal else []
        case Group() | Repeat():
            return literal_runs(node.body)
        case Choice():
            return [run for option in node.options for run in literal_runs(option)]
        case Sequence():
            text = ""
            for part in node.parts:
                if isinstance(part, Chars) and part.literal:
                    text += part.literal
                    continue
                runs += [text] if text else []
                text = ""
                runs += literal_runs(part)
            runs += [text] if text else []
    return runs


def with_controls(node: Node, spelled: Mapping[str, str]) -> Node:
    """The tree with each control token that it spells out as the one character that stands for it."""
    match node:
        case Group():
            return Group(node.name, with_controls(node.body, spelled))
        case Repeat():
            return Repeat(with_controls(node.body, spelled), node.least, node.most, node.is_lazy)
        case Choice():
            return Choice(tuple(with_controls(o, spelled) for o in node.options))
        case Sequence():
            return Sequence(tuple(_replaced(node.parts, spelled)))
    return node


def _replaced(parts: tuple[Node, ...], spelled: Mapping[str, str]) -> list[Node]:
    out: list[Node] = []
    at = 0
    longest = sorted(spelled, key=len, reverse=True)
    while at < len(parts):
        for token in longest:
            run = parts[at : at + len(token)]
            if [p.literal if isinstance(p, Chars) else "" for p in run] == list(token):
                out.append(Chars(spelled[token]))
                at += len(token)
                break
        else:
            out.append(with_controls(parts[at], spelled))
            at += 1
    return out


def inner_groups(node: Node) -> dict[str, Node]:
    """What stands in each named group."""
    match node:
        case Group():
            return {node.name: node.body, **inner_groups(node.body)}
        case Repeat():
            return inner_groups(node.body)
        case Choice():
            return {k: v for option in node.options for k, v in inner_groups(option).items()}
        case Sequence():
            return {k: v for part in node.parts for k, v in inner_groups(part).items()}
    return {}


@dataclass(frozen=True, slots=True)
class Hole:
    """A place in a text where what a named group stands for belongs."""

    name: str


def shortest(node: Node) -> list[str | Hole]:
    """A text that the pattern takes, as short as can be, with its named groups left open.

    Raises PatternError where there is no saying (an empty set of characters).
    """
    match node:
        case Chars():
            return [node.literal or _example(node.source)]
        case Assert():
            return []
        case Group():
            return [Hole(node.name)]
        case Repeat():
            return shortest(node.body) * node.least
        case Choice():
            return min(map(shortest, node.options), key=lambda parts: sum(map(_size, parts)))
        case Sequence():
            return [part for inner in node.parts for part in shortest(inner)]


def _size(part: str | Hole) -> int:
    return len(part) if isinstance(part, str) else 1


def _example(source: str) -> str:
    taken = re.compile(source or ".", re.DOTALL)
    for char in _TRIED:
        if taken.fullmatch(char):
            return char
    raise PatternError(f"no letter is known that {source} takes")
