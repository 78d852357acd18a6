"""Grammars of the slots: which tokens may follow, for every row that draws.

Owns a matcher per slot that has a grammar. A mask is made right before its step, from the slot's own
tokens: so a request that was preempted, or moved to a new engine, gets the masks that it would have had.
Where it can, a slot draws without its mask, and the mask is made only when the token does not fit (docs/adr/0010).
A matcher that fails ends its own request (`problems`); it never raises into the step.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.executors.base import Redraws
from octavo.grammar.base import Accepts, GrammarError, Matcher
from octavo.grammar.store import GrammarStore
from octavo.wire.messages import SlotAdd
from octavo.worker.sampling import SamplingSlots, set_bits
from octavo.worker.slots import Slots

log = logging.getLogger(__name__)

I32 = npt.NDArray[np.int32]
U32 = npt.NDArray[np.uint32]


@dataclass(slots=True)
class _Held:
    matcher: Matcher
    asked: Accepts | None  # the same, if it may draw before its mask is made
    taken: int  # output tokens that the matcher has seen
    ends: list[int]  # tokens that end the answer
    allowed: U32 | None  # allowed_token_ids, which hold for whatever is not the end of a complete answer
    row: int  # of the masks
    tries: bool = False  # it does, in this step: the sampler does not see the mask


class GrammarSlots:
    """`complete`: slots whose grammar allows nothing more, for whom the end is never banned."""

    def __init__(self, store: GrammarStore | None, sampling: SamplingSlots) -> None:
        self._store = store
        self._sampling = sampling
        self._held: dict[int, _Held] = {}
        self.problems: dict[int, str] = {}
        self.refused: set[int] = set()  # those of `problems` that are the grammar's own
        self.num_masks = 0
        self.seconds = 0.0  # of making masks and of checking tokens

    def add(self, add: SlotAdd) -> None:
        """After `SamplingSlots.add`. Output that the slot has already is taken by the matcher."""
        spec = add.params.structured
        if spec is None:
            return
        slot, sampling = add.slot, self._sampling
        try:
            if self._store is None:
                raise GrammarError("this engine has no tokenizer to compile grammars with")
            matcher = self._store.matcher(spec)
        except GrammarError as error:
            self.problems[slot] = error.message
            return
        row = int(sampling.mask_row[slot])
        allowed = None if row < 0 else sampling.masks.array[row].copy()
        if row < 0:
            sampling.mask_row[slot] = row = sampling.masks.take()
        may_ask = allowed is None and sampling.draws_first(slot)
        asked = matcher if may_ask and isinstance(matcher, Accepts) else None
        self._held[slot] = _Held(matcher, asked, 0, add.stop_ids, allowed, row)
        self._take(slot, add.token_ids[add.num_prompt :])

    def remove(self, slot: int) -> None:
        """After `SamplingSlots.remove`, which has not seen the row of a slot that tries."""
        held = self._held.pop(slot, None)
        if held is not None and held.tries:
            self._sampling.masks.give(held.row)
        self.problems.pop(slot, None)
        self.refused.discard(slot)
        self._sampling.complete.discard(slot)

    @property
    def any_held(self) -> bool:
        return bool(self._held)

    @property
    def any_masked(self) -> bool:
        """Whether a slot's mask has to be made before the next step."""
        return any(not held.tries for held in self._held.values())

    def fill(self, slots: I32, state: Slots, *, may_try: bool = False) -> None:
        """Masks of those `slots` that have a grammar, into the sampler's rows; with `may_try` only of those that
        cannot draw first, and `check` has to follow the draws."""
        if not self._held:
            return
        began = time.perf_counter()
        drawing = [slot for slot in slots.tolist() if slot in self._held and slot not in self.problems]
        masked = []
        for slot in drawing:
            held = self._held[slot]
            first = int(state.num_prompt[slot]) + held.taken
            self._take(slot, state.tokens[slot, first : state.known[slot]].tolist())
            held.tries = may_try and held.asked is not None and slot not in self.problems
            self._sampling.mask_row[slot] = -1 if held.tries else held.row
            if not held.tries:
                masked.append(slot)
        self._fill(masked)
        self.seconds += time.perf_counter() - began

    def check(self, slots: list[int], tokens: list[int], executor: Redraws) -> None:
        """Replaces what the slots that try have drawn and their masks would not have allowed, here and in the
        executor; by -1 where the slot has a problem. `tokens[i]` was drawn for `slots[i]`, sampling row i."""
        if not self._held:
            return
        began = time.perf_counter()
        forced: dict[int, int] = {}  # row -> token
        refused: list[int] = []
        for row, (slot, token) in enumerate(zip(slots, tokens, strict=True)):
            held = self._held.get(slot)
            if held is None or not held.tries or token < 0 or slot in self.problems:
                continue
            wanted = self._judge(slot, token)
            if wanted is None:
                refused.append(row)
            elif wanted != token:
                forced[row] = tokens[row] = wanted
        if forced:
            executor.replace(list(forced), list(forced.values()))
        if refused:
            self._draw_again(slots, tokens, refused, executor)
        if self.problems:
            for row, slot in enumerate(slots):
                if slot in self.problems:
                    tokens[row] = -1
        self.seconds += time.perf_counter() - began

    def _judge(self, slot: int, token: int) -> int | None:
        """The token if the mask has it, another if the mask has nothing else, or None: to be drawn again. What
        is returned has been taken by the matcher, as by `_take`."""
        held = self._held[slot]
        matcher = held.asked
        assert matcher is not None
        try:
            forced = matcher.forced()
            if forced is not None:
                token = forced
            if token in held.ends:
                accepted = matcher.is_accepting
            else:
                accepted = matcher.accept(token)
        except Exception as error:
            self.problems[slot] = _cause(error)
            return token
        if accepted:
            held.taken += 1
            return token
        if matcher.problem is not None:  # a limit of the grammar's cost
            self.problems[slot] = matcher.problem
            self.refused.add(slot)
            return token
        return None

    def _draw_again(self, slots: list[int], tokens: list[int], rows: list[int], executor: Redraws) -> None:
        self._fill([slots[row] for row in rows])
        rows = [row for row in rows if slots[row] not in self.problems]
        if not rows:
            return
        mask_rows = [self._held[slots[row]].row for row in rows]
        for row, token in zip(
            rows, executor.redraw(rows, mask_rows, self._sampling.masks.array), strict=True
        ):
            tokens[row] = token
            if token >= 0:
                self._take(slots[row], [token])

    def _fill(self, drawing: list[int]) -> None:
        """Makes the masks of slots."""
        if not drawing:
            return
        rows = [self._held[slot].row for slot in drawing]
        matchers = [self._held[slot].matcher for slot in drawing]
        masks = self._sampling.masks.array
        try:
            from octavo.grammar.batch import fill_all  # the first grammar pays for the backend's import

            fill_all(matchers, masks, rows)
        except Exception:
            log.exception("masks of %d rows failed together; one by one", len(rows))
            self._one_by_one(drawing, matchers, masks, rows)
        for slot, row in zip(drawing, rows, strict=True):
            try:
                self._finish(slot, masks[row])
            except Exception as error:
                self.problems[slot] = _cause(error)
        self.num_masks += len(rows)

    def _one_by_one(self, slots: list[int], matchers: list[Matcher], masks: U32, rows: list[int]) -> None:
        for slot, matcher, row in zip(slots, matchers, rows, strict=True):
            try:
                matcher.fill(masks[row])
            except Exception as error:
                self.problems[slot] = _cause(error)

    def _take(self, slot: int, tokens: list[int]) -> None:
        held = self._held[slot]
        if not tokens:
            return
        try:
            count = held.matcher.advance(tokens)
        except Exception as error:
            self.problems[slot] = _cause(error)
            return
        held.taken += len(tokens)
        # A step that was planned before the end was known draws once more: nobody reads it.
        if count < len(tokens) and tokens[count] not in held.ends:
            cause = held.matcher.problem
            if cause is not None:  # a limit of the grammar's cost: the token was allowed
                self.problems[slot] = cause
                self.refused.add(slot)
            else:
                self.problems[slot] = f"token {tokens[count]} does not fit the grammar: it does not follow"

    def _finish(self, slot: int, row: U32) -> None:
        """Ends, allowed_token_ids, and what the matcher has to complain about."""
        held = self._held[slot]
        matcher = held.matcher
        if slot not in self.problems and matcher.problem is not None:
            self.problems[slot] = matcher.problem
            self.refused.add(slot)
        if slot in self.problems:
            row[:] = 0
            return
        is_accepting, is_complete = matcher.is_accepting, matcher.is_terminated
        if held.allowed is not None:
            row &= held.allowed
        if is_accepting:
            ends = [i for i in held.ends if is_complete or held.allowed is None or _has(held.allowed, i)]
            set_bits(row, ends)
        if is_complete:
            self._sampling.complete.add(slot)


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


def _has(row: U32, token: int) -> bool:
    return bool(row[token >> 5] >> np.uint32(token & 31) & np.uint32(1))
