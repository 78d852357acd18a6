"""Slots: one permanent row of state per live request, as structure-of-arrays.

Owns what a step gathers from: tokens, counters, block tables. Rows never move; a slot is rebuilt
from its `SlotAdd` whenever it is taken, so nothing of an earlier request can leak into a later one.

    0 <= computed <= known;   pending = known - computed

`computed` tokens have their KV written (or planned in a step that runs before the next one);
`known` counts the prompt and every token drawn so far, also those that the engine has not seen yet.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.wire.layout import KVLayout
from octavo.wire.messages import SlotAdd
from octavo.wire.sampling import SamplingParams

I32 = npt.NDArray[np.int32]


class Slots:
    """`max_len` is the model's context; a slot holds a few tokens more, for steps in flight."""

    def __init__(self, max_slots: int, max_len: int, layout: KVLayout) -> None:
        groups = len(layout.groups)
        blocks = -(-max_len // layout.block_size) + 1
        self.tokens: I32 = np.zeros((max_slots, max_len + 8), np.int32)
        self.known: I32 = np.zeros(max_slots, np.int32)
        self.computed: I32 = np.zeros(max_slots, np.int32)
        self.num_prompt: I32 = np.zeros(max_slots, np.int32)
        self.tables: I32 = np.zeros((groups, max_slots, blocks), np.int32)
        self.num_blocks: I32 = np.zeros((groups, max_slots), np.int32)
        self.params: list[SamplingParams | None] = [None] * max_slots
        self.scored: set[int] = set()  # slots whose prompt tokens are scored

    def add(self, add: SlotAdd) -> None:
        slot, known = add.slot, len(add.token_ids)
        self.tokens[slot, :known] = add.token_ids
        self.known[slot] = known
        self.computed[slot] = add.computed
        self.num_prompt[slot] = add.num_prompt
        self.num_blocks[:, slot] = 0
        for group, ids in enumerate(add.blocks):
            self.extend(slot, group, ids)
        self.params[slot] = add.params
        if add.params.prompt_logprobs is not None:
            self.scored.add(slot)

    def extend(self, slot: int, group: int, ids: list[int]) -> None:
        start = int(self.num_blocks[group, slot])
        self.tables[group, slot, start : start + len(ids)] = ids
        self.num_blocks[group, slot] = start + len(ids)

    def remove(self, slot: int) -> None:
        self.params[slot] = None
        self.scored.discard(slot)

    def append(self, slot: int, token: int) -> None:
        """A token was drawn for the slot."""
        self.tokens[slot, self.known[slot]] = token
        self.known[slot] += 1

    def append_all(self, slots: I32, tokens: I32) -> None:
        """The same for many: `[S]` slots, each once, and their tokens."""
        known = self.known[slots]
        self.tokens[slots, known] = tokens
        self.known[slots] = known + 1

    def history(self, slot: int) -> I32:
        """`[known]`: prompt and output."""
        return self.tokens[slot, : self.known[slot]]
