"""Block tables of live requests: what is reused, taken, published and given back.

Owns the tables of every request and group, and the arithmetic of windows. Does not know the order
of requests, budgets or slots, and never touches KV memory: it relies on the worker running steps in
order, and on a step writing the KV of all its rows in a layer before any row attends in that layer.
So a block is published (may be hit) as soon as the step that fills it is *planned*, and a block
given back while a step still reads it is overwritten by a later step only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.core.kv.pool import NULL, BlockPool
from octavo.core.kv.prefix import Node, PrefixIndex
from octavo.core.request import Request
from octavo.errors import ConfigError
from octavo.wire.layout import KVLayout

if TYPE_CHECKING:
    from octavo.core.kv.events import EventLog


@dataclass(frozen=True, slots=True)
class Match:
    """Leading tokens that need no computing. `miss` says why there are not more of them."""

    num_tokens: int
    nodes: tuple[Node, ...]
    miss: str


class KVCache:
    """Implements `protocols.Pool` and `protocols.PrefixSource`.

    Of a request: `tables[g][i]` is the block of positions [i * block_size, (i + 1) * block_size) in
    group g, `NULL` where no query to come can see it; all its tables have one length, and
    `room == length * block_size`. The first `len(nodes)` full blocks are published. `promised` is
    how many blocks the rest of its prompt was promised at admission.
    """

    def __init__(
        self,
        layout: KVLayout,
        num_blocks: int,
        *,
        max_chunk: int,
        enable_prefix_caching: bool = True,
        hash_algo: str = "sha256",
        events: EventLog | None = None,
    ) -> None:
        self.block_size = layout.block_size
        self.is_caching = enable_prefix_caching
        self.windows = [group.window for group in layout.groups]
        self._groups = range(len(self.windows))
        self._full = [g for g in self._groups if not self.windows[g]]
        self._windowed = [g for g in self._groups if self.windows[g]]
        # Most blocks of a windowed group that one request holds at a time: the window behind the first
        # query of a chunk, the chunk, and one more because neither starts at a block's border.
        self._caps = {g: -(-(self.windows[g] - 1 + max_chunk) // self.block_size) + 1 for g in self._windowed}
        self.pool = BlockPool(num_blocks, self._evicted)
        self._index = PrefixIndex(hash_algo, self.block_size, len(self.windows), max(1024, 2 * num_blocks))
        self._events = events
        self.promised = 0
        if self.blocks_for(1) > num_blocks:
            raise ConfigError(
                f"a KV cache of {num_blocks} blocks cannot hold one token in {len(self.windows)} groups",
                fix="give the KV cache more memory",
            )

    # ---- sizes --------------------------------------------------------------------------------

    def blocks_for(self, num_tokens: int) -> int:
        """Most blocks that a request of `num_tokens` holds at any time."""
        width = -(-num_tokens // self.block_size)
        return len(self._full) * width + sum(min(width, cap) for cap in self._caps.values())

    def capacity(self, max_tokens: int) -> int:
        """How many tokens, up to `max_tokens`, one request can keep in a pool of its own."""
        widths = range(1, -(-max_tokens // self.block_size) + 1)
        fits = bisect_right(widths, self.pool.num_blocks, key=lambda w: self.blocks_for(w * self.block_size))
        return min(max_tokens, fits * self.block_size)

    # ---- prefix source ------------------------------------------------------------------------

    def match(self, request: Request) -> Match:
        """Longest reusable prefix in whole blocks, leaving at least the last known token to compute."""
        if not self.is_caching or not request.may_reuse:
            return Match(0, (), "disabled")
        self._index.extend_keys(request.keys, request.tokens, request.extras)
        limit = (len(request.tokens) - 1) // self.block_size
        nodes = self._chain(request, limit)
        length = self._fixed_point(nodes)
        if length == limit:
            miss = "tail-block"
        elif length < len(nodes):
            miss = "evicted"
        else:
            miss = self._index.why_missing(request.keys, length)
        return Match(length * self.block_size, tuple(nodes[:length]), miss)

    def is_coming(self, request: Request, other: Request) -> bool:
        """Does `other` compute a block next that `request`, which was matched before, could reuse?"""
        i = other.computed // self.block_size
        keys, theirs = request.keys, other.keys
        last = (len(request.tokens) - 1) // self.block_size
        return i < min(len(keys), len(theirs), last) and keys[i].digest == theirs[i].digest

    def _chain(self, request: Request, limit: int) -> list[Node]:
        nodes: list[Node] = []
        parent: Node | None = None
        full = self._full
        for i in range(limit):
            node = self._index.find(parent, request.keys[i])
            if node is None or any(node.blocks[g] == NULL for g in full):
                break
            nodes.append(node)
            parent = node
        return nodes

    def _fixed_point(self, nodes: list[Node]) -> int:
        """Largest length that every group can start from. A shorter prefix always suits full groups;
        each windowed group may shorten it again until all agree."""
        length = len(nodes)
        while True:
            before = length
            for g in self._windowed:
                length = self._window_start(nodes, g, length)
            if length == before:
                return length

    def _window_start(self, nodes: list[Node], group: int, length: int) -> int:
        """Largest length <= `length` whose next token sees only cached blocks in a windowed group."""
        need = self._blocks_seen(group)
        if need == 0:
            return length
        run = 0
        for i in range(length - 1, -1, -1):
            if nodes[i].blocks[group] == NULL:
                run, length = 0, i
            else:
                run += 1
                if run == need:
                    break
        return length

    def _blocks_seen(self, group: int) -> int:
        """Whole blocks behind a block's border that the token after the border sees."""
        return -(-(self.windows[group] - 1) // self.block_size)

    # ---- pool ---------------------------------------------------------------------------------

    def fits(self, request: Request, match: Match, num_tokens: int, keep_free: int) -> bool:
        """Would a waiting request's first `num_tokens` fit beside what was promised to others?"""
        hit = match.num_tokens // self.block_size
        width = -(-num_tokens // self.block_size)
        is_free = self.pool.is_free
        need = 0
        for g in self._groups:
            cached = sum(is_free(node.blocks[g]) for node in match.nodes[self._first_seen(g, hit) :])
            blocks = cached + width - hit
            need += blocks if g in self._full else min(blocks, self._caps[g])
        return need <= self.pool.num_free - self.promised - keep_free

    def _first_seen(self, group: int, hit: int) -> int:
        return max(0, hit - self._blocks_seen(group)) if self.windows[group] else 0

    def admit(self, request: Request, match: Match, num_tokens: int) -> None:
        """Give a request its reused blocks, and promise it the rest of `num_tokens`. It must fit."""
        hit = match.num_tokens // self.block_size
        tables = []
        for g in self._groups:
            first = self._first_seen(g, hit)
            blocks = [node.blocks[g] for node in match.nodes[first:]]
            for block in blocks:
                self.pool.share(block)
            tables.append([NULL] * first + blocks)
        request.tables = tables
        request.nodes = list(match.nodes)
        request.num_behind = [self._first_seen(g, hit) for g in self._groups]
        request.room = match.num_tokens
        request.publish_at = match.num_tokens + self.block_size
        width = -(-num_tokens // self.block_size)
        promise = len(self._full) * (width - hit)
        promise += sum(min(width - hit, cap) for cap in self._caps.values())
        request.promised = promise
        self.promised += promise

    def take(self, request: Request, num_tokens: int) -> list[list[int]] | None:
        """Room for the first `num_tokens`: the blocks appended, per group; None when they do not fit."""
        self._leave_behind(request)
        width = -(-num_tokens // self.block_size)
        each = width - len(request.tables[0])
        count = each * len(self.windows)
        if count > self.pool.num_free:
            return None
        taken = self.pool.take(count)
        new = [taken[g * each : (g + 1) * each] for g in self._groups]
        for table, blocks in zip(request.tables, new, strict=True):
            table.extend(blocks)
        request.room = width * self.block_size
        if request.promised:
            kept = min(count, request.promised)
            request.promised -= kept
            self.promised -= kept
        return new

    def _leave_behind(self, request: Request) -> None:
        """Give back the blocks that neither the next query nor any later one can see."""
        for g in self._windowed:
            table, first = request.tables[g], request.num_behind[g]
            last = min((request.computed - self.windows[g] + 1) // self.block_size, len(table))
            if last > first:
                gone = table[first:last]
                table[first:last] = [NULL] * (last - first)
                request.num_behind[g] = last
                self.pool.give(reversed(gone))

    def settle(self, request: Request) -> None:
        """The prompt has all its blocks: what is left of the promise (windows hold fewer) is void."""
        self.promised -= request.promised
        request.promised = 0

    def publish(self, request: Request) -> None:
        """Let others hit the blocks that are full, planned and whose tokens are known."""
        full = min(request.computed, len(request.tokens)) // self.block_size
        request.publish_at = (full + 1) * self.block_size
        nodes = request.nodes
        if not self.is_caching or full <= len(nodes):
            return
        index, keys, pool = self._index, request.keys, self.pool
        index.extend_keys(keys, request.tokens, request.extras)
        for i in range(len(nodes), full):
            node = index.intern(nodes[-1] if nodes else None, keys[i])
            if node is None:
                # Another prefix has this digest: nothing of this one can be named from here on.
                request.publish_at = 1 << 62
                return
            nodes.append(node)
            for g in self._groups:
                block = request.tables[g][i]
                if block != NULL and index.hold(node, g, block):
                    pool.attach(block, node)
                    if self._events is not None:
                        self._events.stored(node, g)

    def release(self, request: Request) -> None:
        """Everything back: published first, the tail of the sequence to be evicted before its head."""
        self.publish(request)
        tables = request.tables
        for i in range(len(tables[0]) - 1, -1, -1):
            self.pool.give([table[i] for table in tables if table[i] != NULL])
        self.settle(request)
        request.tables = []
        request.nodes = []
        request.num_behind = []
        request.room = 0

    # ---- the whole ----------------------------------------------------------------------------

    def _evicted(self, block: int, content: object) -> None:
        assert isinstance(content, Node)
        if self._events is not None:
            self._events.removed(content, content.blocks.index(block))
        self._index.evict(content, block)

    def held(self) -> Iterator[Node]:
        """Prefixes that some block holds, each after its parent."""
        return self._index.held()

    def reset(self) -> bool:
        """Forget all cached prefixes; False, and nothing done, while any block is in use."""
        if self.pool.num_free != self.pool.num_blocks:
            return False
        self.rebuild()
        return True

    def rebuild(self) -> None:
        """All blocks free and nothing cached. For the owner who knows that no table is live."""
        self.pool.reset()
        self._index.reset()
        self.promised = 0
        if self._events is not None:
            self._events.cleared()
