"""The block pool against a model of it: two lists and a dict."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.core.kv.pool import BlockPool

NUM_BLOCKS = 6


class PoolMachine(RuleBasedStateMachine):
    """`free` is the free list as a plain list, `refs` and `content` as dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[tuple[int, object]] = []
        self.pool = BlockPool(NUM_BLOCKS, lambda block, content: self.evicted.append((block, content)))
        self.free = list(range(NUM_BLOCKS))
        self.refs = dict.fromkeys(range(NUM_BLOCKS), 0)
        self.content: dict[int, object] = {}
        self.lost: list[tuple[int, object]] = []

    @rule(count=st.integers(0, NUM_BLOCKS))
    def take(self, count: int) -> None:
        if count > len(self.free):
            with pytest.raises(ValueError, match="free"):
                self.pool.take(count)
            return
        want, self.free = self.free[:count], self.free[count:]
        assert self.pool.take(count) == want
        for block in want:
            self.refs[block] = 1
            if block in self.content:
                self.lost.append((block, self.content.pop(block)))

    @rule(block=st.integers(0, NUM_BLOCKS - 1))
    def share(self, block: int) -> None:
        self.pool.share(block)
        self.refs[block] += 1
        if block in self.free:
            self.free.remove(block)

    @precondition(lambda self: any(self.refs.values()))
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        held = [block for block, refs in self.refs.items() if refs]
        blocks = data.draw(st.lists(st.sampled_from(held), unique=True))
        self.pool.give(blocks)
        for block in blocks:
            self.refs[block] -= 1
            if not self.refs[block]:
                if block in self.content:
                    self.free.append(block)
                else:
                    self.free.insert(0, block)

    @precondition(lambda self: any(self.refs.values()))
    @rule(data=st.data(), content=st.integers())
    def attach(self, data: st.DataObject, content: int) -> None:
        block = data.draw(st.sampled_from([block for block, refs in self.refs.items() if refs]))
        self.pool.attach(block, content)
        self.content[block] = content

    @rule()
    def reset(self) -> None:
        self.pool.reset()
        self.free = list(range(NUM_BLOCKS))
        self.refs = dict.fromkeys(range(NUM_BLOCKS), 0)
        self.content = {}

    @invariant()
    def agrees(self) -> None:
        pool = self.pool
        assert list(pool.free_blocks()) == self.free
        assert pool.num_free == len(self.free)
        assert pool.usage_frac == pytest.approx(1 - len(self.free) / NUM_BLOCKS)
        for block in range(NUM_BLOCKS):
            assert pool.references(block) == self.refs[block]
            assert pool.is_free(block) == (self.refs[block] == 0)
            assert pool.content(block) == self.content.get(block)
        assert self.evicted == self.lost


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


def test_a_block_given_back_twice_is_an_error() -> None:
    pool = BlockPool(2)
    blocks = pool.take(1)
    pool.give(blocks)
    with pytest.raises(ValueError, match="more often"):
        pool.give(blocks)


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)


def test_empty_blocks_are_reused_before_cached_ones_and_old_content_before_new() -> None:
    pool = BlockPool(4)
    blocks = pool.take(4)
    for block in (0, 2):
        pool.attach(block, f"kv {block}")
    pool.give(reversed(blocks))  # 3 and 1 are empty: to the head; 2 then 0 to the tail
    assert list(pool.free_blocks()) == [1, 3, 2, 0]
