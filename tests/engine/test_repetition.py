"""repetition_detection: an answer that repeats itself ends, at the same token however it came to be made."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.engine.harness import VOCAB, Ear, ask, make_engine, run
from tests.fakes.glass_worker import expected, repeats

from octavo.core.repetition import Repetition, repetition_of
from octavo.core.stop import may_stop
from octavo.errors import InvalidRequest
from octavo.wire.messages import EngineRequest, FinishReason
from octavo.wire.sampling import RepetitionDetectionParams, SamplingParams, verify

REPETITION = FinishReason.REPETITION
END = (REPETITION, "repetition_detected")


def asked(most: int, count: int, least: int = 0) -> RepetitionDetectionParams:
    return RepetitionDetectionParams(max_pattern_size=most, min_pattern_size=least, min_count=count)


# ---- the detector -------------------------------------------------------------------------------


@given(
    tokens=st.lists(st.integers(0, 2), max_size=120),
    tail=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    times=st.integers(0, 8),
    most=st.integers(1, 20),
    least=st.integers(0, 20),
    count=st.integers(2, 5),
)
@example(tokens=[0] * 200, tail=[1], times=1, most=3, least=3, count=5)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_every_token_is_judged_as_the_definition_says(
    tokens: list[int], tail: list[int], times: int, most: int, least: int, count: int
) -> None:
    params = asked(most, count, min(least, most))
    output = tokens + tail * times + tokens
    detector = Repetition(params, max(1, len(output)))
    for end, token in enumerate(output, 1):
        assert detector.push(token) == repeats(output[:end], params), output[:end]


def test_nothing_ends_before_min_tokens_are_there() -> None:
    detector = Repetition(asked(1, 2), 20, 5)
    assert [detector.push(3) for _ in range(7)] == [False] * 4 + [True] * 3


def test_memory_and_work_do_not_grow_with_the_answer() -> None:
    detector = Repetition(asked(5, 3), 1 << 20)
    detector.push(1)
    assert detector._seen is not None
    size = len(detector._seen)
    found = [detector.push(i % 7) for i in range(3000)]
    assert not any(found) and len(detector._seen) == size <= 100
    assert not any(detector.push(8) for _ in range(2)) and detector.push(8)


def test_sizes_that_no_answer_can_reach_cost_nothing() -> None:
    detector = Repetition(asked(1 << 62, 3), 30)
    assert not any(detector.push(i) for i in (*range(10), *range(10), *range(9)))
    assert detector.push(9) and len(detector._runs) == 10
    assert not Repetition(asked(4, 1 << 40), 30).push(1)


@pytest.mark.parametrize("params", [None, asked(0, 0), asked(0, 5)])
def test_nothing_is_kept_when_nothing_is_asked_for(params: RepetitionDetectionParams | None) -> None:
    assert repetition_of(SamplingParams(repetition_detection=params), 100) is None


# ---- the stop check ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("eos", "stop", "is_last", "min_tokens", "want"),
    [
        ([], [], False, 0, END),
        ([], [], False, 2, END),
        ([], [], False, 3, None),  # two tokens are there, three were promised
        ([5], [], True, 0, (FinishReason.STOP, None)),
        ([], [5], True, 0, (FinishReason.STOP, 5)),
        ([], [], True, 0, (FinishReason.LENGTH, None)),
    ],
)
def test_it_is_asked_last(
    eos: list[int], stop: list[int], is_last: bool, min_tokens: int, want: tuple[FinishReason, object] | None
) -> None:
    detector = Repetition(asked(1, 2), 10, min_tokens)
    detector.push(5)
    got = may_stop(
        5,
        num_output=2,
        min_tokens=min_tokens,
        is_last=is_last,
        eos_ids=eos,
        stop_token_ids=stop,
        repetition=detector,
    )
    assert got == want


# ---- in the engine -------------------------------------------------------------------------------


def repeating(count: int = 2) -> EngineRequest:
    """A request whose answer repeats a token in time (found by trying seeds)."""
    for seed in range(1000):
        request = ask("r", [4, 5, 6], 40, seed=seed)
        request.params = SamplingParams(repetition_detection=asked(3, count), logprobs=1)
        solo = expected(request, (0,), VOCAB, 64)
        if solo.finish is REPETITION and len(solo.token_ids) > 8:
            return request
    raise AssertionError("no seed repeats")


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("num_blocks", [12, 64])
def test_the_answer_ends_there_in_any_company(depth: int, num_blocks: int) -> None:
    """With few blocks the requests preempt each other; with two steps in flight a token too many is drawn."""
    request = repeating()
    solo = expected(request, (0,), VOCAB, 64)
    engine, _ = make_engine(num_blocks=num_blocks, pipeline_depth=depth)
    mates = [ask(f"m{i}", [i + 7] * 9, 30) for i in range(3)]
    ear = run(engine, [*mates, request])
    last = ear["r"].last
    assert (last.finish, last.stop_reason) == END
    assert ear["r"].token_ids == solo.token_ids
    assert sum(len(delta.logprobs or []) for delta in ear["r"].deltas) == len(solo.token_ids)
    assert (engine.stats().preemptions > 0) == (num_blocks == 12)


def test_a_restart_goes_on_counting_where_the_old_engine_stopped() -> None:
    request = repeating()
    solo = expected(request, (0,), VOCAB, 64)
    for cut in range(1, len(solo.token_ids)):
        request.forced = solo.token_ids[:cut]
        ear = run(make_engine()[0], [request])
        assert ear["r"].token_ids == solo.token_ids[cut:]
        assert (ear["r"].last.finish, ear["r"].last.stop_reason) == END


def test_an_answer_that_had_ended_when_the_engine_died_is_told_so() -> None:
    request = repeating()
    request.forced = expected(request, (0,), VOCAB, 64).token_ids
    engine, worker = make_engine()
    engine.add(request)
    ear = Ear()
    ear.take(engine.pump())
    last = ear["r"].last
    assert (last.finish, last.stop_reason, ear["r"].token_ids) == (*END, [])
    assert not worker.plans and not engine.has_work()


# ---- what may be asked ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (asked(-1, 2), "max_pattern_size"),
        (asked(3, 2, -1), "min_pattern_size"),
        (asked(3, 2, 4), "min_pattern_size"),
        (asked(3, 1), "min_count"),
        (asked(3, -5), "min_count"),
    ],
)
def test_ranges(params: RepetitionDetectionParams, field: str) -> None:
    with pytest.raises(InvalidRequest, match="allowed is") as caught:
        verify(SamplingParams(repetition_detection=params), vocab_size=10, max_logprobs=1)
    assert caught.value.param == f"repetition_detection.{field}"


@pytest.mark.parametrize("params", [asked(0, 0), asked(0, 1), asked(3, 2, 3), asked(3, 2, 0)])
def test_what_is_in_range(params: RepetitionDetectionParams) -> None:
    verify(SamplingParams(repetition_detection=params), vocab_size=10, max_logprobs=1)
