"""Steps whose rows are those of the step before, each one token further.

Most steps of a busy decode are so. Gathering their batch again costs as much Python as any other step's, 0.4 ms when
the step has emptied the caches; here the executor goes on with the batch that it has (`RunsOn`), and only what the plan
says is new is told to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from octavo.executors.base import RunsOn
from octavo.wire.messages import StepPlan, StepResult
from octavo.worker.slots import Slots

I32 = npt.NDArray[np.int32]


@dataclass(slots=True)
class _Batch:
    """What a plan has to say to be the next step of these rows."""

    slots: list[int]
    counts: list[int]
    samples: list[bool]
    rows: I32  # [R] slots
    places: dict[int, int]  # slot -> row
    drawn: list[list[int]] = field(default_factory=list)  # of each step [R], not in the slots yet


MOST_DRAWN = 128  # steps before the slots are brought up to date


class SteadyRows:
    """`keep` after a step that may be gone on with; then `run` what `follows` it, and `forget` before any other plan.

    The slots fall behind while the rows go on; `forget` brings them up to date.
    """

    def __init__(self, executor: RunsOn, slots: Slots, check: Callable[[list[int], list[int]], None]) -> None:
        """`check(slots, tokens)` may replace tokens that must not be drawn, by others or by -1."""
        self._executor = executor
        self._slots = slots
        self._check = check
        self._batch: _Batch | None = None

    def keep(self, plan: StepPlan, rows: I32) -> None:
        """The step computed and drew one token of each of `rows`, and the next draws take no other parameters."""
        places = {slot: i for i, slot in enumerate(plan.slots)}
        self._batch = _Batch(plan.slots, plan.counts, plan.samples, rows, places)

    def forget(self) -> None:
        kept, self._batch = self._batch, None
        if kept is not None:
            self._settle(kept)

    def _settle(self, kept: _Batch) -> None:
        """Drawn tokens go into the slots; a row that failed (-1) draws no more."""
        if not kept.drawn:
            return
        slots, rows, count = self._slots, kept.rows, len(kept.drawn)
        slots.computed[rows] += count
        tokens = np.asarray(kept.drawn, np.int32)  # [steps, R]
        kept.drawn = []
        known = slots.known[rows]
        at = rows, known + np.arange(count)[:, None]
        failed = tokens < 0  # in the last step only
        slots.tokens[at] = np.where(failed, slots.tokens[at], tokens)
        slots.known[rows] = known + count - failed[-1]

    def follows(self, plan: StepPlan) -> bool:
        kept = self._batch
        return (
            kept is not None
            and plan.slots == kept.slots
            and plan.counts == kept.counts
            and plan.samples == kept.samples
            and not (plan.removed or plan.added)
        )

    def run(self, plan: StepPlan, on_start: Callable[[], None]) -> StepResult:
        """`new_blocks` of the plan have not been applied yet."""
        kept, slots = self._batch, self._slots
        assert kept is not None
        blocks: list[tuple[int, int, int, list[int]]] = []
        for slot, group, ids in plan.new_blocks:
            if (row := kept.places.get(slot)) is not None:
                blocks.append((row, group, int(slots.num_blocks[group, slot]), ids))
            slots.extend(slot, group, ids)
        tokens = self._executor.run_on(blocks, on_start)
        self._check(kept.slots, tokens)
        kept.drawn.append(tokens)
        if min(tokens) < 0:  # nothing can be drawn for a row: the engine fails its request
            self.forget()
        elif len(kept.drawn) == MOST_DRAWN:
            self._settle(kept)
        return StepResult(step=plan.step, token_ids=[[token] for token in tokens])
