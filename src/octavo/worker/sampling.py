"""What each slot wants from the sampler, and the arrays that say so for one step.

Owns the per-slot sampling state (scalars, penalty counts, masks, biases); rows of the sampler's
arrays are gathered from it. Knows no kernel. Everything here is rebuilt in `add`: state of an
earlier request in the slot cannot reach a later one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.executors.base import ROW_SCALARS, SamplingBatch
from octavo.wire.messages import SlotAdd
from octavo.wire.sampling import SamplingParams
from octavo.worker.slots import Slots

I32 = npt.NDArray[np.int32]
_NEG_INF = float("-inf")
_versions = count(1)  # of row scalars, whichever slots they are of
_NO_IDS: I32 = np.zeros(0, np.int32)


@dataclass(slots=True)
class _Scalars:
    rows: bytes  # the slots that they are of
    version: int
    arrays: dict[str, npt.NDArray[Any]]


class RowPool:
    """Rows of a matrix `[rows, width]` lent to slots; grows by doubling, rows are zeroed when lent."""

    def __init__(self, width: int, dtype: npt.DTypeLike) -> None:
        self.array = np.zeros((0, width), dtype)
        self._free: list[int] = []

    def take(self) -> int:
        if not self._free:
            rows, width = self.array.shape
            grown = np.zeros((max(1, rows * 2), width), self.array.dtype)
            grown[:rows] = self.array
            self.array = grown
            self._free = list(range(len(grown) - 1, rows - 1, -1))
        row = self._free.pop()
        self.array[row] = 0
        return row

    def give(self, row: int) -> None:
        self._free.append(row)


def set_bits(row: npt.NDArray[np.uint32], ids: npt.ArrayLike) -> None:
    """Sets bit `id & 31` of word `id >> 5` for every id."""
    index = np.asarray(ids, np.int64)
    np.bitwise_or.at(row, index >> 5, np.uint32(1) << (index & 31).astype(np.uint32))


class SamplingSlots:
    """Sampling state of every slot. `[max_slots]` arrays for scalars; pools for the rare, wide ones."""

    def __init__(self, max_slots: int, vocab_size: int, *, logprobs_mode: str = "raw_logprobs") -> None:
        words = -(-vocab_size // 32)
        self.vocab_size = vocab_size
        self.processed_logprobs = logprobs_mode.startswith("processed")
        self.reports_logits = logprobs_mode.endswith("logits")
        self.temperature = np.zeros(max_slots, np.float32)
        self.top_k = np.zeros(max_slots, np.int32)
        self.top_p = np.ones(max_slots, np.float32)
        self.min_p = np.zeros(max_slots, np.float32)
        self.seed = np.zeros(max_slots, np.uint64)
        self.repetition = np.ones(max_slots, np.float32)
        self.presence = np.zeros(max_slots, np.float32)
        self.frequency = np.zeros(max_slots, np.float32)
        self.num_logprobs = np.full(max_slots, -1, np.int32)
        self.penalty_row = np.full(max_slots, -1, np.int32)
        self.mask_row = np.full(max_slots, -1, np.int32)
        self.counts = RowPool(vocab_size, np.int32)
        self.seen = RowPool(words, np.uint32)
        self.masks = RowPool(words, np.uint32)
        self._bias: dict[int, dict[int, float]] = {}  # slot -> logit_bias
        self._stops: dict[int, tuple[int, list[int]]] = {}  # slot -> (min_tokens, ids masked until then)
        self._bad_words: dict[int, list[list[int]]] = {}
        self.complete: set[int] = set()  # slots whose grammar allows nothing but the end
        self._chosen: dict[int, I32] = {}  # slot -> logprob_token_ids
        self._kept: _Scalars | None = None  # of the last step's rows

    def add(self, add: SlotAdd) -> None:
        slot, p = add.slot, add.params
        self._kept = None
        greedy = p.is_greedy
        self.temperature[slot] = 0.0 if greedy else max(p.temperature, 0.01)
        self.top_k[slot] = 0 if greedy else min(max(p.top_k, 0), self.vocab_size)
        self.top_p[slot] = 1.0 if greedy else p.top_p
        self.min_p[slot] = 0.0 if greedy else p.min_p
        self.seed[slot] = np.uint64(add.seed & 0xFFFFFFFFFFFFFFFF)
        self.repetition[slot] = p.repetition_penalty
        self.presence[slot] = p.presence_penalty
        self.frequency[slot] = p.frequency_penalty
        self._add_logprobs(slot, p)
        self._add_penalties(slot, add, p)
        self._add_restrictions(slot, add, p)

    def _add_logprobs(self, slot: int, p: SamplingParams) -> None:
        wanted = -1 if p.logprobs is None else self.vocab_size if p.logprobs == -1 else p.logprobs
        if p.logprob_token_ids:
            self._chosen[slot] = np.asarray(p.logprob_token_ids, np.int32)
            wanted = 0
        self.num_logprobs[slot] = wanted

    def _add_penalties(self, slot: int, add: SlotAdd, p: SamplingParams) -> None:
        if p.repetition_penalty == 1.0 and p.presence_penalty == 0.0 and p.frequency_penalty == 0.0:
            return
        row = self.counts.take()
        if self.seen.take() != row:  # both pools lend in the same order, so one index serves both
            raise RuntimeError("penalty rows out of step")
        self.penalty_row[slot] = row
        set_bits(self.seen.array[row], add.token_ids[: add.num_prompt])
        np.add.at(self.counts.array[row], np.asarray(add.token_ids[add.num_prompt :], np.int64), 1)

    def _add_restrictions(self, slot: int, add: SlotAdd, p: SamplingParams) -> None:
        if p.allowed_token_ids:
            self.mask_row[slot] = row = self.masks.take()
            set_bits(self.masks.array[row], p.allowed_token_ids)
        if p.logit_bias:
            self._bias[slot] = p.logit_bias
        if p.min_tokens > 0 and add.stop_ids:
            self._stops[slot] = (p.min_tokens, add.stop_ids)
        if p.bad_words_ids:
            self._bad_words[slot] = p.bad_words_ids

    def remove(self, slot: int) -> None:
        if (row := int(self.penalty_row[slot])) >= 0:
            self.counts.give(row)
            self.seen.give(row)
            self.penalty_row[slot] = -1
        if (row := int(self.mask_row[slot])) >= 0:
            self.masks.give(row)
            self.mask_row[slot] = -1
        self._bias.pop(slot, None)
        self._stops.pop(slot, None)
        self._bad_words.pop(slot, None)
        self._chosen.pop(slot, None)

    def drawn(self, slot: int, token: int) -> None:
        """A token was drawn for the slot: penalties see it from the next draw on."""
        if (row := self.penalty_row[slot]) >= 0:
            self.counts.array[row, token] += 1

    def drawn_all(self, slots: I32, tokens: I32) -> None:
        """The same for many: `[S]` slots, each once, and their tokens."""
        rows = self.penalty_row[slots]
        counted = rows >= 0
        if counted.any():
            self.counts.array[rows[counted], tokens[counted]] += 1

    def is_steady(self, slots: I32) -> bool:
        """Whether what `gather` gives for `slots` stays the same while they draw, but for the positions, and no
        log-probability is asked for."""
        return (
            not (self._bias or self._stops or self._bad_words or self._chosen)
            and bool((self.num_logprobs[slots] < 0).all())
            and bool((self.penalty_row[slots] < 0).all())
        )

    def draws_first(self, slot: int) -> bool:
        """Whether a mask may come after the draw (docs/adr/0010): nothing else edits or cuts what the slot draws from,
        and no log-probability is asked for. A greedy slot has no cuts."""
        return (
            self.penalty_row[slot] < 0
            and self.num_logprobs[slot] < 0
            and self.top_k[slot] == 0
            and self.top_p[slot] >= 1
            and self.min_p[slot] <= 0
            and not any(slot in held for held in (self._bias, self._stops, self._bad_words, self._chosen))
        )

    def gather(self, slots: I32, positions: npt.NDArray[np.int64], state: Slots) -> SamplingBatch:
        """The sampler's arrays for `slots` `[S]`, drawing the tokens at `positions` `[S]`."""
        kept = self._scalars(slots)
        start, ids, values = self._biases(slots, state)
        chosen_start, chosen_ids = self._chosen_of(slots)
        return SamplingBatch(
            **kept.arrays,
            position=positions,
            penalty_row=self.penalty_row[slots],
            counts=self.counts.array,
            seen=self.seen.array,
            bias_start=start,
            bias_ids=ids,
            bias_values=values,
            mask_row=self.mask_row[slots],
            masks=self.masks.array,
            processed_logprobs=self.processed_logprobs,
            reports_logits=self.reports_logits,
            chosen_start=chosen_start,
            chosen_ids=chosen_ids,
            version=kept.version,
        )

    def _scalars(self, slots: I32) -> _Scalars:
        """What only `add` changes, of the rows of `slots`: as in the step before where they are the same."""
        rows = slots.tobytes()
        kept = self._kept
        if kept is None or kept.rows != rows:
            arrays = {name: getattr(self, name)[slots] for name in ROW_SCALARS}
            kept = self._kept = _Scalars(rows, next(_versions), arrays)
        return kept

    def _chosen_of(self, slots: I32) -> tuple[I32, I32]:
        """Slices per row, and the ids that rows want logprobs of."""
        if not self._chosen:
            return _NO_IDS, _NO_IDS
        each = [self._chosen.get(slot, _NO_IDS) for slot in slots.tolist()]
        start = np.zeros(len(slots) + 1, np.int32)
        np.cumsum([len(ids) for ids in each], out=start[1:])
        return start, np.concatenate([_NO_IDS, *each])

    def _biases(self, slots: I32, state: Slots) -> tuple[I32, I32, npt.NDArray[np.float32]]:
        """Additive biases as slices per row: logit_bias, then bans (-inf)."""
        start = np.zeros(len(slots) + 1, np.int32)
        if not (self._bias or self._stops or self._bad_words):
            return start, np.zeros(0, np.int32), np.zeros(0, np.float32)
        ids: list[int] = []
        values: list[float] = []
        for i, slot in enumerate(slots.tolist()):
            if bias := self._bias.get(slot):
                ids += bias.keys()
                values += bias.values()
            banned = self._banned(slot, state)
            ids += banned
            values += [_NEG_INF] * len(banned)
            start[i + 1] = len(ids)
        return start, np.asarray(ids, np.int32), np.asarray(values, np.float32)

    def _banned(self, slot: int, state: Slots) -> list[int]:
        banned: list[int] = []
        if slot in self._stops and slot not in self.complete:
            min_tokens, stop_ids = self._stops[slot]
            if state.known[slot] - state.num_prompt[slot] < min_tokens:
                banned += stop_ids
        if slot in self._bad_words:
            output = state.history(slot)[state.num_prompt[slot] :]
            for word in self._bad_words[slot]:
                prefix = word[:-1]
                if not prefix or (len(output) >= len(prefix) and output[-len(prefix) :].tolist() == prefix):
                    banned.append(word[-1])
        return banned
