"""10,000 random worlds over the glass worker (OCTAVO_WORLDS sets another number)."""

from __future__ import annotations

import os

import pytest
from tests.engine.worlds import run_worlds

from octavo.wire.messages import FinishReason

NUM_WORLDS = int(os.environ.get("OCTAVO_WORLDS", "10000"))
NUM_PARTS = 10


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_every_request_gets_its_solo_answer(part: int) -> None:
    """Law 1 and law 4 of docs/invariants.md; structure, counters and finals on the way."""
    share = -(-NUM_WORLDS // NUM_PARTS)
    counts = run_worlds(part * share, share)
    assert counts.requests == sum(counts.finals.values())
    if share >= 500:  # the worlds are rough enough to mean something
        assert counts.preemptions > share / 10
        assert counts.hits > share
        assert counts.recomputed > counts.preemptions
        assert counts.pauses > share / 4
        assert counts.aborts > share / 4 and counts.restarts > share / 20
        assert counts.finals[FinishReason.STOP] > share / 10
        assert counts.finals[FinishReason.REPETITION] > share / 20
        assert counts.finals[FinishReason.ERROR] < counts.requests / 10
