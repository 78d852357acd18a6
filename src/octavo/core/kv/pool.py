"""The pool of KV blocks: who holds a block, and which free block is reused next.

Owns reference counts and the free list. Does not know tokens, hashes or requests: what a block
contains is an opaque object that the owner attaches, and that the pool hands to `on_evict` when it
gives the block to somebody else.

Ids run over [0, num_blocks) and all of them are usable: there is no reserved null block. Table
entries that nobody may read (behind a sliding window) carry `NULL` here and id 0 on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

NULL = -1


class BlockPool:
    """Every operation is O(1) per block.

        num_free + (blocks with references > 0) == num_blocks
        a block is on the free list  <=>  references(block) == 0

    The free list is reused from its head. A block that comes back with content goes to the tail (so
    the least recently used content is lost first); one without content goes to the head.
    """

    __slots__ = ("_content", "_next", "_on_evict", "_prev", "_refs", "num_blocks", "num_free")

    def __init__(self, num_blocks: int, on_evict: Callable[[int, object], None] | None = None) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._content: list[object | None] = [None] * num_blocks
        self._refs = [0] * num_blocks
        self._link_all()

    def _link_all(self) -> None:
        # Index num_blocks is the sentinel: its `next` is the head, its `prev` the tail.
        n = self.num_blocks
        self._next = [*range(1, n + 1), 0]
        self._prev = [n, *range(n)]
        self.num_free = n

    @property
    def usage_frac(self) -> float:
        return 1.0 - self.num_free / self.num_blocks

    def references(self, block: int) -> int:
        return self._refs[block]

    def is_free(self, block: int) -> bool:
        return self._refs[block] == 0

    def content(self, block: int) -> object | None:
        return self._content[block]

    def take(self, count: int) -> list[int]:
        """`count` blocks from the head of the free list, one reference each; content is evicted."""
        if count > self.num_free:
            raise ValueError(f"{count} blocks were asked of a pool that has {self.num_free} free")
        blocks = []
        following, sentinel = self._next, self.num_blocks
        block = following[sentinel]
        for _ in range(count):
            blocks.append(block)
            self._refs[block] = 1
            block = following[block]
        following[sentinel] = block
        self._prev[block] = sentinel
        self.num_free -= count
        for taken in blocks:
            held = self._content[taken]
            if held is not None:
                self.forget(taken)
                if self._on_evict is not None:
                    self._on_evict(taken, held)
        return blocks

    def share(self, block: int) -> None:
        """One more reference; a free block leaves the free list and keeps its content."""
        if self._refs[block] == 0:
            before, after = self._prev[block], self._next[block]
            self._next[before] = after
            self._prev[after] = before
            self.num_free -= 1
        self._refs[block] += 1

    def give(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each, in order: of blocks with content the first given is lost first."""
        for block in blocks:
            refs = self._refs[block] - 1
            if refs < 0:
                raise ValueError(f"block {block} was given back more often than it was taken")
            self._refs[block] = refs
            if refs == 0:
                self._link(block, at_head=self._content[block] is None)

    def _link(self, block: int, *, at_head: bool) -> None:
        sentinel = self.num_blocks
        if at_head:
            before, after = sentinel, self._next[sentinel]
        else:
            before, after = self._prev[sentinel], sentinel
        self._prev[block], self._next[block] = before, after
        self._next[before] = block
        self._prev[after] = block
        self.num_free += 1

    def attach(self, block: int, content: object) -> None:
        """Say what a held block contains, so that it outlives its references."""
        self._content[block] = content

    def forget(self, block: int) -> None:
        self._content[block] = None

    def free_blocks(self) -> Iterator[int]:
        """The free list from head to tail (tests and reports)."""
        block = self._next[self.num_blocks]
        while block != self.num_blocks:
            yield block
            block = self._next[block]

    def reset(self) -> None:
        """All blocks free and empty, whoever held them."""
        self._refs = [0] * self.num_blocks
        self._content = [None] * self.num_blocks
        self._link_all()
