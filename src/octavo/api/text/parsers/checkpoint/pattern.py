"""The patterns of a checkpoint, matched in linear time while the text still comes.

Owns the compilation of a tree to a small program, and a matcher that runs all threads of the program side by side
(R. Cox, "Regular Expression Matching: the Virtual Machine Approach", 2009). Matches are those of a backtracking
engine: leftmost, then the first alternative. A set of characters takes a control token, which is one character
here, when it takes every letter of its spelling. Knows nothing of what a match means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from octavo.api.text.parsers.checkpoint.pattern_tree import (
    Assert,
    Chars,
    Choice,
    Group,
    Node,
    PatternError,
    Repeat,
    Sequence,
    in_class,
    inner_groups,
    parsed,
    with_controls,
)

MAX_PROGRAM = 4_000  # instructions: repeats with counts are written out


@dataclass(slots=True)
class _Op:
    """`kind`: "char" (`literal` or `test`), "any", "split" (to `x`, then `y`), "jump" (to `x`), "save" (`slot`),
    "assert" (`what`) or "match"."""

    kind: str
    x: int = 0
    y: int = 0
    slot: int = 0
    test: re.Pattern[str] | None = None
    literal: str = ""
    what: str = ""
    source: str = ""


@dataclass(slots=True)
class Pattern:
    """A compiled pattern. `names`: its groups; `spellings`: control character to the token's text."""

    node: Node
    spellings: Mapping[str, str] = field(default_factory=dict)
    ops: list[_Op] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    first: re.Pattern[str] | None = None  # where a match may begin; None: anywhere
    _others: dict[tuple[int, ...], re.Pattern[str] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._emit(self.node)
        self._push(_Op("match"))
        self.first = self._first()

    def _push(self, op: _Op) -> int:
        if len(self.ops) >= MAX_PROGRAM:
            raise PatternError(f"the pattern is larger than {MAX_PROGRAM} steps")
        self.ops.append(op)
        return len(self.ops) - 1

    def _emit(self, node: Node) -> None:
        match node:
            case Chars():
                self._push(_char_op(node))
            case Assert():
                self._push(_Op("assert", what=node.kind))
            case Sequence():
                for part in node.parts:
                    self._emit(part)
            case Group():
                slot = 2 * len(self.names)
                self.names.append(node.name)
                self._push(_Op("save", slot=slot))
                self._emit(node.body)
                self._push(_Op("save", slot=slot + 1))
            case Choice():
                self._emit_choice(node)
            case Repeat():
                self._emit_repeat(node)

    def _emit_choice(self, node: Choice) -> None:
        jumps = []
        for i, option in enumerate(node.options):
            if i == len(node.options) - 1:
                self._emit(option)
                break
            split = self._push(_Op("split"))
            self.ops[split].x = len(self.ops)
            self._emit(option)
            jumps.append(self._push(_Op("jump")))
            self.ops[split].y = len(self.ops)
        for jump in jumps:
            self.ops[jump].x = len(self.ops)

    def _emit_repeat(self, node: Repeat) -> None:
        if node.most != 1 and inner_groups(node.body):
            raise PatternError("a named group is repeated")
        for _ in range(node.least):
            self._emit(node.body)
        if node.most is None:
            split = self._push(_Op("split"))
            self._emit(node.body)
            self._push(_Op("jump", x=split))
            self._aim(split, is_lazy=node.is_lazy)
            return
        splits = []
        for _ in range(node.most - node.least):
            splits.append(self._push(_Op("split")))
            self._emit(node.body)
        for split in splits:
            self._aim(split, is_lazy=node.is_lazy)

    def _aim(self, split: int, *, is_lazy: bool) -> None:
        into, past = split + 1, len(self.ops)
        self.ops[split].x, self.ops[split].y = (past, into) if is_lazy else (into, past)

    def _first(self) -> re.Pattern[str] | None:
        """What the first character of a match can be, as one class."""
        return self._class_of(self._reach(0))

    def _reach(self, start: int) -> list[int]:
        """The places that may stand at `start` without reading a character; -1 for the end of the pattern."""
        todo, seen, found = [start], set[int](), []
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            op = self.ops[at]
            match op.kind:
                case "char" | "any":
                    found.append(at)
                case "match":
                    found.append(-1)
                case "split":
                    todo += [op.x, op.y]
                case "jump":
                    todo.append(op.x)
                case _:
                    todo.append(at + 1)
        return found

    def _class_of(self, places: list[int]) -> re.Pattern[str] | None:
        """One class of what the ops at `places` take; control characters always. None: every character."""
        sources = []
        for at in places:
            if at < 0 or self.ops[at].kind == "any":
                return None
            sources.append(self.ops[at].source)
        return re.compile("|".join([*dict.fromkeys(sources), "[\ud800-\udfff]"]))

    def others(self, places: tuple[int, ...]) -> re.Pattern[str] | None:
        """What changes a state that stands at `places`: a character that an op there takes, but those that take
        everything, or one with which a match may begin. None where every character may."""
        if places not in self._others:
            held = [at for at in places if self.ops[at].kind == "char"]
            self._others[places] = self._class_of([*held, *self._reach(0)])
        return self._others[places]

    def takes(self, op: _Op, char: str) -> bool:
        if op.kind == "any" or char == op.literal:
            return True
        if op.test is None:
            return False
        spelling = self.spellings.get(char)
        if spelling is not None:
            return all(op.test.fullmatch(c) for c in spelling)
        return op.test.fullmatch(char) is not None


def _char_op(node: Chars) -> _Op:
    if node.literal:
        return _Op("char", literal=node.literal, source=in_class(node.literal))
    if not node.source:
        return _Op("any")
    return _Op("char", test=re.compile(node.source), source=node.source)


def compiled(text: str, spelled: Mapping[str, str] | None = None) -> Pattern:
    """Raises PatternError. `spelled`: control token to the character that stands for it."""
    spelled = spelled or {}
    return Pattern(with_controls(parsed(text), spelled), {char: token for token, char in spelled.items()})


# ---- the matcher ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Match:
    """Positions in the whole text. `groups`: name to (start, end) of those that took part."""

    start: int
    end: int
    groups: dict[str, tuple[int, int]]


_Thread = tuple[int, int, tuple[int, ...]]  # (place in the program, start of the match, slots)


class Matcher:
    """Looks for the first match of one pattern from `position` on; `feed` it what follows, then `close` it.

    While `found` is None, no match begins before `pending`; text before it is none of the pattern's.
    `work` counts what was looked at: places of the program, and characters that were passed over.
    """

    def __init__(
        self, pattern: Pattern, position: int = 0, before: str = "", *, limit: int | None = None
    ) -> None:
        """`limit`: a match of more characters is none; what comes behind so many is looked at anew."""
        self._pattern = pattern
        self._limit = limit
        self._threads: list[_Thread] = []
        self._candidate: Match | None = None
        self._before = before  # the character before `position`
        self.position = position
        self.found: Match | None = None
        self.is_over = False
        self.work = 0
        self._trail_of = ""
        self._trail: list[
            list[_Thread]
        ] = []  # the states behind the last characters, while they are one and the same

    @property
    def pending(self) -> int:
        """Where a match may have begun that is not decided; `position` when there is none."""
        starts = [start for _, start, _ in self._threads]
        if self._candidate is not None:
            starts.append(self._candidate.start)
        return min(starts, default=self.position)

    def feed(self, text: str, at: int = 0) -> None:
        """The text from `position` on begins at text[at]. Stops where the match is decided."""
        while at < len(text) and self.found is None:
            if not self._threads and self._candidate is None and self._pattern.first is not None:
                hit = self._pattern.first.search(text, at)
                end = len(text) if hit is None else hit.start()
                if end > at:
                    self._skip(end - at, text[end - 1])
                    at = end
                    continue
            char = text[at]
            places = tuple(place for place, _, _ in self._threads)
            old, is_passed = self._threads, self._step(char)
            at += 1
            loops = self._loops(self._threads)
            if is_passed and loops and self._candidate is None and loops == self._loops(old):
                at = self._pass(places, text, at)
                self._trail = []
            else:
                at = self._leap(char, text, at)

    def _leap(self, char: str, text: str, at: int) -> int:
        """Goes on to the last of a run of one character, where the run does the same to the threads each time.

        What a character does depends on the places alone; so when two steps in a row move all starts and slots by
        the same amounts, every further one does too.
        """
        if self._trail and char != self._trail_of:
            self._trail = []
        self._trail_of = char
        self._trail = [*self._trail[-2:], self._threads] if self._threads and self._candidate is None else []
        if len(self._trail) < 3 or at >= len(text) or text[at] != char:
            return at
        moves = [_moves(a, b) for a, b in pairwise(self._trail)]
        if moves[0] is None or moves[0] != moves[1]:
            return at
        hit = re.compile(f"(?!{re.escape(char)})", re.DOTALL).search(text, at)
        count = (len(text) if hit is None else hit.start()) - 1 - at
        first = self._threads[0]
        if self._limit is not None and not moves[0][0][0]:
            count = min(count, first[1] + self._limit - self.position - 1)
        if count <= 0:
            return at
        self._threads = [
            (place, start + count * by, tuple(s + count * b for s, b in zip(slots, slot_by, strict=True)))
            for (place, start, slots), (by, slot_by) in zip(self._threads, moves[0], strict=True)
        ]
        self._trail = []
        self._skip(count, char)
        return at + count

    def _loops(self, threads: list[_Thread]) -> list[_Thread]:
        return [t for t in threads if self._pattern.ops[t[0]].kind == "any"]

    def _pass(self, places: tuple[int, ...], text: str, at: int) -> int:
        """Goes on to the last of the characters that change nothing, which sets the slots; where that is."""
        others = self._pattern.others(places)
        if others is None or any(self._pattern.ops[p].kind == "assert" for p in places):
            return at
        hit = others.search(text, at)
        end = (len(text) if hit is None else hit.start()) - 1
        if self._limit is not None:
            end = min(end, at + self._threads[0][1] + self._limit - self.position)
        if end > at:
            self._skip(end - at, text[end - 1])
        return max(at, end)

    def _skip(self, count: int, last: str) -> None:
        self.position += count
        self.work += 1
        self._before = last

    def close(self) -> None:
        """The text is over."""
        if self.found is not None or self.is_over:
            return
        self._threads = self._settled("", is_end=True)
        self._threads = []
        self.found = self._candidate
        self.is_over = True

    def _step(self, char: str) -> bool:
        """One character. Whether only ops that take every character took it, and no new match could begin."""
        threads = self._settled(char, is_end=False)
        after: list[_Thread] = []
        seen: set[int] = set()
        is_passed = bool(threads)
        for place, start, slots in threads:
            op = self._pattern.ops[place]
            self.work += 1
            if not self._pattern.takes(op, char):
                continue
            is_passed = is_passed and op.kind == "any"
            if self._add(after, seen, (place + 1, start, slots), self.position + 1, char, None):
                break
        self.position += 1
        self._before = char
        # Threads stand in the order of their starts.
        if after and self._limit is not None and self.position - after[0][1] > self._limit:
            after = []
        self._threads = after
        if not after and self._candidate is not None:
            self.found = self._candidate
            self.is_over = True
        return is_passed

    def _settled(self, char: str, *, is_end: bool) -> list[_Thread]:
        """The threads at this position, where the next character is known, with one that begins here."""
        out: list[_Thread] = []
        seen: set[int] = set()
        following = "" if is_end else char
        for thread in self._threads:
            if self._add(out, seen, thread, self.position, self._before, following):
                return out
        if self._candidate is None:
            slots = (-1,) * (2 * len(self._pattern.names))
            self._add(out, seen, (0, self.position, slots), self.position, self._before, following)
        return out

    def _add(
        self, out: list[_Thread], seen: set[int], thread: _Thread, at: int, before: str, following: str | None
    ) -> bool:
        """Follows what reads no character. `following` None: not known yet. Whether a match was found: lower
        threads are of no more use then."""
        ops, stack = self._pattern.ops, [thread]
        while stack:
            place, start, slots = stack.pop()
            if place in seen:
                continue
            op = ops[place]
            if op.kind == "assert" and following is None and op.what != "start":
                seen.add(place)
                out.append((place, start, slots))
                continue
            seen.add(place)
            self.work += 1
            match op.kind:
                case "char" | "any":
                    out.append((place, start, slots))
                case "match":
                    if 0 < at - start <= (self._limit or at - start):  # an empty delimiter is none
                        self._candidate = self._match(start, at, slots)
                        return True
                case "jump":
                    stack.append((op.x, start, slots))
                case "split":
                    stack += [(op.y, start, slots), (op.x, start, slots)]
                case "save":
                    slots = (*slots[: op.slot], at, *slots[op.slot + 1 :])
                    stack.append((place + 1, start, slots))
                case "assert":
                    if _holds(op.what, at, before, following or ""):
                        stack.append((place + 1, start, slots))
        return False

    def _match(self, start: int, end: int, slots: tuple[int, ...]) -> Match:
        groups = {
            name: (slots[2 * i], slots[2 * i + 1])
            for i, name in enumerate(self._pattern.names)
            if slots[2 * i] >= 0 and slots[2 * i + 1] >= 0
        }
        return Match(start, end, groups)


def _moves(old: list[_Thread], new: list[_Thread]) -> list[tuple[int, tuple[int, ...]]] | None:
    """By how much starts and slots differ between two states of the same places."""
    if [place for place, _, _ in old] != [place for place, _, _ in new]:
        return None
    return [
        (b[1] - a[1], tuple(y - x for x, y in zip(a[2], b[2], strict=True)))
        for a, b in zip(old, new, strict=True)
    ]


def _holds(what: str, at: int, before: str, following: str) -> bool:
    match what:
        case "start":
            return at == 0
        case "end":
            return not following
    is_edge = _is_word(before) != _is_word(following)
    return is_edge if what == "edge" else not is_edge


def _is_word(char: str) -> bool:
    return bool(char) and (char.isalnum() or char == "_")
