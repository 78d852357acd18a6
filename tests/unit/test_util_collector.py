"""How often the collector of cycles walks what lives, in the engine process."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from benchmarks import step_cost

from octavo.core.engine import Engine
from octavo.util import collector

ROWS = 512
STEPS = 30


@pytest.fixture
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def collections() -> int:
    """Of decode steps of many rows."""
    engine = Engine(step_cost.plan_of(ROWS), step_cost.layout(), step_cost.InThread(ROWS))
    for i in range(ROWS):
        engine.add(step_cost.request(i))
    while len(engine.scheduler.running) < ROWS:
        engine.pump()
    before = sum(generation["collections"] for generation in gc.get_stats())
    for _ in range(STEPS):
        engine.pump()
    return sum(generation["collections"] for generation in gc.get_stats()) - before


def test_steps_of_many_rows_do_not_make_the_collector_walk_all_requests(as_before: None) -> None:
    assert collections() >= STEPS / 2  # by default
    collector.settle()
    assert collections() <= 1


def test_requests_that_have_ended_leave_no_cycles(as_before: None) -> None:
    """So that resting costs no memory: counting frees all of them."""
    engine = Engine(step_cost.plan_of(8), step_cost.layout(), step_cost.InThread(8))
    gc.collect()
    gc.disable()
    try:
        for i in range(40):
            request = step_cost.request(i)
            request.max_tokens = 4
            engine.add(request)
        steps = 0
        while engine.scheduler.running or engine.scheduler.num_waiting:
            engine.pump()
            steps += 1
            assert steps < 200
        assert gc.collect() == 0
    finally:
        gc.enable()
