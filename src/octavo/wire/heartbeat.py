"""Whether an engine is idle, busy or stalled, told through a small shared file (no message needed).

The engine writes, the API reads: /health answers without asking the engine, and "busy" (a long
step) is not "stalled" (work, and no step has ended for a long time).
"""

from __future__ import annotations

import mmap
import os
import time
from typing import NamedTuple

_FIELDS = 4  # int64 each: steps finished, has work (0 or 1), last progress ns, last sign of life ns


class Pulse(NamedTuple):
    steps: int  # finished
    has_work: bool
    progress_s: float  # monotonic: a step ended, or work arrived at an idle engine
    alive_s: float  # monotonic: the loop turned

    def state(self, now_s: float, stall_after_s: float) -> str:
        """ "idle" | "busy" | "stalled"."""
        if not self.has_work:
            return "idle"
        return "stalled" if now_s - self.progress_s > stall_after_s else "busy"


class Heartbeat:
    """Aligned 8-byte fields in one mapped page: each is read whole, and they need not agree exactly."""

    def __init__(self, fd: int) -> None:
        """Map an open file of at least `SIZE` bytes; the descriptor may be closed afterwards."""
        self._map = mmap.mmap(fd, self.SIZE)
        self._fields = memoryview(self._map).cast("q")

    SIZE = 8 * _FIELDS

    @classmethod
    def create(cls, path: str) -> Heartbeat:
        """A new file, readable by this user only, as an idle engine that has just shown life."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(fd, cls.SIZE)
            heartbeat = cls(fd)
        finally:
            os.close(fd)
        heartbeat.beat(0, has_work=False)
        return heartbeat

    @classmethod
    def open(cls, path: str) -> Heartbeat:
        fd = os.open(path, os.O_RDWR)
        try:
            return cls(fd)
        finally:
            os.close(fd)

    def beat(self, steps: int, *, has_work: bool) -> None:
        """Progress is a step more than last time, or work where there was none."""
        fields, now = self._fields, time.monotonic_ns()
        if steps != fields[0] or not (has_work and fields[1]):
            fields[2] = now
        fields[0] = steps
        fields[1] = has_work
        fields[3] = now

    def read(self) -> Pulse:
        steps, has_work, progress, alive = self._fields
        return Pulse(steps, bool(has_work), progress / 1e9, alive / 1e9)

    def close(self) -> None:
        self._fields.release()
        self._map.close()
