"""The questions that the scheduler asks. It names no feature: each feature answers one of these.

`Gate` may this waiting request start, `Limit` how many of its tokens this step, `Pool` what does it
need to hold, `PrefixSource` what need not be computed, or is being computed. Answers never change the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from octavo.core.kv.cache import Match
from octavo.core.request import Request


class Verdict(IntEnum):
    GO = 0
    SKIP = 1  # not yet: others may start meanwhile
    STOP = 2  # nobody else starts in this step
    FAIL = 3  # it can never start: the gate's `problem` says why


@dataclass(slots=True)
class Load:
    """What a step computes, as far as its time follows from it."""

    rows: int = 0
    singles: int = 0  # rows of one token: as a rule somebody's stream
    seen: int = 0  # positions that those see, together
    tokens: int = 0  # of the other rows
    pairs: int = 0  # positions that those see, together


@dataclass(slots=True)
class StepView:
    """What a `Limit` may know of the step being planned."""

    num_others: int  # requests, running or waiting, besides the one that is asked about
    budget: int  # tokens left
    context: int  # tokens that stand before those asked about
    load: Load  # planned so far, and the rows of one token to come
    num_to_come: int  # of those, how many
    num_behind: int  # tokens that longer rows to come want, and waiting requests that might start


class Gate(Protocol):
    """May this waiting request start? Examples: grammar compiled, remote KV arrived, adapter loaded."""

    def check(self, request: Request) -> Verdict: ...


class RefusingGate(Gate, Protocol):
    """A gate that may also answer FAIL."""

    def problem(self, request: Request) -> str:
        """Why the request can never start; asked after FAIL."""
        ...


class Limit(Protocol):
    """Of `want` tokens, how many in this step? Only ever fewer; 0 leaves the request out of the step."""

    least: int  # it is not asked about fewer tokens

    def is_full(self, view: StepView) -> bool:
        """Does no waiting request start in this step any more? Saves asking about each."""
        ...

    def grant(self, request: Request, want: int, view: StepView) -> int: ...


class PrefixSource(Protocol):
    """How many leading tokens of a waiting request need no computing? Looks, and holds nothing."""

    def match(self, request: Request) -> Match: ...

    def is_coming(self, request: Request, other: Request) -> bool:
        """Is what `other` computes next a part of the prefix of `request` too?"""
        ...


class Pool(Protocol):
    """What a request needs to hold while it runs: the one thing worth preempting for."""

    def fits(self, request: Request, match: Match, num_tokens: int, keep_free: int) -> bool:
        """Could a waiting request hold its first `num_tokens`, `keep_free` units being left over?"""
        ...

    def admit(self, request: Request, match: Match, num_tokens: int) -> None:
        """The request runs: it holds what matched, and is promised the rest of `num_tokens`."""
        ...

    def take(self, request: Request, num_tokens: int) -> list[list[int]] | None:
        """Room for the first `num_tokens`; what was added per group, or None when there is none."""
        ...

    def settle(self, request: Request) -> None:
        """Nothing more is promised to the request."""
        ...

    def publish(self, request: Request) -> None:
        """What is complete may be reused by others."""
        ...

    def release(self, request: Request) -> None:
        """The request holds nothing any more."""
        ...
