"""A few hundred hostile requests to every route of a real server; benchmarks.hostile sends thousands."""

from __future__ import annotations

import asyncio

import pytest
from benchmarks.hostile import SMALL, Range
from tests.multi.launched import launched


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # schemathesis warns of what a document lets it do
def test_no_request_is_a_fault_of_the_server(smollm2_path: str) -> None:
    """No 5xx but 503, the same engine process, nothing left open, and the answer of before."""
    with launched(smollm2_path, *SMALL, "--served-model-name", "m") as server:
        found = Range(server)
        expected = asyncio.run(found.plain())
        found.by_hand(240, 1)
        found.by_document(60, 1)
        found.end(expected)
    assert found.wrong == []
    assert found.counts["200"] > 20
    assert found.counts["400"] > 50
