"""Who computes how many tokens in the next step.

Owns the waiting line, the running list, slots and budgets. There is no prefill and no decode: a step
lets every request's `computed` chase its `known + drawn`. Does not know tokens' meaning, why a
request stops, or any feature: those answer as Gate, Limit, Pool or PrefixSource.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import cast

from octavo.config.plan import SchedulerPlan
from octavo.core.kv.cache import Match
from octavo.core.kv.pool import NULL
from octavo.core.protocols import Gate, Limit, Load, Pool, PrefixSource, RefusingGate, StepView, Verdict
from octavo.core.queue import WaitingLine
from octavo.core.request import Request, State
from octavo.errors import ConfigError
from octavo.wire.messages import SlotAdd, StepPlan

logger = logging.getLogger(__name__)

#: A waiting request that does not fit is passed by at most this many smaller ones; then it holds the line.
MAX_PASSED = 32
#: At most this many waiting requests are looked at behind one that does not fit, and this many deferred
#: ones are asked again: the cost of a step does not depend on how many wait.
MAX_LOOKED_AT = 16
#: When requests waited and none of them took what was left of a step, nothing is kept for them in so many.
STEPS_OF_REST = 8

_by_key = attrgetter("key")


class LongPrefill:
    """`Limit`: a prompt gets at most `threshold` tokens of a step, while others want some of it too."""

    least = 2

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold

    def is_full(self, view: StepView) -> bool:
        return False

    def grant(self, request: Request, want: int, view: StepView) -> int:
        if want > self.threshold and view.num_others:
            return self.threshold
        return want


@dataclass(slots=True)
class Step:
    """A plan in flight and, row by row, whose it is: the request, its epoch, and whether it draws."""

    plan: StepPlan
    rows: list[tuple[Request, int, bool]]
    num_tokens: int
    load: Load


@dataclass(slots=True)
class _Draft:
    budget: int
    added: list[SlotAdd] = field(default_factory=list)
    new_blocks: list[tuple[int, int, list[int]]] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    samples: list[bool] = field(default_factory=list)
    rows: list[tuple[Request, int, bool]] = field(default_factory=list)
    load: Load = field(default_factory=Load)
    # Of running requests not reached yet, known from the first longer row on (`_look_ahead`):
    is_known: bool = False
    num_to_come: int = 0  # rows of one token; `load` counts them already
    num_behind: int = 0  # tokens that longer rows want
    longer: list[Request] = field(default_factory=list)  # all that want more than one token


@dataclass(slots=True)
class Counters:
    """Since the start; they only grow."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    steps: int = 0


