"""Grammars of the slots: which tokens may follow, for every row that draws.

Owns a matcher per slot that has a grammar. A mask is made right before its step, from the slot's own
tokens: so a request that was preempted, or moved to a new engine, gets the masks that it would have had.
A matcher that fails ends its own request (`problems`); it never raises into the step.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.grammar.base import GrammarError, Matcher
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
    taken: int  # output tokens that the matcher has seen
    ends: list[int]  # tokens that end the answer
    allowed: U32 | None  # allowed_token_ids, which hold for whatever is not the end of a complete answer


class GrammarSlots:
    """`complete`: slots whose grammar allows nothing more, for whom the end is never banned."""

    def __init__(self, store: GrammarStore | None, sampling: SamplingSlots) -> None:
        self._store = store
        self._sampling = sampling
        self._held: dict[int, _Held] = {}
        self.problems: dict[int, str] = {}
        self.refused: set[int] = set()  # those of `problems` that are the grammar's own
        self.num_masks = 0
        self.seconds = 0.0  # of making masks

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
            sampling.mask_row[slot] = sampling.masks.take()
        self._held[slot] = _Held(matcher, 0, add.stop_ids, allowed)
        self._take(slot, add.token_ids[add.num_prompt :])

    def remove(self, slot: int) -> None:
        self._held.pop(slot, None)
        self.problems.pop(slot, None)
        self.refused.discard(slot)
        self._sampling.complete.discard(slot)

    @property
    def any_held(self) -> bool:
        return bool(self._held)

    def fill(self, slots: I32, state: Slots) -> None:
        """Masks of those `slots` that have a grammar, into the sampler's rows."""
        if not self._held:
            return
        began = time.perf_counter()
        rows: list[int] = []
        matchers: list[Matcher] = []
        drawing = [slot for slot in slots.tolist() if slot in self._held and slot not in self.problems]
        for slot in drawing:
            held = self._held[slot]
            first = int(state.num_prompt[slot]) + held.taken
            self._take(slot, state.tokens[slot, first : state.known[slot]].tolist())
            rows.append(int(self._sampling.mask_row[slot]))
            matchers.append(held.matcher)
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
        self.seconds += time.perf_counter() - began

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
