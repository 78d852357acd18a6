"""The life of a request: validation, stops, forced prefixes, scores, aborts, records, self-check."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.engine.harness import EOS, VOCAB, Ear, ask, check, check_idle, make_engine, make_plan, run
from tests.fakes.glass_worker import expected, expected_scores, make_layout, scored

from octavo.core.protocols import Verdict
from octavo.core.request import Request
from octavo.core.stop import may_stop
from octavo.errors import ConfigError, EngineDead, InvalidRequest
from octavo.wire.messages import FinishReason

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


# ---- stops --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "num_output", "min_tokens", "is_last", "want"),
    [
        (1, 1, 0, False, (STOP, None)),
        (1, 1, 0, True, (STOP, None)),  # the end of sequence comes before length
        (9, 1, 0, False, (STOP, 9)),
        (9, 1, 0, True, (STOP, 9)),
        (2, 1, 0, False, (STOP, None)),  # in both lists: eos comes first
        (5, 1, 0, False, None),
        (5, 1, 0, True, (LENGTH, None)),
        (1, 3, 3, False, None),  # the third of at least three tokens does not stop
        (1, 4, 3, False, (STOP, None)),
        (9, 3, 3, False, None),
        (9, 4, 3, False, (STOP, 9)),
        (1, 3, 3, True, (LENGTH, None)),  # the context ends whatever was asked
        (5, 2, 3, True, (LENGTH, None)),
    ],
)
def test_may_stop(
    token: int, num_output: int, min_tokens: int, is_last: bool, want: tuple[FinishReason, int | None] | None
) -> None:
    """P030: one function decides."""
    got = may_stop(
        token,
        num_output=num_output,
        min_tokens=min_tokens,
        is_last=is_last,
        eos_ids=[1, 2],
        stop_token_ids=[2, 9],
    )
    assert got == want


def solo(prompt: list[int]) -> list[int]:
    """The eight tokens that the glass model draws after a prompt."""
    return expected(ask("x", prompt), (0,), VOCAB, 64).token_ids


def test_eos_stops_without_a_reason_and_a_stop_id_with_itself() -> None:
    prompt = [4, 5, 6]
    third = solo(prompt)[2]
    engine, _ = make_engine()
    request = ask("eos", prompt)
    request.eos_ids = [third]
    both = ask("both", prompt, params={"stop_token_ids": [third]})
    both.eos_ids = [third]
    ear = run(
        engine, [request, ask("id", prompt, params={"stop_token_ids": [third]}), both, ask("no", prompt)]
    )
    assert {i: (ear[i].finish, ear[i].last.stop_reason) for i in ear} == {
        "eos": (STOP, None),
        "id": (STOP, third),
        "both": (STOP, None),
        "no": (LENGTH, None),
    }
    assert len(ear["eos"].token_ids) == len(ear["id"].token_ids) == 3 and len(ear["no"].token_ids) == 8


def test_min_tokens_masks_and_never_stops_before() -> None:
    prompt = [4, 5, 6]
    first = solo(prompt)[0]
    engine, worker = make_engine()
    request = ask("r", prompt, params={"min_tokens": 4, "stop_token_ids": [first]})
    ear = run(engine, [request])
    assert worker.plans[0].added[0].stop_ids == [first]
    assert first not in ear["r"].token_ids[:4]


def test_the_context_ends_a_request() -> None:
    engine, worker = make_engine(max_model_len=16)
    ear = run(engine, [ask("r", range(2, 12), 100), ask("full", range(30, 45), 100)])
    assert (len(ear["r"].token_ids), ear["r"].finish) == (6, LENGTH)
    assert (len(ear["full"].token_ids), ear["full"].finish) == (1, LENGTH)
    # The last token is drawn but never computed.
    assert sum(plan.num_tokens for plan in worker.plans) == 15 + 15


# ---- validation ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "fields", "problem"),
    [
        ([], {}, "the prompt has no tokens: send at least one"),
        (
            range(2, 26),
            {},
            "prompt has 24 tokens; this model takes 24, prompt and answer together: shorten it or",
        ),
        ([3, VOCAB], {}, f"token id {VOCAB} is outside the vocabulary: this model has ids 0 to {VOCAB - 1}"),
        ([3, -1], {}, "token id -1 is outside the vocabulary"),
        ([3], {"forced": [VOCAB + 7]}, f"token id {VOCAB + 7} is outside the vocabulary"),
        ([3], {"max_tokens": 0}, "max_tokens is 0: ask for at least 1"),
    ],
)
def test_what_can_never_run_is_told_at_once(prompt: list[int], fields: dict[str, Any], problem: str) -> None:
    engine, worker = make_engine(max_model_len=24)
    engine.add(ask("bad", prompt, **fields))
    (delta,) = engine.pump()
    assert delta.finish is FinishReason.ERROR and delta.record is not None
    assert delta.error is not None and delta.error.startswith(problem)
    assert not engine.has_work() and not worker.plans
    check_idle(engine)


def test_a_prompt_that_never_fits_in_the_pool_is_told_at_once() -> None:
    engine, _ = make_engine(num_blocks=5, block_size=4, max_model_len=64)
    ear = run(engine, [ask("big", [3] * 21), ask("just", [3] * 20, 50)])
    error = ear["big"].last.error
    assert error is not None and error.startswith("prompt has 21 tokens; the KV cache of 5 blocks holds 20")
    assert (ear["just"].finish, len(ear["just"].token_ids)) == (LENGTH, 1)


def test_without_chunks_a_prompt_longer_than_a_step_is_told_at_once() -> None:
    engine, _ = make_engine(max_num_batched_tokens=8, enable_chunked_prefill=False)
    ear = run(engine, [ask("long", [3] * 9), ask("fits", [3] * 8)])
    error = ear["long"].last.error
    assert error is not None and "a step takes 8 and chunked prefill is off" in error
    assert ear["fits"].finish is LENGTH


def test_a_live_id_is_refused_and_its_owner_goes_on() -> None:
    """P147: an id twice neither hangs nor ends the first one. An id may come again after its end."""
    engine, _ = make_engine()
    engine.add(ask("r", [3, 4]))
    with pytest.raises(InvalidRequest, match="'r' is live already"):
        engine.add(ask("r", [5]))
    assert run(engine)["r"].finish is LENGTH
    assert run(engine, [ask("r", [5])])["r"].finish is LENGTH


def test_contradictions_of_a_plan_are_refused() -> None:
    with pytest.raises(ConfigError, match="blocks of 4 tokens, the model's layout of 8"):
        make_engine(plan=make_plan(block_size=4))[0].__class__(
            make_plan(block_size=4), make_layout((0,), 8), make_engine()[1]
        )
    with pytest.raises(ConfigError, match="threshold is 4 and chunked prefill is off"):
        make_engine(long_prefill_token_threshold=4, enable_chunked_prefill=False)


# ---- law 4: forced prefixes ---------------------------------------------------------------------


@pytest.mark.parametrize("num_forced", range(9))
def test_a_restart_goes_on_where_the_stream_was(num_forced: int) -> None:
    request = ask("r", [5, 6, 7, 8, 9], 8, params={"logprobs": 1})
    whole = expected(request, (0,), VOCAB, 64)
    request.forced = whole.token_ids[:num_forced]
    ear = run(make_engine(max_num_batched_tokens=4)[0], [request])
    heard = ear["r"]
    assert heard.token_ids == whole.token_ids[num_forced:], "forced tokens are never sent again"
    assert (heard.finish, heard.last.stop_reason) == (whole.finish, whole.stop_reason)
    assert heard.last.record is not None and heard.last.record.num_generated == 8
    logprobs = [one for delta in heard.deltas for one in delta.logprobs or []]
    drawn = list(zip(whole.seen, whole.token_ids, strict=True))[num_forced:]
    assert logprobs == [scored(seen, token, 1, VOCAB) for seen, token in drawn]


@pytest.mark.parametrize(
    ("kind", "want"), [("eos", (STOP, None)), ("id", (STOP, 9)), ("length", (LENGTH, None))]
)
def test_forced_tokens_may_end_the_request_by_themselves(
    kind: str, want: tuple[FinishReason, int | None]
) -> None:
    request = ask("r", [5, 6], 2 if kind == "length" else 8, forced=[3, 9])
    if kind == "eos":
        request.eos_ids = [9]
    elif kind == "id":
        request.params = ask("x", [1], params={"stop_token_ids": [9]}).params
    engine, worker = make_engine()
    ear = run(engine, [request])
    assert (ear["r"].finish, ear["r"].last.stop_reason) == want
    assert ear["r"].token_ids == [] and not worker.plans


# ---- prompt scores ------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 3, 64])
@pytest.mark.parametrize("depth", [1, 2])
def test_prompt_logprobs_come_once_with_the_first_token(budget: int, depth: int) -> None:
    prompt = list(range(2, 16))
    engine, _ = make_engine(max_num_batched_tokens=budget, pipeline_depth=depth)
    run(engine, [ask("warm", prompt)])
    ear = run(
        engine,
        [ask("r", prompt, params={"prompt_logprobs": 2}), ask("one", [7], params={"prompt_logprobs": 0})],
    )
    first, *rest = ear["r"].deltas
    assert first.prompt_logprobs == expected_scores(prompt, (0,), VOCAB, 2)
    assert all(delta.prompt_logprobs is None for delta in rest)
    assert first.num_cached == 0, "every position had to be computed"
    assert first.record is None and ear["r"].last.record is not None
    assert ear["r"].last.record.prefix_miss == "disabled"
    assert ear["one"].deltas[0].prompt_logprobs == [None]


# ---- aborts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("turns", range(6))
def test_an_abort_gives_everything_back_whenever_it_comes(turns: int, depth: int) -> None:
    """P145. Its rows in flight are void; the others do not notice."""
    engine, _ = make_engine(max_num_batched_tokens=8, pipeline_depth=depth)
    ear = Ear()
    requests = [ask("gone", range(2, 20), 20), ask("stays", range(20, 30), 10)]
    for request in requests:
        engine.add(request)
    for _ in range(turns):
        ear.take(engine.pump(None))
    engine.abort(["gone", "never was"])
    engine.abort(["gone"])
    assert engine.has_work()
    check(engine)
    ear.take(engine.pump())
    assert ear["gone"].finish is FinishReason.ABORT
    while engine.has_work():
        ear.take(engine.pump(None))
    check_idle(engine)
    assert ear["stays"].token_ids == expected(requests[1], (0,), VOCAB, 64).token_ids
    whole = expected(requests[0], (0,), VOCAB, 64).token_ids
    assert ear["gone"].token_ids == whole[: len(ear["gone"].token_ids)]


def test_an_abort_acts_before_the_result_that_waits() -> None:
    engine, _ = make_engine()
    engine.add(ask("r", [3, 4]))
    engine.pump()
    engine.pump()
    engine.abort(["r"])
    assert [delta.finish for delta in engine.pump()] == [FinishReason.ABORT]


# ---- faults and the self-check ------------------------------------------------------------------


def test_a_fault_of_the_worker_ends_the_engine_with_its_cause() -> None:
    engine, _ = make_engine(worker_options={"fault_at": 3})
    engine.add(ask("r", [3, 4], 20))
    assert len(engine.pump(None)) == 2
    with pytest.raises(EngineDead, match="step 3 failed: glass breaks"):
        engine.pump(None)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1.0

    def __call__(self) -> float:
        self.now_s += 0.3
        return self.now_s


def test_a_leak_of_blocks_is_reported_and_recovered(caplog: pytest.LogCaptureFixture) -> None:
    """P087: waiting requests, nothing scheduled, health green: never for long."""
    engine, _ = make_engine(num_blocks=8, engine_options={"clock": Clock()})
    run(engine, [ask("before", range(2, 20), 2)])
    engine.cache.pool.take(6)  # a fault of ours: nobody holds these
    engine.add(ask("r", range(2, 20), 4))
    ear = Ear()
    with caplog.at_level(logging.ERROR, "octavo.core.engine"):
        for _ in range(50):
            ear.take(engine.pump())
    assert ear["r"].finish is LENGTH
    assert "nothing can be scheduled: 0 running, 1 waiting, 0 deferred, 2 of 8 blocks free" in caplog.text
    check_idle(engine)


def test_what_cannot_be_recovered_fails_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    class Never:
        def check(self, request: Request) -> Verdict:
            return Verdict.STOP

    engine, _ = make_engine(engine_options={"clock": Clock(), "gates": [Never()]})
    for name in ("a", "b"):
        engine.add(ask(name, [3, 4]))
    ear = Ear()
    with caplog.at_level(logging.ERROR, "octavo.core.engine"):
        for _ in range(100):
            ear.take(engine.pump())
    for name in ("a", "b"):
        error = ear[name].last.error
        assert error is not None and error.startswith("could not be scheduled: 0 running,")
    check_idle(engine)


def test_who_waits_for_a_gate_is_not_failed(caplog: pytest.LogCaptureFixture) -> None:
    class Closed:
        verdict = Verdict.SKIP

        def check(self, request: Request) -> Verdict:
            return self.verdict

    gate = Closed()
    engine, _ = make_engine(engine_options={"clock": Clock(), "gates": [gate]})
    engine.add(ask("r", [3, 4]))
    with caplog.at_level(logging.WARNING, "octavo.core.engine"):
        for _ in range(30):
            assert engine.pump() == []
    assert "every request waits for what it needs to start" in caplog.text
    assert engine.stats().waiting_deferred == engine.stats().waiting == 1
    gate.verdict = Verdict.GO
    assert run(engine)["r"].finish is LENGTH


# ---- records and calls --------------------------------------------------------------------------


def test_a_record_adds_up() -> None:
    engine, _ = make_engine(max_num_seqs=2)
    prompt = list(range(2, 15))
    run(engine, [ask("first", prompt, 3)])
    ear = run(engine, [ask("second", prompt, 3, arrival=0.5)])
    record = ear["second"].last.record
    assert record is not None
    assert (record.num_prompt, record.num_cached, record.num_generated) == (13, 12, 3)
    assert (record.num_preemptions, record.num_recomputed, record.prefix_miss) == (0, 0, "tail-block")
    assert record.arrival == 0.5 < record.queued <= record.scheduled <= record.first_token <= record.finished
    assert [delta.num_cached for delta in ear["second"].deltas] == [12, None, None]
    stats = engine.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (26, 12)
    assert sum(stats.step_tokens) == (13 + 2) + (1 + 2)
    assert engine.stats(drain=True).step_tokens == stats.step_tokens and engine.stats().step_tokens == []


def test_calls() -> None:
    engine, _ = make_engine()
    prompt = list(range(2, 15))
    engine.add(ask("r", prompt, 3))
    engine.pump()
    assert engine.call("reset_prefix_cache") is False
    run(engine)
    assert engine.call("reset_prefix_cache", []) is True
    assert run(engine, [ask("again", prompt)])["again"].deltas[0].num_cached == 0
    assert engine.call("stats") == engine.stats()
    described = engine.call("describe")
    assert isinstance(described, dict) and described["num_blocks"] == 64
    with pytest.raises(InvalidRequest, match="no engine call 'eval': call one of reset_prefix_cache, pause"):
        engine.call("eval")
    with pytest.raises(InvalidRequest, match="does not take"):
        engine.call("stats", [1])


@pytest.mark.parametrize("clear_cache", [False, True])
@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_a_paused_engine_queues_and_goes_on(mode: str, clear_cache: bool) -> None:
    engine, worker = make_engine()
    alone, _ = make_engine()
    prompt = list(range(2, 15))
    wanted = run(alone, [ask("r", prompt, 12)])["r"].token_ids
    ear = Ear()
    engine.add(ask("r", prompt, 12))
    for _ in range(4):
        ear.take(engine.pump(None))
    assert engine.is_paused() is False
    engine.call("pause", [mode, clear_cache])
    engine.add(ask("late", prompt, 12))
    for _ in range(40):
        ear.take(engine.pump(None))
        check(engine)
    assert engine.call("is_paused") is True and engine.stats().paused
    planned = len(worker.plans)
    ear.take(engine.pump(None))
    assert len(worker.plans) == planned, "a step was planned in a pause"
    assert "late" not in ear
    finish = {"abort": FinishReason.ABORT, "wait": FinishReason.LENGTH, "keep": None}[mode]
    assert ear["r"].finish is finish
    engine.call("resume")
    while engine.has_work():
        ear.take(engine.pump(None))
    assert ear["late"].token_ids == wanted
    if mode != "abort":
        assert ear["r"].token_ids == wanted
    # Cleared at the standstill, the late one finds nothing but what a frozen one computes again.
    cached = ear["late"].deltas[0].num_cached
    assert cached == (0 if clear_cache and mode != "keep" else 12)


def test_a_pause_of_no_known_mode_changes_nothing() -> None:
    engine, _ = make_engine()
    with pytest.raises(InvalidRequest, match="mode is 'nap'; allowed are abort, wait, keep"):
        engine.call("pause", ["nap"])
    assert run(engine, [ask("r", [2, 3], 4)])["r"].finish is FinishReason.LENGTH


def test_a_pause_of_an_empty_engine_is_complete_at_once() -> None:
    engine, _ = make_engine()
    for mode in ("abort", "wait", "keep"):
        engine.call("pause", [mode])
        assert engine.call("is_paused") is True
    engine.call("resume")
    assert engine.call("is_paused") is False


def test_running_requests_compute_again_when_their_prefixes_are_forgotten() -> None:
    engine, _ = make_engine()
    ear = Ear()
    engine.add(ask("r", list(range(2, 15)), 12))
    for _ in range(4):
        ear.take(engine.pump(None))
    assert engine.call("reset_prefix_cache") is False
    assert engine.call("reset_prefix_cache", [True]) is True
    while engine.has_work():
        ear.take(engine.pump(None))
        check(engine)
    alone, _ = make_engine()
    assert ear["r"].token_ids == run(alone, [ask("r", list(range(2, 15)), 12)])["r"].token_ids
    record = ear["r"].last.record
    assert record is not None and record.num_preemptions == 1 and record.num_recomputed > 0


def test_ignored_eos_is_an_empty_list() -> None:
    engine, _ = make_engine()
    prompt = next(
        [a, 5] for a in range(2, VOCAB) if EOS in expected(ask("x", [a, 5], 8), (0,), VOCAB, 64).token_ids[:7]
    )
    ear = run(engine, [ask("ignores", prompt), ask("minds", prompt, eos=True)])
    assert ear["ignores"].finish is LENGTH and ear["minds"].finish is STOP
