"""Order, budgets, admission, preemption and overlap, seen through the plans that the worker gets."""

from __future__ import annotations

import logging
import random

import pytest
from tests.engine.harness import VOCAB, Ear, ask, check, check_idle, make_engine, run
from tests.fakes.glass_worker import GlassWorker, expected

from octavo.core.engine import Engine
from octavo.core.queue import WaitingLine
from octavo.core.request import Request, State
from octavo.wire.messages import FinishReason, StepPlan


def names(engine: Engine) -> list[str]:
    return [request.id for request in engine.scheduler.running]


def started(worker: GlassWorker) -> list[str]:
    return [add.request_id for plan in worker.plans for add in plan.added]


def counts(plans: list[StepPlan]) -> list[list[int]]:
    return [plan.counts for plan in plans]


# ---- budgets ------------------------------------------------------------------------------------


def test_running_first_and_oldest_first_under_one_budget() -> None:
    engine, worker = make_engine(max_num_batched_tokens=8, pipeline_depth=1, num_blocks=99)
    run(engine, [ask("a", [3] * 12, 3), ask("b", [4] * 9, 3)])
    # a's chunk; a's rest and b's first chunk; a decodes while b takes what is left; ...
    assert counts(worker.plans) == [[8], [4, 4], [1, 5], [1, 1], [1]]
    assert [plan.samples for plan in worker.plans] == [
        [False],
        [True, False],
        [True, True],
        [True, True],
        [True],
    ]


def test_seats_and_slots_are_bounded_and_slots_are_reused() -> None:
    engine, worker = make_engine(max_num_seqs=2, num_blocks=99)
    run(engine, [ask(f"r{i}", [3 + i], 4) for i in range(5)])
    assert max(len(plan.slots) for plan in worker.plans) == 2
    assert started(worker) == [f"r{i}" for i in range(5)]
    assert {slot for plan in worker.plans for slot in plan.slots} == {0, 1}


def test_whole_prompts_when_chunks_are_off() -> None:
    engine, worker = make_engine(
        max_num_batched_tokens=12, enable_chunked_prefill=False, pipeline_depth=1, num_blocks=99
    )
    run(engine, [ask("a", [3] * 10, 2), ask("b", [4] * 7, 2), ask("c", [5] * 3, 2)])
    assert counts(worker.plans) == [[10], [1, 7, 3], [1, 1]]


def test_a_long_prompt_leaves_room_for_others_but_not_for_nobody() -> None:
    engine, worker = make_engine(
        max_num_batched_tokens=16, long_prefill_token_threshold=4, pipeline_depth=1, num_blocks=99
    )
    run(engine, [ask("a", [3] * 12, 2), ask("b", [4] * 3, 2)])
    assert counts(worker.plans)[0] == [4, 3]
    alone, worker = make_engine(max_num_batched_tokens=16, long_prefill_token_threshold=4, num_blocks=99)
    run(alone, [ask("a", [3] * 12, 2)])
    assert counts(worker.plans)[0] == [12]


def test_the_rest_of_a_prompt_is_promised_its_blocks() -> None:
    """Whole-prompt admission counts what running prompts still need, not only what they hold."""
    options = {"num_blocks": 8, "max_num_batched_tokens": 8, "pipeline_depth": 1}
    engine, worker = make_engine(**options)
    requests = [ask("a", range(2, 26), 2), ask("b", range(30, 46), 2)]
    ear = run(engine, requests)
    assert ear["b"].last.record is not None and ear["b"].last.record.num_preemptions == 0
    assert started(worker) == ["a", "b"]
    assert [a.request_id for a in worker.plans[0].added + worker.plans[1].added + worker.plans[2].added] == [
        "a"
    ]


def test_the_watermark_holds_while_something_runs() -> None:
    engine, worker = make_engine(num_blocks=10, watermark_frac=0.5, max_num_batched_tokens=64)
    engine.add(ask("a", range(2, 18), 12))
    engine.add(ask("b", range(20, 28), 12))  # two blocks of six, but five are to stay free
    engine.pump()
    assert started(worker) == ["a"]
    run(engine)
    run(engine, [ask("alone", range(2, 38), 2)])
    assert started(worker) == ["a", "b", "alone"], "alone it may have all"


