"""One record per engine request: everything that metrics, the log line and usage say about it comes from here.

A record is complete when two things have happened, in either order: the client was served (or left),
and the engine gave its own record (or died). Then `close` is called once.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.wire.messages import RequestRecord

log = logging.getLogger("octavo.request")


def counted(number: int, noun: str) -> str:
    """`1 prompt token`, `2 prompt tokens`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@dataclass(slots=True)
class Siblings:
    """The choices of one prompt: how many are still open, and the longest so far."""

    num_open: int
    longest: int = 0


@dataclass(slots=True)
class RequestLog:
    """A choice of a client's request. Times are `time.monotonic()` seconds; 0 = did not happen."""

    id: str  # internal
    client_id: str  # the `id` of the answer, which holds the client's own X-Request-Id when it sent one
    index: int
    num_choices: int  # of the client's request
    num_prompt: int
    max_tokens: int
    arrival: float
    siblings: Siblings
    num_tokens: int = 0  # what the client was given (and pays for)
    num_cached: int = 0
    first_token: float = 0.0
    last_token: float = 0.0
    end: float = 0.0
    gaps_s: array[float] = field(default_factory=lambda: array("d"))
    reason: str = "abort"  # until something better happens
    engine: RequestRecord | None = None
    is_served: bool = False
    is_ended: bool = False

    def on_tokens(self) -> None:
        now = time.monotonic()
        if self.first_token:
            self.gaps_s.append(now - self.last_token)
        else:
            self.first_token = now
        self.last_token = now

    @property
    def num_generated(self) -> int:
        """Tokens that the engine made: of an aborted request also those that the client never saw."""
        if self.reason == "abort" and self.engine is not None:
            return max(self.num_tokens, self.engine.num_generated)
        return self.num_tokens

    def line(self) -> str:
        """One line for the log: who, why, how much, how long."""
        ttft = f"{self.first_token - self.arrival:.3f}" if self.first_token else "-"
        choice = f" choice {self.index}" if self.num_choices > 1 else ""
        parts = [
            f"request {self.client_id}{choice}: {self.reason},",
            f"{counted(self.num_prompt, 'prompt token')} ({self.num_cached} cached),",
            f"{self.num_generated} generated,",
            f"first after {ttft} s, all after {self.end - self.arrival:.3f} s",
        ]
        if self.engine is not None and self.engine.scheduled:
            parts.append(f", queued {self.engine.scheduled - self.engine.queued:.3f} s")
            if self.engine.num_preemptions:
                parts.append(f", preempted {counted(self.engine.num_preemptions, 'time')}")
        return " ".join(parts).replace(" ,", ",")


class RequestLogs:
    """Open records by internal id; calls `close(record)` for each exactly once."""

    def __init__(self, close: Callable[[RequestLog], None]) -> None:
        self._open: dict[str, RequestLog] = {}
        self._close = close

    @property
    def num_open(self) -> int:
        return sum(not r.is_served for r in self._open.values())

    @property
    def num_ending(self) -> int:
        return sum(r.is_served for r in self._open.values())

    def open(self, record: RequestLog) -> None:
        self._open[record.id] = record

    def on_served(self, record: RequestLog) -> None:
        """The client has its answer, or is gone."""
        record.is_served = True
        record.end = time.monotonic()
        self._finish(record)

    def on_end(self, request_id: str, engine: RequestRecord | None) -> None:
        """The engine is done with it (EngineClient.on_end)."""
        record = self._open.get(request_id)
        if record is not None:
            record.engine = engine
            record.is_ended = True
            self._finish(record)

    def _finish(self, record: RequestLog) -> None:
        if record.is_served and record.is_ended:
            del self._open[record.id]
            log.info("%s", record.line())
            self._close(record)
