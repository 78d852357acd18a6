"""A request inside the engine: its tokens, how far it is, what it holds.

Owns state and its algebra. Does not know the queue it is in, nor why it is scheduled or stopped.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from octavo.core.repetition import repetition_of
from octavo.wire.messages import EngineRequest, RequestRecord, TokenLogprobs

if TYPE_CHECKING:
    from octavo.core.kv.prefix import BlockKey, ExtraKeys, Node


class State(IntEnum):
    """WAITING -> RUNNING -> FINISHED; RUNNING -> PREEMPTED -> RUNNING; any -> FINISHED."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2  # waits again, after everything it held was taken
    FINISHED = 3


class Request:
    """The algebra, true between any two calls of the engine:

        known    = len(tokens)            prompt, forced and drawn tokens that the engine has seen
        drawn    = tokens that steps in flight are drawing: real, but only the worker knows them yet
        computed = leading tokens whose KV is written, or will be by a step in flight
        pending  = known + drawn - computed

        num_prompt <= known,   known + drawn <= end,   0 <= computed <= known + drawn
        RUNNING: slot >= 0, computed <= room.   Otherwise: slot == -1, computed == 0, no blocks.

    A step of `n <= pending` tokens moves `computed` by n, and draws one token (`drawn` + 1) exactly
    when it reaches `known + drawn`. `end` is where length stops it: the last token is drawn but never
    computed, so nothing is planned for a request with `known + drawn == end`.

    Preemption sets `computed` to 0 and keeps `drawn`: the token in flight still arrives, once, and the
    request is not admitted again before it has. `epoch` counts admissions after preemption: prompt scores
    of steps planned in an earlier epoch are void from then on.
    """

    __slots__ = (
        "admitted_at",
        "computed",
        "drawn",
        "end",
        "ending_ids",
        "epoch",
        "extras",
        "high_water",
        "is_new",
        "key",
        "keys",
        "may_reuse",
        "nodes",
        "num_behind",
        "num_passed",
        "num_prompt",
        "promised",
        "prompt_scores",
        "publish_at",
        "record",
        "repetition",
        "room",
        "slot",
        "state",
        "tables",
        "tokens",
        "wants_scores",
        "wire",
    )

    def __init__(self, wire: EngineRequest, *, end: int, key: tuple[float, ...], now: float) -> None:
        self.wire = wire
        self.key = key  # total order of age or priority: the smallest runs first and is preempted last
        self.tokens = [*wire.prompt, *wire.forced]
        self.num_prompt = len(wire.prompt)
        self.end = end
        self.ending_ids = frozenset((*wire.eos_ids, *wire.params.stop_token_ids))  # may end it (core.stop)
        self.state = State.WAITING
        self.slot = -1
        self.epoch = 0
        self.computed = 0
        self.drawn = 0
        self.high_water = 0  # most tokens ever computed: below it, work is repeated
        self.num_passed = 0  # requests admitted over its head while it did not fit
        self.is_new = True  # nothing was sent for it yet
        # Sees every output token once, forced ones too: preemption draws none of them again.
        self.repetition = repetition_of(wire.params, end - self.num_prompt)
        # Prompt scores need every position computed. After a restart they were sent already.
        self.wants_scores = wire.params.prompt_logprobs is not None and not wire.forced
        self.may_reuse = not (self.wants_scores or wire.skip_reading_prefix_cache)
        self.prompt_scores: list[TokenLogprobs] = []
        self.record = RequestRecord(
            num_prompt=self.num_prompt,
            num_generated=len(wire.forced),
            arrival=wire.arrival,
            queued=now,
        )
        # Owned by the KV cache:
        self.tables: list[list[int]] = []  # [group][i]
        self.nodes: list[Node] = []
        self.num_behind: list[int] = []  # [group] leading table entries that were given back
        self.room = 0  # tokens that the tables have blocks for
        self.promised = 0
        self.publish_at = 0  # value of min(computed, known) that fills the next block
        self.keys: list[BlockKey] = []
        salt = wire.salt
        self.extras: dict[int, ExtraKeys] = {} if salt is None else {0: (("salt", salt.encode()),)}

    @property
    def id(self) -> str:
        return self.wire.id

    @property
    def known(self) -> int:
        return len(self.tokens)

    @property
    def pending(self) -> int:
        return len(self.tokens) + self.drawn - self.computed

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    def __repr__(self) -> str:
        return (
            f"<{self.wire.id} {self.state.name.lower()} slot {self.slot}: computed {self.computed}, "
            f"known {self.known}, drawn {self.drawn}, end {self.end}>"
        )