# ---- order --------------------------------------------------------------------------------------


def test_priority_then_arrival_then_order() -> None:
    engine, worker = make_engine(policy="priority", max_num_seqs=1, num_blocks=99)
    run(
        engine,
        [
            ask("late", [3], 2, arrival=5.0),
            ask("early", [4], 2, arrival=2.0),
            ask("low", [5], 2, priority=3, arrival=1.0),
            ask("high", [6], 2, priority=-1, arrival=9.0),
        ],
    )
    assert started(worker) == ["high", "early", "late", "low"]


def test_priority_chooses_the_victim() -> None:
    engine, _ = make_engine(policy="priority", num_blocks=6, max_num_batched_tokens=64)
    ear = run(engine, [ask("low", range(2, 10), 12, priority=5), ask("high", range(20, 28), 12, priority=1)])
    preemptions = {i: heard.last.record.num_preemptions for i, heard in ear.items() if heard.last.record}
    assert preemptions == {"low": 1, "high": 0}


def test_fcfs_does_not_look_at_priorities() -> None:
    engine, worker = make_engine(max_num_seqs=1, num_blocks=99)
    run(engine, [ask("a", [3], 2, priority=9), ask("b", [4], 2, priority=-9)])
    assert started(worker) == ["a", "b"]


def test_the_waiting_line_forgets_who_left() -> None:
    line = WaitingLine()
    requests = [Request(ask(f"r{i}", [1]), end=9, key=(i,), now=0.0) for i in range(500)]
    for request in requests:
        line.push(request)
    for request in requests[10:]:
        request.state = State.FINISHED
        line.discard(request)
    assert len(line) == 10 and len(line._heap) < 100, "memory follows who waits, not who came"
    assert sorted(r.id for r in line) == sorted(r.id for r in requests[:10])
    assert [line.pop() for _ in range(11)] == [*requests[:10], None]


# ---- BB-102 -------------------------------------------------------------------------------------


def test_bb_102_small_requests_pass_one_that_does_not_fit() -> None:
    """64 blocks; R holds 20; A needs 60 and waits; B..E need 2 each and start before A."""
    engine, worker = make_engine(
        block_size=4, num_blocks=64, max_num_seqs=8, max_model_len=300, max_num_batched_tokens=512
    )
    engine.add(ask("R", [6] * 77, 20))
    engine.pump(None)
    engine.add(ask("A", [9] * 239, 2))
    for name in "BCDE":
        engine.add(ask(name, [ord(name) - 60] * 5, 3))
    ear = run(engine)
    assert started(worker) == ["R", "B", "C", "D", "E", "A"]
    assert all(heard.finish is FinishReason.LENGTH for heard in ear.values())


@pytest.mark.parametrize("max_passed", [0, 3, 32])
def test_bb_102_and_nobody_starves(max_passed: int) -> None:
    """Small requests keep coming for ever; the big one is passed by a bounded number of them."""
    engine, worker = make_engine(
        block_size=4,
        num_blocks=16,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        engine_options={"max_passed": max_passed},
    )
    engine.add(ask("small-0", [2, 3], 4))
    engine.pump(None)
    engine.add(ask("A", range(2, 60), 2))
    for i in range(1, 100):  # of different lengths, so that there is always one that runs
        engine.add(ask(f"small-{i}", [i % 50 + 2, 3], 3 + i % 5))
    run(engine)
    assert started(worker).index("A") == 1 + max_passed, "the one before it, and those that may pass"


def test_looking_behind_is_bounded() -> None:
    """The cost of a step does not grow with the number that wait and do not fit."""
    engine, _ = make_engine(num_blocks=16, max_num_seqs=8, max_num_batched_tokens=64)
    engine.add(ask("runs", range(2, 30), 30))
    for i in range(300):
        engine.add(ask(f"big-{i}", range(2, 60), 2, salt=str(i)))
    calls, right = [], engine.cache.match
    engine.scheduler._source = type(
        "Counting", (), {"match": lambda _, request: calls.append(request.id) or right(request)}
    )()
    engine.pump(None)
    steps = engine.scheduler.counters.steps
    assert len(calls) <= 17 * steps
    engine.abort_all()
    engine.pump()


