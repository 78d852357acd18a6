"""The thread team: its size follows what gets done, and neither size nor sleep shows in a result."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels.op_runner import OpRunner

from octavo import env
from octavo.errors import ConfigError
from octavo.kernels import _native as native

MS = 1_000_000


def run_for(size: native.TeamSize, ms: int, parallelism: dict[int, float], step_ms: int = 10) -> list[int]:
    """Sizes of the steps of `ms`, on a machine where a team of n threads has parallelism[n]."""
    used = []
    for _ in range(ms // step_ms):
        used.append(size.now)
        size.saw(step_ms * MS, int(step_ms * MS * parallelism[size.now]))
    return used


def test_free_cores_keep_all_threads() -> None:
    size = native.TeamSize(4)
    assert set(run_for(size, 5_000, {4: 3.8, 3: 2.9})) == {4} or size.now == 4
    assert size.changes == 0


def test_fewer_threads_where_they_do_more_and_all_again_when_the_cores_are_free() -> None:
    size = native.TeamSize(2)
    used = run_for(size, 3_000, {2: 0.3, 1: 0.6})
    assert used.count(1) > 0.8 * len(used)
    used = run_for(size, 20_000, {2: 1.9, 1: 0.99})
    assert used[-500:].count(2) == 500


def test_a_trial_that_gains_nothing_is_undone_and_repeated_less_and_less_often() -> None:
    size = native.TeamSize(2)
    used = run_for(size, 60_000, {2: 0.88, 1: 0.9})
    assert size.changes == 0 and used.count(1) > 0
    first, last = used[: len(used) // 4], used[-len(used) // 4 :]
    assert last.count(1) < first.count(1)
    assert used.count(2) > 0.95 * len(used)


def test_a_size_that_could_not_do_more_on_free_cores_is_not_tried() -> None:
    size = native.TeamSize(2)
    assert set(run_for(size, 60_000, {2: 1.2, 1: 0.9})) == {2}


def test_large_teams_move_in_larger_steps() -> None:
    size = native.TeamSize(16)
    used = run_for(size, 10_000, {n: 0.9 * n if n <= 8 else 0.9 * 64 / n for n in range(1, 17)})
    assert 6 <= size.now <= 9 and 12 in used[:20]


def test_long_steps_do_not_keep_a_small_team_for_long() -> None:
    size = native.TeamSize(2)
    run_for(size, 3_000, {2: 0.3, 1: 0.6})
    used = run_for(size, 40_000, {2: 1.9, 1: 0.99}, step_ms=1000)
    assert used.count(1) <= 12 and used[-20:].count(2) == 20


def test_one_thread_and_steps_without_a_time_change_nothing() -> None:
    size = native.TeamSize(1)
    assert set(run_for(size, 1_000, {1: 0.1})) == {1}
    size = native.TeamSize(3)
    size.saw(0, 5)
    size.saw(-1, 5)
    assert size.now == 3


@pytest.mark.parametrize("adaptive", [False, True])
def test_more_threads_than_cores_agree_with_one(adaptive: bool) -> None:
    """32 threads on any machine: barriers end in sleep, and the adaptive team changes its size meanwhile."""
    x = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)

    def results(threads: int, steps: int) -> tuple[list[np.ndarray], dict[str, int]]:
        runner = OpRunner(native.available_isas()[-1], threads, max_tokens=64)
        a, b = runner.buffer(256), runner.buffer(256)
        for _ in range(6):
            runner.program.rms_norm("n", a, b, np.ones(256, np.float32), 1e-5)
            runner.program.rms_norm("n", b, a, np.ones(256, np.float32), 1e-5)
        runner.program.adaptive = adaptive
        out = []
        for _ in range(steps):
            runner.write(a, x)
            runner.step([64])
            out.append(runner.read(a, 64).copy())
        return out, runner.program.waits()

    (expected,), _ = results(1, 1)
    got, waits = results(32, 60)
    assert all(np.array_equal(y, expected) for y in got)
    assert waits["steps"] == 60 and waits["sleeps"] > 0
    assert 0 <= waits["wait_ns"] <= waits["thread_ns"]


def test_waits_are_counted_from_the_reset() -> None:
    runner = OpRunner("generic", 2, max_tokens=4)
    a = runner.buffer(16)
    runner.program.scale("s", a, a, 1.0)
    runner.step([4])
    assert runner.program.waits()["steps"] == 1
    runner.program.reset_waits()
    assert runner.program.waits()["steps"] == 0 and runner.program.waits()["wait_ns"] == 0


def test_the_environment_says_whether_it_adapts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_TEAM", raising=False)
    assert env.adaptive_team()
    monkeypatch.setenv("OCTAVO_TEAM", "fixed")
    assert not env.adaptive_team()
    monkeypatch.setenv("OCTAVO_TEAM", "some")
    with pytest.raises(ConfigError, match="OCTAVO_TEAM"):
        env.adaptive_team()
