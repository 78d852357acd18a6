"""What parent and engine child say to each other outside the request sockets, while a child starts.

One pipe each way, a JSON line a message. Parent -> child: one `Order`; after it the pipe only stays
open, and its end tells the child that the parent is gone (the death pipe). Child -> parent: `Report`s.
"""

from __future__ import annotations

import os

import msgspec

from octavo.config.asked import Asked
from octavo.config.plan import EnginePlan, ServerPlan
from octavo.wire.addresses import Addresses
from octavo.wire.messages import Ready

# Seconds that a phase of the start may take before it counts as hung.
PHASES: dict[str, float] = {
    "start python": 30,
    "read headers": 60,
    "receive the plan": 60,
    "build the program": 60,
    "bind weights": 900,
    "allocate the KV cache": 120,
    "try one step": 60,
    "start the engine": 60,
}


class Order(msgspec.Struct, kw_only=True):
    plan: EnginePlan
    lines: list[Addresses]  # one for each API process
    heartbeat: str  # path of the file that tells /health of progress


class ApiOrder(msgspec.Struct, kw_only=True):
    """What an API process beside the first one needs to start."""

    asked: Asked
    engine: EnginePlan
    server: ServerPlan
    index: int  # 1, 2, ...; the process that launched all is 0
    listener: int  # descriptor of its listening socket
    folder: str  # where the API processes find each other
    heartbeat: str


class ApiNews(msgspec.Struct, kw_only=True, omit_defaults=True):
    """First process -> another API process: exactly one field is set. The pipe's end means that the first is gone."""

    up: Addresses | None = None  # an engine listens there
    ready: Ready | None = None  # comes with `up`
    down: bool = False  # the engine is gone; another may come
    closed: str | None = None  # none will come, for this reason
    drain_s: float | None = None  # end: running requests have so many seconds


class Report(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Exactly one field is set."""

    phase: str | None = None  # a phase of the start begins
    ready: Ready | None = None  # of an engine
    is_serving: bool = False  # of an API process
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