class Scheduler:
    """`running` is sorted by key, so its first is the oldest (or most urgent) and its last the victim.

    Progress: the first running request is never a victim, everybody behind it is, and what one
    request can ever hold fits in the pool (checked when it enters); so the first always proceeds.
    A younger one that finds no room keeps its blocks and sits the step out.
    """

    def __init__(
        self,
        plan: SchedulerPlan,
        pool: Pool,
        source: PrefixSource,
        *,
        watermark_blocks: int = 0,
        growth_blocks: int = 1,
        gates: Sequence[Gate] = (),
        limits: Sequence[Limit] = (),
        max_passed: int = MAX_PASSED,
    ) -> None:
        if plan.long_prefill_token_threshold and not plan.enable_chunked_prefill:
            raise ConfigError(
                f"long_prefill_token_threshold is {plan.long_prefill_token_threshold} and chunked prefill is off",
                fix="set the threshold to 0, or switch chunked prefill on",
            )
        self.plan_limits = plan
        self._pool = pool
        self._source = source
        self._watermark = watermark_blocks
        self._growth = growth_blocks  # what a running request takes when it grows
        self._gates = tuple(gates)
        own = (LongPrefill(plan.long_prefill_token_threshold),) if plan.long_prefill_token_threshold else ()
        self._limits: tuple[Limit, ...] = (*own, *limits)
        # Limits that are not asked about single tokens cost nothing in steps that only decode.
        self._asked_from = min((limit.least for limit in self._limits), default=2)
        self._rests_until = 0  # the step in which waiting requests get a share again
        self._max_passed = max_passed
        self.waiting = WaitingLine()
        self.deferred: deque[Request] = deque()  # a gate said SKIP
        self.running: list[Request] = []
        self._free_slots = list(range(plan.max_num_seqs - 1, -1, -1))
        self._removed: list[int] = []  # slots to report with the next plan
        self.failed: list[tuple[Request, str]] = []  # refused by a gate for good, and why
        self.counters = Counters()

    # ---- in and out ---------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.deferred)

    def add(self, request: Request) -> None:
        self.waiting.push(request)
        self._rests_until = 0

    def finish(self, request: Request) -> None:
        """The request leaves, wherever it is. Rows of it in flight are void from now on."""
        was = request.state
        request.state = State.FINISHED
        if was is State.RUNNING:
            self._vacate(request)
        elif was is not State.FINISHED:
            try:
                self.deferred.remove(request)
            except ValueError:
                self.waiting.discard(request)

    def _vacate(self, request: Request) -> None:
        if self.running[-1] is request:
            self.running.pop()
        else:
            self.running.remove(request)
        self._pool.release(request)
        self._removed.append(request.slot)
        self._free_slots.append(request.slot)
        self._rests_until = 0
        request.slot = -1
        request.computed = 0

    def _preempt(self, request: Request) -> None:
        counters, record = self.counters, request.record
        lost = request.computed
        self._vacate(request)
        request.state = State.PREEMPTED
        counters.preemptions += 1
        record.num_preemptions += 1
        self.waiting.push(request)
        logger.info(
            "preempted %s: %d computed tokens given up, %d running, %d waiting, preemption %d of it",
            request.id,
            lost,
            len(self.running),
            self.num_waiting,
            record.num_preemptions,
        )

    def preempt_all(self) -> None:
        """Everything running waits again and holds nothing."""
        while self.running:
            self._preempt(self.running[-1])

    def head(self) -> Request | None:
        """The waiting request whose turn is next."""
        return min(self.waiting, key=_by_key, default=None)

    # ---- a step -------------------------------------------------------------------------------

    def plan(self, now: float) -> Step | None:
        """The next step, or None when nobody can compute anything. The caller submits what it gets."""
        draft = _Draft(budget=self.plan_limits.max_num_batched_tokens)
        if self._continue_running(draft):
            self._admit(draft, now)
        if not draft.slots:
            return None
        self.counters.steps += 1
        removed, self._removed = self._removed, []
        plan = StepPlan(
            step=self.counters.steps,
            removed=removed,
            added=draft.added,
            new_blocks=draft.new_blocks,
            slots=draft.slots,
            counts=draft.counts,
            samples=draft.samples,
        )
        draft.load.rows = len(draft.rows)
        num_tokens = self.plan_limits.max_num_batched_tokens - draft.budget
        return Step(plan, draft.rows, num_tokens, draft.load)

    def _continue_running(self, draft: _Draft) -> bool:
        """Oldest first. False when blocks ran short: then nobody is admitted in this step."""
        running, has_room = self.running, True
        i = 0
        while i < len(running) and draft.budget > 0:
            request = running[i]
            i += 1
            known = len(request.tokens) + request.drawn
            if known >= request.end:
                continue  # its last token is on the way
            count = known - request.computed
            if count > 1 or self._asked_from <= 1:
                if not draft.is_known:
                    self._look_ahead(draft, i - 1)
                if count > 1:
                    draft.num_behind -= count
                count = self._grant(request, count, request.computed, draft)
                if count <= 0:
                    continue
            reach = request.computed + count
            if (
                reach == known
                and count == 1
                and request.high_water < reach <= request.room
                and not request.promised
            ):
                self._decode(request, reach, draft)
                continue
            if reach > request.room and not self._make_room(request, reach, draft):
                has_room = False
                continue
            self._schedule(request, count, draft)
        return has_room

    def _look_ahead(self, draft: _Draft, start: int) -> None:
        """What the running requests from the `start`th on want of this step."""
        draft.is_known, load = True, draft.load
        for request in self.running[start:]:
            known = len(request.tokens) + request.drawn
            want = known - request.computed
            if known >= request.end:
                continue
            if want > 1:
                draft.num_behind += want
                draft.longer.append(request)
            else:
                draft.num_to_come += 1
                load.singles += 1
                load.seen += known

    def _view(self, request: Request | None, context: int, draft: _Draft) -> StepView:
        others = len(self.running) + self.num_waiting
        taken = len(self.running)
        if request is not None:
            if request.state is State.RUNNING:
                others -= 1
            else:
                taken += 1
        behind = draft.num_behind
        if taken < self.plan_limits.max_num_seqs and self.counters.steps >= self._rests_until:
            behind += self.waiting.num_tokens
        draft.load.rows = len(draft.rows) + draft.num_to_come
        return StepView(others, draft.budget, context, draft.load, draft.num_to_come, behind)

    def _grant(self, request: Request, want: int, context: int, draft: _Draft) -> int:
        count = min(want, draft.budget)
        if self._limits:
            view = self._view(request, context, draft)
            for limit in self._limits:
                if count >= limit.least:
                    count = min(count, limit.grant(request, count, view))
        limits = self.plan_limits
        if count < want and not limits.enable_chunked_prefill and want <= limits.max_num_batched_tokens:
            return 0  # whole, in a later step; only recomputation can be longer than any step
        return count

    def _make_room(self, request: Request, reach: int, draft: _Draft) -> bool:
        """Blocks for a running request, from the youngest if need be, never from an older one."""
        while True:
            new = self._pool.take(request, reach)
            if new is not None:
                draft.new_blocks += [(request.slot, g, blocks) for g, blocks in enumerate(new)]
                return True
            victim = self.running[-1]
            if victim is request:
                return False
            self._preempt(victim)

    def _decode(self, request: Request, reach: int, draft: _Draft) -> None:
        """`_schedule` for the usual row: the one next token of a stream, for which everything is there."""
        request.high_water = request.computed = reach
        request.drawn += 1
        draft.budget -= 1
        if draft.num_to_come:
            draft.num_to_come -= 1
        else:
            draft.load.singles += 1
            draft.load.seen += reach
        draft.slots.append(request.slot)
        draft.counts.append(1)
        draft.samples.append(True)
        draft.rows.append((request, request.epoch, True))
        if reach >= request.publish_at <= len(request.tokens):
            self._pool.publish(request)

    def _schedule(self, request: Request, count: int, draft: _Draft) -> None:
        reach = request.computed + count
        known = len(request.tokens)
        draws = reach == known + request.drawn
        if reach <= request.high_water:
            repeated = count
        else:
            repeated = max(0, request.high_water - request.computed)
            request.high_water = reach
        if repeated:
            request.record.num_recomputed += repeated
            self.counters.recomputed_tokens += repeated
        request.computed = reach
        draft.budget -= count
        load = draft.load
        if count > 1:
            load.tokens += count
            load.pairs += count * reach - count * (count - 1) // 2
        elif draft.num_to_come:
            draft.num_to_come -= 1
        else:
            load.singles += 1
            load.seen += reach
        draft.slots.append(request.slot)
        draft.counts.append(count)
        draft.samples.append(draws)
        draft.rows.append((request, request.epoch, draws))
        if draws:
            request.drawn += 1
            if request.promised:
                self._pool.settle(request)
        if reach >= request.publish_at <= known:
            self._pool.publish(request)

    # ---- admission ----------------------------------------------------------------------------

    def _admit(self, draft: _Draft, now: float) -> None:
        self._ask_deferred()
        draft.num_to_come = 0
        is_full = False
        held: list[Request] = []  # popped, not admitted: they go back in line
        too_big: list[Request] = []
        max_seqs = self.plan_limits.max_num_seqs
        while draft.budget > 0 and len(self.running) < max_seqs and len(held) < MAX_LOOKED_AT:
            if self._is_full(draft):
                is_full = True
                break
            request = self.waiting.pop()
            if request is None:
                break
            verdict = self._verdict(request)
            if verdict is Verdict.SKIP:
                self.deferred.append(request)
                continue
            if verdict is Verdict.FAIL:
                self._fail(request)
                continue
            held.append(request)
            if verdict is Verdict.STOP:
                break
            if request.drawn:
                break  # preempted while a token of it is in flight: that one arrives first
            if self._is_coming(request, draft):
                continue
            match = self._source.match(request)
            if self._is_coming(request, draft):
                continue
            want = len(request.tokens) - match.num_tokens
            count = self._grant(request, want, match.num_tokens, draft)
            if count <= 0:
                if not self.plan_limits.enable_chunked_prefill:
                    break
                continue
            if not self._fits(request, match, count):
                if request.num_passed >= self._max_passed or request.state is State.PREEMPTED:
                    break  # it holds the line: passed often enough, or older than all who wait
                too_big.append(request)
                continue
            held.pop()
            self._start(request, match, count, draft, now)
            for passed in too_big:
                passed.num_passed += 1
            if any(passed.num_passed >= self._max_passed for passed in too_big):
                break
        if held and draft.budget > 0 and not is_full:
            self._rests_until = self.counters.steps + STEPS_OF_REST
        for request in held:
            self.waiting.push(request)

    def _is_full(self, draft: _Draft) -> bool:
        if not (self._limits and draft.slots and len(self.waiting)):
            return False
        view = self._view(None, 0, draft)
        return any(limit.is_full(view) for limit in self._limits)

    def _is_coming(self, request: Request, draft: _Draft) -> bool:
        """Somebody computes what this one could reuse: it waits rather than compute it as well."""
        return any(self._source.is_coming(request, other) for other in draft.longer)

    def _ask_deferred(self) -> None:
        for _ in range(min(len(self.deferred), MAX_LOOKED_AT)):
            request = self.deferred.popleft()
            if self._verdict(request) is Verdict.SKIP:
                self.deferred.append(request)
            else:
                self.waiting.push(request)

    def _fail(self, request: Request) -> None:
        """It has left the line already, and holds nothing."""
        gate = next(g for g in self._gates if g.check(request) is Verdict.FAIL)
        request.state = State.FINISHED
        self.failed.append((request, cast(RefusingGate, gate).problem(request)))

    def _verdict(self, request: Request) -> Verdict:
        for gate in self._gates:
            verdict = gate.check(request)
            if verdict is not Verdict.GO:
                return verdict
        return Verdict.GO

    def _fits(self, request: Request, match: Match, count: int) -> bool:
        keep_free = 0
        if self.running:
            # Who was preempted before comes back later each time, when the others have room to grow:
            # else it would be their victim again at once, and its prompt computed for nothing.
            growth = self._growth * len(self.running) * request.record.num_preemptions
            keep_free = self._watermark + growth
        return self._pool.fits(request, match, self._to_reserve(request, match, count), keep_free)

    def _to_reserve(self, request: Request, match: Match, count: int) -> int:
        return len(request.tokens) if self.plan_limits.reserve_full_prompt else match.num_tokens + count

    def _start(self, request: Request, match: Match, count: int, draft: _Draft, now: float) -> None:
        record, counters = request.record, self.counters
        if request.state is State.PREEMPTED:
            request.epoch += 1
            request.prompt_scores.clear()
        if not record.scheduled:
            record.scheduled = now
            record.prefix_miss = match.miss
            record.num_cached = min(match.num_tokens, request.num_prompt)
            if match.miss != "disabled":
                counters.prefix_queries += request.num_prompt
                counters.prefix_hits += record.num_cached
        self._pool.admit(request, match, self._to_reserve(request, match, count))
        request.computed = match.num_tokens
        request.num_passed = 0
        if request.room < request.computed + count:
            taken = self._pool.take(request, request.computed + count)
            assert taken is not None, "a request that fits was given no blocks"
        request.state = State.RUNNING
        request.slot = self._free_slots.pop()
        running = self.running
        if running and request.key < running[-1].key:
            insort(running, request, key=_by_key)
        else:
            running.append(request)
        draft.added.append(
            SlotAdd(
                slot=request.slot,
                request_id=request.wire.id,
                token_ids=request.tokens[:],  # a snapshot: a worker in a thread reads it while ours grows
                num_prompt=request.num_prompt,
                computed=request.computed,
                blocks=[[0 if b == NULL else b for b in table] for table in request.tables],
                params=request.wire.params,
                seed=request.wire.seed,
                stop_ids=[*request.wire.eos_ids, *request.wire.params.stop_token_ids],
            )
        )
        self._schedule(request, count, draft)
        if request.pending > 1:
            draft.longer.append(request)
