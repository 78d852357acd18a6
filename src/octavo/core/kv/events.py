"""What happens to the prefix cache, as events: which prefixes can be hit from now on, and which no more.

Owns the words of the events and the log between two flushes. A block is named by the low 64 bits of its
digest. Folded in order, the events are the index: (hash, group) is in it exactly while a block of the group
holds that prefix. Knows no socket.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from octavo.core.kv.pool import NULL
from octavo.core.kv.prefix import Node, unpack

MEDIUM = "CPU"  # where the blocks lie
_LOW_64 = (1 << 64) - 1


class _Event(msgspec.Struct, array_like=True, tag=True):
    pass


class BlockStored(_Event):
    """Consecutive blocks of one prefix, behind `parent_block_hash` (None: they begin it).

    `extra_keys[i]`: what else decides the content of block i, as pairs (tag, digest of the value).
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[tuple[str, str]] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None  # "full_attention" | "sliding_window"
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(_Event):
    block_hashes: list[int]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(_Event):
    pass


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True):
    """One message. `ts`: seconds since 1970."""

    ts: float
    events: list[KVEvent]
    data_parallel_rank: int | None = None


def name_of(node: Node) -> int:
    return int.from_bytes(node.digest, "big") & _LOW_64


class EventLog:
    """Events since the last `take`, in order. Neighbours of one kind and group are one event."""

    def __init__(self, block_size: int, windows: Sequence[int]) -> None:
        self._block_size = block_size
        self._windows = list(windows)
        self._events: list[KVEvent] = []
        self._stored: dict[int, BlockStored] = {}  # group -> event that its next block may join
        self._removed: dict[int, BlockRemoved] = {}

    def __len__(self) -> int:
        return len(self._events)

    def stored(self, node: Node, group: int) -> None:
        """A block of the group holds the node's KV from now on."""
        self._removed.clear()
        parent = None if node.parent is None else name_of(node.parent)
        extra = _shown(node)
        event = self._stored.get(group)
        if event is None or parent != event.block_hashes[-1]:
            window = self._windows[group]
            event = BlockStored(
                block_hashes=[],
                parent_block_hash=parent,
                token_ids=[],
                block_size=self._block_size,
                medium=MEDIUM,
                group_idx=group,
                kv_cache_spec_kind="sliding_window" if window else "full_attention",
                kv_cache_spec_sliding_window=window or None,
            )
            self._stored[group] = event
            self._events.append(event)
        if extra is not None and event.extra_keys is None:
            event.extra_keys = [None] * len(event.block_hashes)
        if event.extra_keys is not None:
            event.extra_keys.append(extra)
        event.block_hashes.append(name_of(node))
        event.token_ids += unpack(node.tokens)

    def removed(self, node: Node, group: int) -> None:
        """The block of the group that held the node's KV is about to be overwritten."""
        self._stored.clear()
        event = self._removed.get(group)
        if event is None:
            event = self._removed[group] = BlockRemoved([], MEDIUM, group)
            self._events.append(event)
        event.block_hashes.append(name_of(node))

    def cleared(self) -> None:
        self._stored.clear()
        self._removed.clear()
        if not self._events or not isinstance(self._events[-1], AllBlocksCleared):
            self._events.append(AllBlocksCleared())

    def restate(self, nodes: Iterable[Node]) -> None:
        """Forget what was logged and say all that is true, parents first: for who missed something."""
        self._events.clear()
        self.cleared()
        for node in nodes:
            for group, block in enumerate(node.blocks):
                if block != NULL:
                    self.stored(node, group)

    def take(self) -> list[KVEvent]:
        events, self._events = self._events, []
        self._stored.clear()
        self._removed.clear()
        return events


def _shown(node: Node) -> list[tuple[str, str]] | None:
    """Extra keys for strangers: salts are secrets of tenants, so each shows only whether it is the same."""
    if not node.extras:
        return None
    return [(tag, hashlib.sha256(value).hexdigest()[:16]) for tag, value in node.extras]
