"""Steps that go on with the batch before: the same results, batches and slots as gathering each anew."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.counting_executor import CountingExecutor, KeepingExecutor

from octavo.executors.base import StepBatch, StepOutput, nothing
from octavo.wire.layout import KVGroup, KVLayout
from octavo.wire.messages import SlotAdd, StepPlan
from octavo.wire.sampling import SamplingParams
from octavo.worker.sampling import SamplingSlots
from octavo.worker.slots import Slots
from octavo.worker.step import StepRunner

VOCAB, SLOTS, MAX_LEN = 97, 4, 400
LAYOUT = KVLayout(
    groups=(KVGroup((0,)), KVGroup((1,), window=4)), block_size=4, kv_heads=1, head_dim=8, dtype="f32"
)


def unlucky(batch: StepBatch) -> npt.NDArray[np.bool_]:
    """About one draw in thirty fails, by the token and its place."""
    last = batch.sample_tokens
    failed: npt.NDArray[np.bool_] = (batch.token_ids[last] * 7 + batch.positions[last]) % 31 == 3
    return failed


class Plain(CountingExecutor):
    """As KeepingExecutor, but each batch has to be given."""

    def __init__(self) -> None:
        super().__init__(VOCAB)
        self._inner = KeepingExecutor(VOCAB, unlucky)
        self.batches = self._inner.batches

    def run(self, batch: StepBatch, on_start: Callable[[], None] = nothing) -> StepOutput:
        return self._inner.run(batch, on_start)


def runner(executor: CountingExecutor) -> StepRunner:
    return StepRunner(executor, Slots(SLOTS, MAX_LEN, LAYOUT), SamplingSlots(SLOTS, VOCAB))


def params(kind: int) -> SamplingParams:
    return [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0, top_k=5),
        SamplingParams(temperature=0.0, frequency_penalty=0.5),
        SamplingParams(temperature=0.0, min_tokens=4),
        SamplingParams(temperature=0.0, logprobs=1),
        SamplingParams(temperature=0.0, prompt_logprobs=0),
    ][kind]


@st.composite
def plans(draw: st.DrawFn) -> list[StepPlan]:
    """Plans as an engine makes them: requests come and go, chunks of prompts, runs of decodes, some blocks."""
    made: list[StepPlan] = []
    pending: dict[int, int] = {}  # live slot -> prompt tokens that are left
    length: dict[int, int] = {}
    for step in range(draw(st.integers(1, 12))):
        removed = draw(st.lists(st.sampled_from(sorted(pending)), unique=True, max_size=2)) if pending else []
        for slot in removed:
            del pending[slot]
        added = []
        free = sorted(set(range(SLOTS)) - set(pending))
        for slot in draw(st.lists(st.sampled_from(free), unique=True, max_size=2)) if free else []:
            tokens = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6))
            kind = draw(st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 5]))
            added.append(
                SlotAdd(
                    slot=slot, request_id=f"{step}.{slot}", token_ids=tokens, num_prompt=len(tokens), computed=0,
                    blocks=[[1], [2]], params=params(kind), seed=slot, stop_ids=[5],
                )
            )  # fmt: skip
            pending[slot] = length[slot] = len(tokens)
        rows = draw(st.permutations(sorted(pending)))
        rows = rows[: draw(st.integers(0, len(rows)))]
        counts = [draw(st.integers(1, pending[s])) if pending[s] else 1 for s in rows]
        samples = []
        for slot, count in zip(rows, counts, strict=True):
            pending[slot] = max(0, pending[slot] - count)
            samples.append(pending[slot] == 0)
        made.append(
            StepPlan(step=len(made), removed=removed, added=added, slots=rows, counts=counts, samples=samples)
        )
        if rows and all(samples):
            for _ in range(draw(st.integers(0, 6))):
                news = draw(
                    st.lists(st.tuples(st.sampled_from(sorted(pending)), st.integers(0, 1)), max_size=2)
                )
                blocks = [(slot, group, [draw(st.integers(3, 90))]) for slot, group in news]
                same = {"slots": list(rows), "counts": [1] * len(rows), "samples": [True] * len(rows)}
                made.append(StepPlan(step=len(made), new_blocks=blocks, **same))
    return made


@given(plans())
def test_going_on_equals_gathering_anew(made: list[StepPlan]) -> None:
    keeping, plain = KeepingExecutor(VOCAB, unlucky), Plain()
    ours, theirs = runner(keeping), runner(plain)
    for plan in made:
        got, want = ours.execute(plan), theirs.execute(plan)
        assert (got.token_ids, got.problems, got.prompt_logprobs) == (
            want.token_ids,
            want.problems,
            want.prompt_logprobs,
        )
        if plan.slots:
            a, b = keeping.batches[-1], plain.batches[-1]
            for name in ("token_ids", "positions", "row_starts", "context_lens", "sample_tokens"):
                np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
            for (group, row), n in np.ndenumerate(theirs.slots.num_blocks[:, plan.slots]):
                assert a.block_tables[group, row, :n].tolist() == b.block_tables[group, row, :n].tolist()
            np.testing.assert_array_equal(a.sampling.position, b.sampling.position)
            np.testing.assert_array_equal(a.sampling.bias_ids, b.sampling.bias_ids)
    end = StepPlan(step=99, removed=[0])  # brings the slots up to date
    ours.execute(end)
    theirs.execute(end)
    for name in ("tokens", "known", "computed", "tables", "num_blocks"):
        np.testing.assert_array_equal(getattr(ours.slots, name), getattr(theirs.slots, name))


def added(slot: int, params: SamplingParams | None = None) -> SlotAdd:
    return SlotAdd(
        slot=slot, request_id=f"r{slot}", token_ids=[slot + 1], num_prompt=1, computed=0, blocks=[[1], [2]],
        params=params or SamplingParams(temperature=0.0), seed=1, stop_ids=[5],
    )  # fmt: skip


def test_a_long_run_of_decodes_goes_on_and_leaves_the_slots_right() -> None:
    executor = KeepingExecutor(VOCAB)
    run = runner(executor)
    run.execute(
        StepPlan(step=0, added=[added(0), added(2)], slots=[2, 0], counts=[1, 1], samples=[True, True])
    )
    drawn = [
        run.execute(StepPlan(step=i, slots=[2, 0], counts=[1, 1], samples=[True, True]))
        for i in range(1, 300)
    ]
    assert executor.num_run_on == 299
    run.execute(StepPlan(step=300, removed=[2]))
    assert run.slots.known[0] == 301 and run.slots.computed[0] == 300
    assert run.slots.tokens[0, 2:301].tolist() == [r.token_ids[1][0] for r in drawn]


@pytest.mark.parametrize(
    "given",
    [
        SamplingParams(temperature=0.0, logprobs=0),
        SamplingParams(temperature=0.0, min_tokens=9),
        SamplingParams(temperature=0.0, presence_penalty=1.0),
        SamplingParams(temperature=0.0, bad_words_ids=[[4, 5]]),
    ],
    ids=["logprobs", "min_tokens", "presence_penalty", "bad_words"],
)
def test_rows_whose_sampling_changes_are_gathered_each_time(given: SamplingParams) -> None:
    executor = KeepingExecutor(VOCAB)
    run = runner(executor)
    run.execute(StepPlan(step=0, added=[added(1, given)], slots=[1], counts=[1], samples=[True]))
    for i in range(1, 5):
        run.execute(StepPlan(step=i, slots=[1], counts=[1], samples=[True]))
    assert executor.num_run_on == 0
