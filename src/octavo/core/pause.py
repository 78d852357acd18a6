"""Holding an engine still: nobody new starts, or nothing is computed at all.

Owns the two states and when a pause is complete. Does not know who asked, nor what is done with an
engine that stands still (its cache may be emptied, its weights exchanged).
"""

from __future__ import annotations

from enum import Enum, IntEnum

from octavo.core.protocols import Verdict
from octavo.core.request import Request
from octavo.errors import InvalidRequest


class Paused(IntEnum):
    NO = 0
    NEW = 1  # running requests go on; nobody waiting starts
    ALL = 2  # no step is planned


class PauseMode(Enum):
    """What a pause does with requests that run: end them, let them end, or freeze them."""

    ABORT = "abort"
    WAIT = "wait"
    KEEP = "keep"

    @classmethod
    def named(cls, name: object) -> PauseMode:
        """Raises InvalidRequest for a name that is none of them."""
        try:
            return cls(name)
        except ValueError:
            allowed = ", ".join(mode.value for mode in cls)
            raise InvalidRequest(f"mode is {name!r}; allowed are {allowed}", param="mode") from None


class PauseGate:
    """`Gate`: while the engine is paused nobody starts; requests queue in their order."""

    def __init__(self) -> None:
        self.state = Paused.NO

    def check(self, request: Request) -> Verdict:
        return Verdict.STOP if self.state else Verdict.GO