# ---- preemption ---------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
def test_bb_104_a_pool_for_two_and_eight_at_once(depth: int, caplog: pytest.LogCaptureFixture) -> None:
    """All finish with their solo answers, preemptions are few, and each leaves a trace (P089)."""
    engine, _ = make_engine(
        block_size=4,
        num_blocks=38,
        max_num_seqs=8,
        max_model_len=80,
        max_num_batched_tokens=32,
        pipeline_depth=depth,
    )
    requests = [ask(f"r{i}", [i + 2, 5, 6, 7, 8, 9, i + 3, 8], 64) for i in range(8)]
    with caplog.at_level(logging.INFO, "octavo.core.scheduler"):
        ear = run(engine, requests)
    total = 0
    for request in requests:
        assert ear[request.id].token_ids == expected(request, (0,), VOCAB, 80).token_ids
        record = ear[request.id].last.record
        assert record is not None and record.num_preemptions <= 4
        total += record.num_preemptions
    assert ear["r0"].last.record is not None and ear["r0"].last.record.num_preemptions == 0, "the oldest"
    assert total == engine.stats().preemptions == caplog.text.count("computed tokens given up") > 0


def test_a_token_in_flight_at_preemption_is_neither_lost_nor_doubled() -> None:
    """Law 1: it arrives while its request waits, and the request is not admitted again before."""
    engine, worker = make_engine(num_blocks=6, pipeline_depth=2, max_num_batched_tokens=64)
    requests = [ask("old", range(2, 10), 12), ask("young", range(20, 28), 12)]
    for request in requests:
        engine.add(request)
    ear, met = Ear(), False
    while engine.has_work():
        ear.take(engine.pump(None))
        check(engine)
        for request in engine._live.values():
            if request.state is State.PREEMPTED and request.drawn:
                met = True
    assert met, "the case did not occur"
    assert len([add for plan in worker.plans for add in plan.added]) == 3
    for request in requests:
        assert ear[request.id].token_ids == expected(request, (0,), VOCAB, 64).token_ids


# ---- overlap ------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_steps_overlap_up_to_the_depth_and_never_past_the_end(depth: int) -> None:
    engine, worker = make_engine(pipeline_depth=depth, worker_options={"latency": lambda: 3})
    request = ask("r", [3, 4, 5], 6)
    engine.add(request)
    most, ear = 0, Ear()
    while engine.has_work():
        ear.take(engine.pump())
        most = max(most, engine.num_in_flight)
        check(engine)
    assert most == depth
    assert sum(plan.num_tokens for plan in worker.plans) == 3 + 5, "nothing is computed after the last token"
    assert ear["r"].token_ids == expected(request, (0,), VOCAB, 64).token_ids


# ---- BB-106 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
def test_bb_106_two_hundred_cancelled_requests_leave_nothing(depth: int) -> None:
    rng = random.Random(106)
    engine, _ = make_engine(max_num_seqs=4, num_blocks=40, max_num_batched_tokens=8, pipeline_depth=depth)
    ear = Ear()
    doomed: dict[str, int] = {}
    for i in range(200):
        engine.add(ask(f"r{i}", [i % 50 + 2] * rng.randint(1, 20), 30))
        doomed[f"r{i}"] = rng.randint(0, 12)  # waiting, prefill or decode
        engine.abort([name for name, turns in doomed.items() if turns == 0])
        doomed = {name: turns - 1 for name, turns in doomed.items() if turns > 0}
        ear.take(engine.pump())
        check(engine)
    engine.abort(list(doomed))
    while engine.has_work():
        ear.take(engine.pump(None))
    check_idle(engine)
    assert len(ear) == 200 and all(heard.finish is not None for heard in ear.values())
    assert run(engine, [ask("new", [3, 4])])["new"].deltas[0].token_ids
