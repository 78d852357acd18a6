"""One step: apply the plan to the slots, gather a batch, run the executor, scatter what was drawn.

Owns the order of these; knows neither how a batch is computed (executors) nor why it was planned
(core). Python work is per request, never per layer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.executors.base import F32, Redraws, Runs, RunsOn, SamplingBatch, StepBatch, StepOutput, nothing
from octavo.grammar.store import GrammarStore
from octavo.wire.messages import SlotAdd, StepPlan, StepResult, TokenLogprobs
from octavo.wire.sampling import SamplingParams
from octavo.worker.grammar import GrammarSlots
from octavo.worker.sampling import SamplingSlots
from octavo.worker.slots import Slots
from octavo.worker.steady import SteadyRows

log = logging.getLogger(__name__)

I32 = npt.NDArray[np.int32]
_NO_IDS: I32 = np.zeros(0, np.int32)


class StepRunner:
    """`execute` is called with every plan, in order, by one thread."""

    def __init__(
        self,
        executor: Runs,
        slots: Slots,
        sampling: SamplingSlots,
        store: GrammarStore | None = None,
    ) -> None:
        self.executor = executor
        self.slots = slots
        self.sampling = sampling
        self.grammars = GrammarSlots(store, sampling)
        self._broken: set[int] = set()  # slots whose parameters cannot act: they draw -1
        self._redraws = executor if isinstance(executor, Redraws) else None
        self._steady = SteadyRows(executor, slots, self._check) if isinstance(executor, RunsOn) else None

    def execute(self, plan: StepPlan, on_start: Callable[[], None] = nothing) -> StepResult:
        """`on_start`: see `Runs.run`; not called for a plan without rows."""
        started = time.perf_counter()
        if self._steady is not None:
            if self._steady.follows(plan):
                result = self._steady.run(plan, on_start)
                self._explain(plan.slots, result)
                result.elapsed_s = time.perf_counter() - started
                return result
            self._steady.forget()
        self._apply(plan)
        if not plan.slots:
            return StepResult(step=plan.step)
        rows = np.asarray(plan.slots, np.int32)  # [R] slots
        counts = np.asarray(plan.counts, np.int32)  # [R]
        samples = np.flatnonzero(plan.samples)  # [S] rows that draw
        batch, scored = self._gather(rows, counts, samples)
        output = self.executor.run(batch, on_start)
        if self.grammars.any_held:
            tokens = output.token_ids.tolist()
            self._check(rows[samples].tolist(), tokens)
            output.token_ids[:] = tokens
        self.slots.computed[rows] += counts
        result = StepResult(step=plan.step, token_ids=[[] for _ in plan.slots])
        self._scatter(rows, samples, batch.sampling, output, result)
        self._explain(rows[samples].tolist(), result)
        self._score(scored, output, result)
        self._keep(plan, rows, output)
        result.elapsed_s = time.perf_counter() - started
        return result

    def _check(self, slots: list[int], tokens: list[int]) -> None:
        """Tokens that were drawn before their mask and do not fit are drawn again."""
        if self._redraws is not None:
            self.grammars.check(slots, tokens, self._redraws)

    def _explain(self, slots: list[int], result: StepResult) -> None:
        """Why nothing could be drawn for some slots."""
        for slot in self.grammars.problems.keys() & set(slots) if self.grammars.problems else ():
            result.problems[slot] = self.grammars.problems[slot]
            if slot in self.grammars.refused:
                result.refused.append(slot)

    def _keep(self, plan: StepPlan, rows: I32, output: StepOutput) -> None:
        """Remembers a step that the next one may take up as it is."""
        if (
            self._steady is not None
            and len(output.token_ids) == len(rows) == plan.num_tokens
            and not (self._broken or self.grammars.problems or self.grammars.any_masked)
            and not len(output.score_ranks)
            and output.token_ids.min() >= 0
            and self.sampling.is_steady(rows)
            and bool((self.slots.known[rows] == self.slots.computed[rows] + 1).all())  # none failed before
        ):
            self._steady.keep(plan, rows)

    def _apply(self, plan: StepPlan) -> None:
        for slot in plan.removed:
            self.slots.remove(slot)
            self.sampling.remove(slot)
            self.grammars.remove(slot)
            self._broken.discard(slot)
        for add in plan.added:
            self.slots.add(add)
            self._add_sampling(add)
        for slot, group, ids in plan.new_blocks:
            self.slots.extend(slot, group, ids)

    def _add_sampling(self, add: SlotAdd) -> None:
        """Parameters that the API should have refused end their own request, never the engine (law 4)."""
        try:
            self.sampling.add(add)
            self.grammars.add(add)
        except (ValueError, OverflowError, TypeError, IndexError):
            log.exception("request %s has sampling parameters that cannot act", add.request_id)
            self.sampling.remove(add.slot)
            self.sampling.add(msgspec.structs.replace(add, params=SamplingParams(temperature=0.0), seed=0))
            self._broken.add(add.slot)

    def _gather(
        self, rows: I32, counts: I32, samples: npt.NDArray[np.int64]
    ) -> tuple[StepBatch, list[_Scored]]:
        s = self.slots
        context = s.computed[rows]
        starts, positions, token_ids = self._tokens(rows, counts, context)
        width = int(s.num_blocks[:, rows].max())
        scored = self._to_score(rows, counts, starts, context)
        score_tokens = np.concatenate([x.tokens for x in scored]) if scored else _NO_IDS
        score_targets = np.concatenate([x.targets for x in scored]) if scored else _NO_IDS
        drawing = rows[samples]
        may_try = self._redraws is not None and len(drawing) <= self._redraws.most_redrawn and not scored
        self.grammars.fill(drawing, s, may_try=may_try)
        batch = StepBatch(
            token_ids=token_ids,
            positions=positions,
            row_starts=starts,
            context_lens=context,
            block_tables=s.tables[:, rows, :width],
            sample_tokens=starts[samples + 1] - 1,
            sampling=self.sampling.gather(drawing, (context + counts)[samples].astype(np.int64), s),
            score_tokens=score_tokens,
            score_targets=score_targets,
            score_top=max((x.top for x in scored), default=0),
        )
        return batch, scored

    def _tokens(self, rows: I32, counts: I32, context: I32) -> tuple[I32, I32, I32]:
        """Row starts `[R + 1]`, positions and ids `[T]` of the tokens that the step computes."""
        s = self.slots
        starts = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(counts, out=starts[1:])
        if starts[-1] == len(rows):  # a token a row
            return starts, context, s.tokens[rows, context]
        # position of token t of row r = context[r] + (t - starts[r])
        positions = np.arange(starts[-1], dtype=np.int32) + np.repeat(context - starts[:-1], counts)
        return starts, positions, s.tokens[np.repeat(rows, counts), positions]

    def _to_score(self, rows: I32, counts: I32, starts: I32, context: I32) -> list[_Scored]:
        """Rows whose request wants prompt_logprobs: token p of the prompt scores token p + 1."""
        scored: list[_Scored] = []
        if not self.slots.scored:
            return scored
        for i, slot in enumerate(rows.tolist()):
            params = self.slots.params[slot]
            if params is None or params.prompt_logprobs is None:
                continue
            first = int(context[i])
            last = min(first + int(counts[i]), int(self.slots.num_prompt[slot]) - 1)  # exclusive
            if first < last:
                begin = int(starts[i])
                top = params.prompt_logprobs
                scored.append(
                    _Scored(
                        slot,
                        np.arange(begin, begin + last - first, dtype=np.int32),
                        self.slots.tokens[slot, first + 1 : last + 1],
                        self.sampling.vocab_size if top == -1 else top,
                    )
                )
        return scored

    def _scatter(
        self,
        rows: I32,
        samples: npt.NDArray[np.int64],
        asked: SamplingBatch,
        out: StepOutput,
        result: StepResult,
    ) -> None:
        drawing = rows[samples]
        wanted = self.sampling.num_logprobs[drawing]
        any_logprobs = bool((wanted >= 0).any())
        if (
            not any_logprobs
            and not self._broken
            and not self.grammars.problems
            and out.token_ids.min(initial=0) >= 0
        ):
            self.slots.append_all(drawing, out.token_ids)
            self.sampling.drawn_all(drawing, out.token_ids)
            for row, token in zip(samples.tolist(), out.token_ids.tolist(), strict=True):
                result.token_ids[row].append(token)
            return
        if any_logprobs:
            result.logprobs = [None] * len(rows)
        for i, (row, slot, token) in enumerate(
            zip(samples.tolist(), drawing.tolist(), out.token_ids.tolist(), strict=True)
        ):
            if token < 0 or slot in self._broken or slot in self.grammars.problems:
                result.token_ids[row] = [-1]  # nothing can be drawn: the engine fails this request
                continue
            self.slots.append(slot, token)
            self.sampling.drawn(slot, token)
            result.token_ids[row] = [token]
            if any_logprobs and wanted[i] >= 0:
                ids, values = _beside(i, int(wanted[i]), asked, out)
                result.logprobs[row] = [
                    TokenLogprobs(token, float(out.logprobs[i]), int(out.ranks[i]), ids, values)
                ]

    def _score(self, scored: list[_Scored], out: StepOutput, result: StepResult) -> None:
        start = 0
        for item in scored:
            stop = start + len(item.tokens)
            result.prompt_logprobs[item.slot] = [
                TokenLogprobs(
                    int(target),
                    float(out.score_logprobs[p]),
                    int(out.score_ranks[p]),
                    *_listed(out.score_top_ids[p, : item.top], out.score_top_logprobs[p, : item.top]),
                )
                for p, target in zip(range(start, stop), item.targets, strict=True)
            ]
            start = stop


def _beside(row: int, count: int, asked: SamplingBatch, out: StepOutput) -> tuple[list[int], list[float]]:
    """Ids and logprobs beside the drawn token of a sampling row: those that it chose, or the best."""
    if len(asked.chosen_ids):
        chosen = slice(asked.chosen_start[row], asked.chosen_start[row + 1])
        if chosen.start < chosen.stop:
            return asked.chosen_ids[chosen].tolist(), out.chosen_logprobs[chosen].tolist()
    return _listed(out.top_ids[row, :count], out.top_logprobs[row, :count])


def _listed(ids: I32, values: F32) -> tuple[list[int], list[float]]:
    """Without the places (id -1) that are left when fewer tokens can be drawn than were asked for."""
    if len(ids) and ids[-1] < 0:
        count = int(np.count_nonzero(ids >= 0))
        ids, values = ids[:count], values[:count]
    return ids.tolist(), values.tolist()


class _Scored:
    """Prompt positions of one row that this step scores. `tokens` index the batch, `targets` are ids."""

    __slots__ = ("slot", "targets", "tokens", "top")

    def __init__(self, slot: int, tokens: I32, targets: I32, top: int) -> None:
        self.slot, self.tokens, self.targets, self.top = slot, tokens, targets, top
