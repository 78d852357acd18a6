"""Rewrites of a Program. Each is a pure function Program -> Program that keeps what is computed.

Order: tap (any time before plan_memory), gather_early, fuse, plan_memory (last: it fixes places).
"""

from __future__ import annotations

from octavo.program.passes.fuse import fuse
from octavo.program.passes.gather import gather_early
from octavo.program.passes.plan_memory import arena_row_bytes, plan_memory, row_bytes
from octavo.program.passes.tap import tap

__all__ = ["arena_row_bytes", "fuse", "gather_early", "plan_memory", "row_bytes", "tap"]
