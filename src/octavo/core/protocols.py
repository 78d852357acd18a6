"""The questions that the scheduler asks. It names no feature: each feature answers one of these.

`Gate` may this waiting request start, `Limit` how many of its tokens this step, `Pool` what does it
need to hold, `PrefixSource` what need not be computed. Answers never change the request.
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


@dataclass(slots=True)
class StepView:
    """What a `Limit` may know of the step being planned."""

    num_others: int  # requests, running or waiting, besides the one that is asked about
    budget: int  # tokens left


class Gate(Protocol):
    """May this waiting request start? Examples: grammar compiled, remote KV arrived, adapter loaded."""

    def check(self, request: Request) -> Verdict: ...


class Limit(Protocol):
    """Of `want` tokens, how many in this step? Only ever fewer; 0 leaves the request out of the step."""

    def grant(self, request: Request, want: int, view: StepView) -> int: ...


class PrefixSource(Protocol):
    """How many leading tokens of a waiting request need no computing? Looks, and holds nothing."""

    def match(self, request: Request) -> Match: ...


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
