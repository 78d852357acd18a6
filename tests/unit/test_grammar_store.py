"""Grammars compiled beside the step loop, tried in a process of their own, and bounded in number and cost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
from tests.fakes.walks import VOCABULARY

from octavo.core.grammar import GrammarGate
from octavo.core.protocols import Verdict
from octavo.core.request import Request
from octavo.grammar.base import GrammarError, Vocabulary
from octavo.grammar.check_worker import Desk, fault_of
from octavo.grammar.checker import CheckJob, CheckLimits, GrammarChecker, _Child
from octavo.grammar.store import GrammarStore
from octavo.grammar.vocabulary import pack, unpack
from octavo.wire.messages import EngineRequest
from octavo.wire.sampling import SamplingParams, StructuredSpec

REGEX = StructuredSpec(kind="regex", text="[a-z]+")
BAD = StructuredSpec(kind="regex", text="(")


def const(i: int) -> StructuredSpec:
    return StructuredSpec(kind="json_schema", text=f'{{"const": {i}}}')


@pytest.fixture
def store() -> Iterator[GrammarStore]:
    made = GrammarStore(lambda: VOCABULARY, max_entries=16)
    yield made
    made.close()


def test_a_grammar_is_compiled_once_and_everybody_gets_a_copy(store: GrammarStore) -> None:
    one, two = store.matcher(REGEX), store.matcher(REGEX)
    one.advance(VOCABULARY.spell(b"abc"))
    assert one.is_accepting and not two.is_accepting
    assert store.counts.compiled == 1 and store.counts.hits == 1


def test_a_failure_is_one_grammars_own(store: GrammarStore) -> None:
    with pytest.raises(GrammarError, match="regex"):
        store.matcher(BAD)
    assert store.matcher(REGEX) and store.counts.failed == 1


def test_bb_083_two_thousand_grammars_leave_a_bounded_number(store: GrammarStore) -> None:
    """BB-083: the oldest are dropped; one that is used stays."""
    for i in range(2_000):
        store.matcher(const(i))
        store.matcher(const(0))
        assert store.counts.kept <= 16
    assert store.counts.compiled == 2_000 and store.counts.evicted == 2_000 - 16


def test_long_specs_count_by_their_length() -> None:
    store = GrammarStore(lambda: VOCABULARY, max_chars=1_000)
    for i in range(20):
        store.matcher(StructuredSpec(kind="regex", text=f"{i}" + "a" * 300))
    assert store.counts.kept <= 4
    store.close()


def test_a_vocabulary_that_cannot_be_read_fails_the_request_and_is_tried_again() -> None:
    calls: list[int] = []

    def vocabulary() -> Vocabulary:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("disk")
        return VOCABULARY

    store = GrammarStore(vocabulary)
    with pytest.raises(GrammarError, match="disk"):
        store.matcher(REGEX)
    assert store.matcher(const(1))
    store.close()


# ---- the gate -----------------------------------------------------------------------------------


def request_for(spec: StructuredSpec | None) -> Request:
    wire = EngineRequest(
        id="r", prompt=[1], params=SamplingParams(structured=spec), max_tokens=4, seed=0, eos_ids=[2]
    )
    return Request(wire, end=5, key=(0,), now=0.0)


def test_the_gate_opens_when_the_grammar_is_there_and_wakes_the_loop() -> None:
    may_go, woken = threading.Event(), threading.Event()

    def vocabulary() -> Vocabulary:
        may_go.wait(20)
        return VOCABULARY

    store = GrammarStore(vocabulary, wake=woken.set)
    gate = GrammarGate(store)
    assert gate.check(request_for(None)) is Verdict.GO
    assert gate.check(request_for(REGEX)) is Verdict.SKIP
    may_go.set()
    assert woken.wait(20)
    store.matcher(REGEX)
    assert gate.check(request_for(REGEX)) is Verdict.GO
    store.close()


def test_the_gate_fails_what_cannot_be_compiled_or_takes_too_long() -> None:
    has_begun, may_go, now = threading.Event(), threading.Event(), [time.monotonic()]

    def vocabulary() -> Vocabulary:
        has_begun.set()
        may_go.wait(20)
        return VOCABULARY

    store = GrammarStore(vocabulary)
    gate = GrammarGate(store, limit_s=5, clock=lambda: now[0])
    assert gate.check(request_for(BAD)) is Verdict.SKIP
    assert has_begun.wait(20)
    store.ask(const(0))
    now[0] = time.monotonic() + 6
    assert gate.check(request_for(const(1))) is Verdict.SKIP, "both threads are taken: it has not begun"
    assert gate.check(request_for(BAD)) is Verdict.FAIL
    assert "longer than 5 s" in gate.problem(request_for(BAD))
    may_go.set()
    with pytest.raises(GrammarError):
        store.matcher(BAD)
    assert gate.check(request_for(BAD)) is Verdict.FAIL
    assert "cannot be compiled" in gate.problem(request_for(BAD))
    store.close()


# ---- the process that tries grammars --------------------------------------------------------------


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    made = GrammarChecker(lambda: VOCABULARY, CheckLimits(max_seconds=20, max_bytes=1 << 30))
    yield made
    made.close()


def test_a_verdict_names_keyword_and_pointer_and_is_kept(checker: GrammarChecker) -> None:
    bad = StructuredSpec(kind="json_schema", text='{"properties": {"a": {"not": {}}}}')
    for _ in range(2):
        with pytest.raises(GrammarError) as refused:
            checker.check(bad)
        assert (refused.value.keyword, refused.value.pointer) == ("not", "/properties/a/not")
        assert checker.known(bad) is not None
    checker.check(REGEX)


DOUBLED = "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(60))
TWICE = [
    f'"a{i}": {{"allOf": [{{"$ref": "#/$defs/a{i + 1}"}}, {{"$ref": "#/$defs/a{i + 1}"}}]}}'
    for i in range(40)
]
HOSTILE = [
    StructuredSpec(kind="regex", text="(" * 20_000 + "a" + ")" * 20_000),
    StructuredSpec(kind="regex", text="((a{1,1000}){1,1000}){1,1000}"),
    StructuredSpec(kind="regex", text="(.*a){25}(.*b){25}.{200}"),
    StructuredSpec(kind="lark", text="start: " + "(" * 100_000 + '"a"' + ")" * 100_000),
    StructuredSpec(kind="lark", text="start: start"),
    StructuredSpec(kind="lark", text="start: r0\n" + DOUBLED + '\nr60: "a"'),
    StructuredSpec(kind="json_schema", text='{"items":' * 60_000 + "{}" + "}" * 60_000),
    StructuredSpec(kind="json_schema", text='{"type": "integer", "multipleOf": 999999937}'),
    StructuredSpec(
        kind="json_schema",
        text='{"$ref": "#/$defs/a0", "$defs": {' + ",".join(TWICE) + ', "a40": {"type": "object"}}}',
    ),
    StructuredSpec(kind="json_schema", text='{"minLength": 50000, "type": "string", "maxLength": 100000}'),
]  # fmt: skip


@pytest.mark.parametrize("spec", HOSTILE, ids=lambda s: f"{s.kind}-{s.text[:20]}")
def test_a_hostile_grammar_costs_nobody_else(checker: GrammarChecker, spec: StructuredSpec) -> None:
    """It compiles or is refused; the checker goes on either way."""
    try:
        checker.check(spec)
    except GrammarError as error:
        assert str(error)
    checker.check(StructuredSpec(kind="regex", text=f"after{len(spec.text)}"))


def test_what_takes_too_long_is_refused_and_its_process_replaced() -> None:
    checker = GrammarChecker(lambda: VOCABULARY, CheckLimits(max_seconds=0.2, workers=1))
    checker.check(const(1))
    slow = StructuredSpec(kind="lark", text="start: " + " | ".join(f'"w{i}"' for i in range(60_000)))
    with pytest.raises(GrammarError, match=r"more than 0\.2 s"):
        checker.check(slow)
    checker.check(const(2))
    checker.close()


def test_waiting_for_a_busy_machine_and_making_tables_do_not_count() -> None:
    """A process that is stopped for longer than its limit, and one whose table costs more than its limit."""
    large = Vocabulary(
        [*VOCABULARY.tokens, *(b"x%d" % i for i in range(60_000))], VOCABULARY.special, VOCABULARY.eos_ids
    )
    checker = GrammarChecker(lambda: large, CheckLimits(max_seconds=0.05, workers=1))
    checker.check(const(1))
    process = checker._idle[0]._process
    os.kill(process.pid, signal.SIGSTOP)
    threading.Timer(0.5, lambda: os.kill(process.pid, signal.SIGCONT)).start()
    checker.check(const(2))
    assert checker._idle[0]._process is process
    checker.close()


def test_a_killed_process_is_replaced() -> None:
    checker = GrammarChecker(lambda: VOCABULARY, CheckLimits(workers=1))
    checker.check(const(1))
    os.kill(checker._idle[0]._process.pid, 9)
    checker._idle[0]._process.wait()
    checker.check(const(2))
    checker.close()


def test_a_spec_that_is_too_long_is_refused_before_anything(checker: GrammarChecker) -> None:
    with pytest.raises(GrammarError, match="allowed are 1,048,576"):
        checker.check(StructuredSpec(kind="regex", text="a" * (1 << 20) + "a"))


def test_a_vocabulary_travels() -> None:
    there = unpack(pack(VOCABULARY))
    assert list(there.tokens) == list(VOCABULARY.tokens)
    assert (there.special, there.eos_ids) == (VOCABULARY.special, VOCABULARY.eos_ids)


# ---- a last look at an answer ---------------------------------------------------------------------


def fault(spec: StructuredSpec, text: str, shown: str | None = None) -> str | None:
    desk = Desk(VOCABULARY)
    shown = text if shown is None else shown
    return desk.answer(CheckJob(spec, VOCABULARY.spell(text.encode()), shown)).error


def test_an_answer_is_checked_by_its_tokens_and_as_a_document() -> None:
    schema = StructuredSpec(kind="json_schema", text='{"type": "object", "required": ["a"]}')
    assert fault(schema, '{"a":1}') is None
    assert "ended before" in str(fault(schema, '{"a":1'))
    assert "does not follow its grammar" in str(fault(schema, "[1]"))
    assert "not JSON" in str(fault(schema, '{"a":1}', '{"a":1'))
    assert "required" in str(fault(schema, '{"a":1}', '{"b":1}'))
    assert "repeated" in str(fault(schema, '{"a":1}', '{"a":1,"a":2}'))
    assert fault(StructuredSpec(kind="choice", text='["x"]'), "x") is None
    assert "none of the choices" in str(fault(StructuredSpec(kind="choice", text='["x"]'), "x", "y"))
    assert fault(REGEX, "abc") is None


def test_what_the_second_opinion_cannot_decide_is_no_fault() -> None:
    fine = StructuredSpec(kind="json_schema", text='{"type": "number", "multipleOf": 0.001}')
    assert fault(fine, "1.128") is None, "a matter of binary fractions"
    python = StructuredSpec(kind="json_schema", text='{"type": "string", "pattern": "^\\\\p{L}+$"}')
    assert fault(python, '"é"') is None, "a pattern that Python does not know"


def test_a_check_that_fails_itself_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = GrammarChecker(lambda: VOCABULARY)

    def slow(job: CheckJob) -> None:
        raise TimeoutError

    monkeypatch.setattr(checker, "_ask", slow)
    assert checker.verify(REGEX, [97], "a") is None
    assert fault_of(REGEX, Desk(VOCABULARY)._matcher(REGEX), [97], None) is None
    checker.close()


def test_a_process_whose_parent_is_gone_does_not_work_on() -> None:
    """Nobody asks it to end then; the clock of its own CPU time does, in the middle of a job."""
    child = _Child(pack(VOCABULARY), CheckLimits(max_seconds=0.1))
    slow = StructuredSpec(kind="lark", text="start: " + " | ".join(f'"w{i}"' for i in range(60_000)))
    child.send(msgspec.msgpack.encode(CheckJob(slow)))
    assert child._process.wait(60) == -signal.SIGPROF
    child.close()
