"""The glass worker is only worth what it catches: each test plants one bug and expects to see it.

Structural checks are off (`check_state=False`): the KV content alone must tell, once by comparing what is
read and once, with that off too, by answers that differ from the solo run.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.engine.worlds import run_worlds
from tests.fakes.glass_worker import StaleKVError

from octavo.core.kv.cache import KVCache
from octavo.core.kv.pool import BlockPool
from octavo.core.kv.prefix import BlockKey, ExtraKeys, Node, PrefixIndex, pack
from octavo.core.request import Request

NUM_WORLDS = 400
Plant = Callable[[pytest.MonkeyPatch], None]


def skip_touch(patch: pytest.MonkeyPatch) -> None:
    """A reused block stays on the free list, where somebody else will take it."""

    def share(pool: BlockPool, block: int) -> None:
        pool._refs[block] += 1

    def give(pool: BlockPool, blocks: list[int]) -> None:
        for block in blocks:
            pool._refs[block] -= 1
            if pool._refs[block] == 0 and block not in set(pool.free_blocks()):
                pool._link(block, at_head=pool._content[block] is None)

    patch.setattr(BlockPool, "share", share)
    patch.setattr(BlockPool, "give", give)


def publish_early(patch: pytest.MonkeyPatch) -> None:
    """A block is published when it is taken and its tokens are known, before it is full."""
    right = KVCache.take

    def take(cache: KVCache, request: Request, num_tokens: int) -> list[list[int]] | None:
        new = right(cache, request, num_tokens)
        computed, request.computed = request.computed, request.room
        cache.publish(request)
        request.computed = computed
        return new

    patch.setattr(KVCache, "take", take)


def wrong_parent(patch: pytest.MonkeyPatch) -> None:
    """The hash of a block forgets what came before it."""

    def extend_keys(
        index: PrefixIndex, keys: list[BlockKey], tokens: list[int], extras: dict[int, ExtraKeys]
    ) -> None:
        size = index._block_size
        for i in range(len(keys), len(tokens) // size):
            packed = pack(tokens[i * size : (i + 1) * size])
            keys.append(BlockKey(index._hash(index._root, packed, ()), packed, ()))

    patch.setattr(PrefixIndex, "extend_keys", extend_keys)
    patch.setattr(Node, "is_prefix", lambda node, parent, tokens, extras: node.tokens == tokens)


def trust_the_hash(patch: pytest.MonkeyPatch) -> None:
    """A digest is taken for the tokens; the weak hash of some worlds collides."""
    patch.setattr(Node, "is_prefix", lambda node, parent, tokens, extras: True)


def window_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """One token too few is kept behind a window."""
    right = KVCache._leave_behind

    def leave_behind(cache: KVCache, request: Request) -> None:
        request.computed += 1
        right(cache, request)
        request.computed -= 1

    patch.setattr(KVCache, "_leave_behind", leave_behind)


def reuse_half_a_window(patch: pytest.MonkeyPatch) -> None:
    """A windowed group asks for one block too few behind the length that it reuses."""
    right = KVCache._blocks_seen
    patch.setattr(KVCache, "_blocks_seen", lambda cache, group: max(0, right(cache, group) - 1))


def keep_evicted(patch: pytest.MonkeyPatch) -> None:
    """The index is not told when a block is overwritten."""
    patch.setattr(KVCache, "_evicted", lambda cache, block, content: None)


PLANTS: list[Plant] = [
    skip_touch,
    publish_early,
    wrong_parent,
    trust_the_hash,
    window_off_by_one,
    reuse_half_a_window,
    keep_evicted,
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_the_worker_sees_stale_kv(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(StaleKVError):
        run_worlds(0, NUM_WORLDS, check_state=False)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_stale_kv_changes_the_answer(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="differs from its solo run"):
        run_worlds(0, NUM_WORLDS, check_state=False, check_reads=False)


def test_without_a_bug_there_is_nothing_to_see() -> None:
    run_worlds(0, NUM_WORLDS, check_state=False, check_reads=True)
