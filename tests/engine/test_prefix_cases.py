"""Prefix-cache cases of shared/cases/reported.jsonl, at the engine, over the glass worker."""

from __future__ import annotations

import pytest
from tests.engine.harness import Ear, ask, make_engine, run

from octavo.wire.messages import EngineRequest

FEW_SHOT = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]


def targets() -> list[EngineRequest]:
    return [ask(f"t{i}", [*FEW_SHOT, 30 + i, 31, 32], 16) for i in range(2)]


def answers(ear: Ear) -> list[list[int]]:
    return [ear[f"t{i}"].token_ids for i in range(2)]


@pytest.mark.parametrize("windows", [(0,), (5,), (0, 5)])
@pytest.mark.parametrize("depth", [1, 2])
def test_bb_092_cold_warm_and_off_are_equal(windows: tuple[int, ...], depth: int) -> None:
    """The warm-up is cut off in the middle (a stop string is an abort by the API)."""
    cold = answers(run(make_engine(windows=windows, num_blocks=99)[0], targets()))
    engine, _ = make_engine(windows=windows, num_blocks=99, pipeline_depth=depth)
    for i, tail in enumerate(([], [40, 41], [30])):
        engine.add(ask(f"w{i}", FEW_SHOT + tail, 20))
    for _ in range(5):
        engine.pump(None)
    engine.abort_all()
    run(engine)
    ear = run(engine, targets())
    assert answers(ear) == cold
    assert all(ear[f"t{i}"].deltas[0].num_cached for i in range(2)), "and it was warm"
    assert answers(run(engine, targets())) == cold
    assert answers(run(make_engine(windows=windows, num_blocks=99, caching=False)[0], targets())) == cold


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"])
def test_bb_094_salts_are_key_spaces(algorithm: str) -> None:
    engine, _ = make_engine(hash_algo=algorithm)
    cached, misses = [], []
    for i, salt in enumerate(("A", "A", "B", None, "salt", "")):
        last = run(engine, [ask(f"r{i}", [*FEW_SHOT, 3], 2, salt=salt)])[f"r{i}"].last
        assert last.record is not None
        cached.append(last.record.num_cached)
        misses.append(last.record.prefix_miss)
    assert cached == [0, 16, 0, 0, 0, 0]
    assert misses == ["new", "tail-block", "salt", "salt", "salt", "salt"]


def test_bb_096_recomputed_tokens_are_not_hits() -> None:
    """Six different prompts in a pool that forces preemption."""
    engine, _ = make_engine(num_blocks=16, max_num_seqs=6, max_num_batched_tokens=64)
    requests = [ask(f"r{i}", [i * 9 + j + 2 for j in range(9)], 24) for i in range(6)]
    ear = run(engine, requests)
    stats = engine.stats()
    assert stats.preemptions > 0 and stats.recomputed_tokens > 0
    assert stats.prefix_hits == 0 and stats.prefix_queries == 54
    records = [heard.last.record for heard in ear.values()]
    assert sum(record.num_recomputed for record in records if record) == stats.recomputed_tokens
    assert all(record.num_cached == 0 and record.prefix_miss == "new" for record in records if record)


def test_choices_of_one_prompt_share_it_in_the_step_that_computes_it() -> None:
    """n = 4 computes a prompt once: a block may be hit as soon as the step that fills it is planned."""
    engine, worker = make_engine(num_blocks=99, max_num_batched_tokens=64, pipeline_depth=1)
    ear = run(engine, [ask(f"c{i}", [*FEW_SHOT, 3], 4, seed=i) for i in range(4)])
    assert worker.plans[0].counts == [17, 1, 1, 1]
    assert [ear[f"c{i}"].deltas[0].num_cached for i in range(4)] == [0, 16, 16, 16]
