"""The worker's slots, batches and sampling state, over an executor without arithmetic."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from tests.fakes.counting_executor import CountingExecutor

from octavo.config.plan import CachePlan, EnginePlan, ExecutorPlan, SchedulerPlan
from octavo.errors import KernelFault
from octavo.executors.base import StepBatch, StepOutput, nothing
from octavo.wire.layout import KVGroup, KVLayout
from octavo.wire.messages import SlotAdd, StepPlan, StepResult
from octavo.wire.sampling import SamplingParams
from octavo.worker.sampling import SamplingSlots, set_bits
from octavo.worker.slots import Slots
from octavo.worker.step import StepRunner, _listed
from octavo.worker.worker import Worker

VOCAB = 97
LAYOUT = KVLayout(
    groups=(KVGroup((0,)), KVGroup((1,), window=4)), block_size=4, kv_heads=1, head_dim=8, dtype="f32"
)


def runner() -> StepRunner:
    return StepRunner(CountingExecutor(VOCAB), Slots(4, 64, LAYOUT), SamplingSlots(4, VOCAB))


def batches_of(run: StepRunner) -> list[StepBatch]:
    assert isinstance(run.executor, CountingExecutor)
    return run.executor.batches


def add(slot: int, tokens: list[int], *, num_prompt: int | None = None, **params: object) -> SlotAdd:
    return SlotAdd(
        slot=slot,
        request_id=f"r{slot}",
        token_ids=tokens,
        num_prompt=len(tokens) if num_prompt is None else num_prompt,
        computed=0,
        blocks=[[slot * 10 + 1, slot * 10 + 2], [slot * 10 + 3]],
        params=SamplingParams(temperature=0.0, **params),  # type: ignore[arg-type]
        seed=7,
        stop_ids=[5, 6],
    )


def test_a_batch_holds_each_rows_next_tokens_and_its_blocks() -> None:
    run = runner()
    plan = StepPlan(
        step=1,
        added=[add(2, [10, 11, 12, 13, 14]), add(0, [20, 21])],
        slots=[2, 0],
        counts=[3, 2],
        samples=[False, True],
    )
    result = run.execute(plan)
    batch = batches_of(run)[0]
    assert batch.token_ids.tolist() == [10, 11, 12, 20, 21]
    assert batch.positions.tolist() == [0, 1, 2, 0, 1]
    assert batch.row_starts.tolist() == [0, 3, 5]
    assert batch.block_tables[0, :, :2].tolist() == [[21, 22], [1, 2]]
    assert batch.sample_tokens.tolist() == [4]
    assert batch.sampling.position.tolist() == [2]
    assert result.token_ids == [[], [(21 + 1) % VOCAB]]


def test_the_next_step_uses_the_token_that_the_engine_has_not_seen() -> None:
    run = runner()
    run.execute(StepPlan(step=1, added=[add(1, [30, 31])], slots=[1], counts=[2], samples=[True]))
    run.execute(StepPlan(step=2, new_blocks=[(1, 0, [77])], slots=[1], counts=[1], samples=[True]))
    batch = batches_of(run)[1]
    assert batch.token_ids.tolist() == [(31 + 1) % VOCAB]
    assert batch.positions.tolist() == [2] and batch.context_lens.tolist() == [2]
    assert batch.block_tables[0, 0].tolist() == [11, 12, 77]


def test_a_slot_taken_again_shows_nothing_of_its_last_request() -> None:
    run = runner()
    first = add(3, [1, 2, 3], presence_penalty=1.0, allowed_token_ids=[4], logit_bias={3: 1.0}, min_tokens=2)
    run.execute(StepPlan(step=1, added=[first], slots=[3], counts=[3], samples=[True]))
    sampling = batches_of(run)[0].sampling
    assert sampling.penalty_row.tolist() == [0] and sampling.mask_row.tolist() == [0]
    assert sampling.bias_ids.tolist() == [3, 5, 6]
    run.execute(StepPlan(step=2, removed=[3], added=[add(3, [9])], slots=[3], counts=[1], samples=[True]))
    sampling = batches_of(run)[1].sampling
    assert sampling.penalty_row.tolist() == [-1] and sampling.mask_row.tolist() == [-1]
    assert sampling.bias_start.tolist() == [0, 0]


def test_penalties_count_output_and_remember_the_prompt_also_after_preemption() -> None:
    slots = SamplingSlots(2, VOCAB)
    slots.add(add(0, [1, 2, 40, 40, 33], num_prompt=2, frequency_penalty=0.5))
    row = slots.penalty_row[0]
    assert slots.counts.array[row, 40] == 2 and slots.counts.array[row, 33] == 1
    assert slots.seen.array[row, 0] == (1 << 1) | (1 << 2)
    slots.drawn(0, 33)
    assert slots.counts.array[row, 33] == 2


def test_many_drawn_tokens_at_once_leave_what_one_by_one_leaves() -> None:
    rng = np.random.default_rng(5)
    sides = [(SamplingSlots(4, VOCAB), Slots(4, 64, LAYOUT)) for _ in range(2)]
    for sampling, state in sides:
        for slot in range(4):
            request = add(slot, [1, 2, 3 + slot], presence_penalty=1.0 if slot % 2 else 0.0)
            sampling.add(request)
            state.add(request)
    for _ in range(20):
        slots = rng.permutation(4)[: rng.integers(1, 5)].astype(np.int32)
        tokens = rng.integers(0, VOCAB, len(slots)).astype(np.int32)
        for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
            sides[0][0].drawn(slot, token)
            sides[0][1].append(slot, token)
        sides[1][0].drawn_all(slots, tokens)
        sides[1][1].append_all(slots, tokens)
    (one, one_state), (many, many_state) = sides
    assert (one.counts.array == many.counts.array).all() and one.counts.array.sum() > 0
    assert (one_state.tokens == many_state.tokens).all()
    assert (one_state.known == many_state.known).all()


@pytest.mark.parametrize(("output", "banned"), [([], [5, 6, 50]), ([8], [5, 6, 50, 9]), ([8, 9], [50])])
def test_bans_follow_min_tokens_and_bad_words(output: list[int], banned: list[int]) -> None:
    slots, state = SamplingSlots(1, VOCAB), Slots(1, 64, LAYOUT)
    request = add(0, [1, *output], num_prompt=1, min_tokens=2, bad_words_ids=[[50], [8, 9]])
    slots.add(request)
    state.add(request)
    batch = slots.gather(np.zeros(1, np.int32), np.ones(1, np.int64), state)
    assert batch.bias_ids.tolist() == banned
    assert np.isneginf(batch.bias_values).all()


def test_rows_that_chose_ids_get_those_and_rows_that_did_not_get_the_best() -> None:
    slots, state = SamplingSlots(4, VOCAB, logprobs_mode="processed_logits"), Slots(4, 64, LAYOUT)
    for request in (
        add(0, [1], logprob_token_ids=[9, 3, 9]),
        add(1, [1], logprobs=2),
        add(3, [1], logprob_token_ids=[4], logprobs=1),
    ):
        slots.add(request)
        state.add(request)
    asked = slots.gather(np.array([3, 1, 0], np.int32), np.ones(3, np.int64), state)
    assert asked.chosen_start.tolist() == [0, 1, 1, 4] and asked.chosen_ids.tolist() == [4, 9, 3, 9]
    assert asked.num_logprobs.tolist() == [0, 2, 0]
    assert asked.processed_logprobs and asked.reports_logits
    for slot in (0, 3):
        slots.remove(slot)
        slots.add(add(slot, [1]))
    asked = slots.gather(np.array([3, 1, 0], np.int32), np.ones(3, np.int64), state)
    assert asked.chosen_ids.size == 0 and asked.num_logprobs.tolist() == [-1, 2, -1]


def test_places_that_hold_no_token_are_not_reported() -> None:
    ids, values = np.array([4, 2, -1, -1], np.int32), np.array([-0.5, -1.5, 0, 0], np.float32)
    assert _listed(ids, values) == ([4, 2], [-0.5, -1.5])
    assert _listed(ids[:2], values[:2]) == ([4, 2], [-0.5, -1.5])
    assert _listed(ids[:0], values[:0]) == ([], [])


def test_prompt_positions_are_scored_chunk_by_chunk() -> None:
    run = runner()
    request = add(0, [10, 11, 12, 13], prompt_logprobs=0)
    first = run.execute(StepPlan(step=1, added=[request], slots=[0], counts=[3], samples=[False]))
    second = run.execute(StepPlan(step=2, slots=[0], counts=[1], samples=[True]))
    assert [x.token_id for x in first.prompt_logprobs[0]] == [11, 12, 13]
    assert second.prompt_logprobs == {}


def test_set_bits_spans_words() -> None:
    row = np.zeros(4, np.uint32)
    set_bits(row, [0, 31, 32, 96, 96])
    assert row.tolist() == [(1 << 31) | 1, 1, 0, 1]


def test_parameters_that_cannot_act_end_their_own_request_only() -> None:
    run = runner()
    bad = add(1, [7, 8], logit_bias={3: 1.0})
    bad.params = SamplingParams(top_k=2**40, temperature=1.0, allowed_token_ids=[10**6])
    plan = StepPlan(step=1, added=[bad, add(0, [20, 21])], slots=[1, 0], counts=[2, 2], samples=[True, True])
    assert run.execute(plan).token_ids == [[-1], [(21 + 1) % VOCAB]]
    again = StepPlan(step=2, removed=[1], added=[add(1, [9])], slots=[1], counts=[1], samples=[True])
    assert run.execute(again).token_ids == [[9]]


def plan_of_engine() -> EnginePlan:
    return EnginePlan(
        model="none",
        executor=ExecutorPlan(name="native", isa="generic", num_threads=1, weights="f32"),
        cache=CachePlan(block_size=4, num_blocks=16, dtype="f32"),
        scheduler=SchedulerPlan(max_num_seqs=4, max_num_batched_tokens=32, max_model_len=64),
        seed=0,
        vocab_size=VOCAB,
    )


def test_results_come_in_order_and_wake_the_poller() -> None:
    worker = Worker(CountingExecutor(VOCAB), plan_of_engine(), LAYOUT)
    try:
        worker.submit(StepPlan(step=1, added=[add(0, [1, 2])], slots=[0], counts=[2], samples=[True]))
        worker.submit(StepPlan(step=2, slots=[0], counts=[1], samples=[True]))
        assert select.select([worker.wake_fd], [], [], 10)[0]
        results = [worker.collect(10), worker.collect(10)]
        assert [r.step for r in results if r] == [1, 2]
        assert worker.collect(0) is None
    finally:
        worker.close()


class Watched(CountingExecutor):
    """Computes once `go` is set; keeps what the engine can see before and after it has begun. `both`: two steps."""

    def __init__(self) -> None:
        super().__init__(VOCAB)
        self.go, self.both = threading.Event(), threading.Event()
        self.look: Callable[[], StepResult | None] = lambda: None
        self.seen: list[tuple[int | None, int | None]] = []

    def run(self, batch: StepBatch, on_start: Callable[[], None] = nothing) -> StepOutput:
        assert self.go.wait(10)
        before = self.look()
        on_start()
        after = self.look()
        self.seen.append((before.step if before else None, after.step if after else None))
        if len(self.seen) == 2:
            self.both.set()
        return super().run(batch)


def test_a_result_is_handed_over_when_the_next_step_has_begun_or_at_once_if_there_is_none() -> None:
    executor = Watched()
    worker = Worker(executor, plan_of_engine(), LAYOUT)
    executor.look = lambda: worker.collect(0)
    try:
        worker.submit(StepPlan(step=1, added=[add(0, [1, 2])], slots=[0], counts=[2], samples=[True]))
        worker.submit(StepPlan(step=2, slots=[0], counts=[1], samples=[True]))
        executor.go.set()
        assert executor.both.wait(10)
        last = worker.collect(10)
        assert last is not None and last.step == 2
        assert executor.seen == [(None, None), (None, 1)]
    finally:
        worker.close()


def test_scalars_of_the_same_rows_are_gathered_once_and_anew_when_a_slot_has_another_request() -> None:
    run = runner()
    first = StepPlan(
        step=1,
        added=[add(1, [8], min_tokens=1), add(2, [9])],
        slots=[1, 2],
        counts=[1, 1],
        samples=[True] * 2,
    )
    run.execute(first)
    run.execute(StepPlan(step=2, slots=[1, 2], counts=[1, 1], samples=[True] * 2))
    run.execute(StepPlan(step=3, slots=[2, 1], counts=[1, 1], samples=[True] * 2))
    warm = msgspec.structs.replace(add(1, [7]), params=SamplingParams(temperature=0.5, top_k=3))
    run.execute(StepPlan(step=4, removed=[1], added=[warm], slots=[2, 1], counts=[1, 1], samples=[True] * 2))
    batches = [batch.sampling for batch in batches_of(run)]
    assert batches[0].version == batches[1].version
    assert len({batch.version for batch in batches}) == 3
    assert batches[2].top_k.tolist() == [0, 0] and batches[3].top_k.tolist() == [0, 3]
    assert [batch.position.tolist() for batch in batches[:2]] == [[1, 1], [2, 2]]


def test_a_fault_comes_back_as_a_result_and_ends_the_worker() -> None:
    executor = CountingExecutor(VOCAB)
    executor.fail_with = KernelFault("row 3 is not finite", op="layers.0.attn", position=4)
    worker = Worker(executor, plan_of_engine(), LAYOUT)
    try:
        worker.submit(StepPlan(step=1, added=[add(0, [1])], slots=[0], counts=[1], samples=[True]))
        worker.submit(StepPlan(step=2, slots=[0], counts=[1], samples=[True]))
        first, second = worker.collect(10), worker.collect(10)
        assert first and second and first.fault == second.fault
        assert "layers.0.attn" in (first.fault or "") and "position 4" in (first.fault or "")
    finally:
        worker.close()


def test_any_top_k_fits_the_samplers_numbers() -> None:
    """2**31 was an OverflowError in the worker: an engine death, and a second one at the next try."""
    sampling = SamplingSlots(4, VOCAB)
    for slot, top_k in enumerate((-1, 3, 2**31, 2**63 - 1)):
        params = SamplingParams(temperature=1.0, top_k=top_k)
        sampling.add(
            SlotAdd(
                slot=slot,
                request_id="r",
                token_ids=[1],
                num_prompt=1,
                computed=0,
                blocks=[],
                params=params,
                seed=0,
            )
        )
    assert sampling.top_k.tolist() == [0, 3, VOCAB, VOCAB]
