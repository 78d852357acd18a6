"""What parent and engine child say to each other outside the request sockets, while a child starts.

One pipe each way, a JSON line a message. Parent -> child: one `Order`; after it the pipe only stays
open, and its end tells the child that the parent is gone (the death pipe). Child -> parent: `Report`s.
"""

from __future__ import annotations

import os

import msgspec

from octavo.config.plan import EnginePlan
from octavo.wire.messages import Ready


class Order(msgspec.Struct, kw_only=True):
    plan: EnginePlan
    address_in: str  # where the engine receives
    address_out: str  # where it sends
    heartbeat: str  # path of the file that tells /health of progress


class Report(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Exactly one field is set."""

    phase: str | None = None  # a phase of the start begins
    ready: Ready | None = None
    cause: str | None = None  # the start failed, for this reason
    fix: str = ""


def write_line(fd: int, message: msgspec.Struct) -> None:
    data = memoryview(msgspec.json.encode(message) + b"\n")
    while data:
        data = data[os.write(fd, data) :]


def read_line(fd: int) -> bytes:
    """One line, or what came before the end of the pipe. Byte by byte: nothing after it is taken."""
    parts = bytearray()
    while (byte := os.read(fd, 1)) and byte != b"\n":
        parts += byte
    return bytes(parts)
