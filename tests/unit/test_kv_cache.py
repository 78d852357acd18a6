"""Tables, windows, hits and evictions of the KV cache, without an engine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.harness import ask
from tests.fakes.glass_worker import make_layout

from octavo.core.kv.cache import KVCache, Match
from octavo.core.kv.pool import NULL
from octavo.core.request import Request
from octavo.errors import ConfigError


def make_cache(
    windows: tuple[int, ...] = (0,),
    block_size: int = 4,
    num_blocks: int = 32,
    max_chunk: int = 16,
    **options: Any,
) -> KVCache:
    return KVCache(make_layout(windows, block_size), num_blocks, max_chunk=max_chunk, **options)


def make_request(tokens: list[int], *, salt: str | None = None) -> Request:
    return Request(ask("r", tokens, salt=salt), end=1000, key=(0,), now=0.0)


def compute(cache: KVCache, request: Request, chunk: int = 16) -> Match:
    """What a scheduler does to a whole prompt."""
    match = cache.match(request)
    assert cache.fits(request, match, request.known, 0)
    cache.admit(request, match, request.known)
    request.computed = match.num_tokens
    while request.computed < request.known:
        reach = min(request.known, request.computed + chunk)
        if reach > request.room:
            assert cache.take(request, reach) is not None
        request.computed = reach
        cache.publish(request)
    cache.settle(request)
    return match


def release(cache: KVCache, request: Request) -> None:
    cache.release(request)
    request.computed = 0


def test_a_repeated_prompt_is_reused_but_for_its_last_token() -> None:
    cache = make_cache()
    for length, reused in ((1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (16, 12)):
        cache.rebuild()
        tokens = list(range(length))
        first, second = make_request(tokens), make_request(tokens)
        assert compute(cache, first).num_tokens == 0
        match = compute(cache, second)
        assert (match.num_tokens, match.miss) == (reused, "tail-block")
        assert second.tables[0][: reused // 4] == first.tables[0][: reused // 4]
        assert not set(second.tables[0][reused // 4 :]) & set(first.tables[0])


def test_why_not_more() -> None:
    cache = make_cache(num_blocks=4)
    one = make_request(list(range(9)))
    assert compute(cache, one).miss == "new"
    release(cache, one)
    assert cache.match(make_request(list(range(9)), salt="other")).miss == "salt"
    assert cache.match(make_request([0, 1, 2, 3, 9, 9, 9, 9, 9])).miss == "new"
    assert cache.match(make_request([0, 1])).miss == "tail-block"
    unwilling = make_request(list(range(9)))
    unwilling.may_reuse = False
    assert cache.match(unwilling) == Match(0, (), "disabled")
    big = make_request(list(range(50, 66)))
    compute(cache, big)
    release(cache, big)
    assert cache.match(make_request(list(range(9)))) == Match(0, (), "evicted")
    off = make_cache(enable_prefix_caching=False)
    assert compute(off, make_request(list(range(9)))).miss == "disabled"


@pytest.mark.parametrize("hash_algo", ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"])
def test_bb_094_an_adapter_named_like_a_salt_shares_no_block_with_it(hash_algo: str) -> None:
    """A salt is a key of the first block, an adapter one of every block; one name under two tags is two keys."""
    cache = make_cache(num_blocks=64, hash_algo=hash_algo)
    tokens = list(range(13))
    salt, adapter = ("salt", b"A"), ("adapter", b"A")

    def asking(*first: tuple[str, bytes], rest: tuple[tuple[str, bytes], ...] = ()) -> Request:
        request = make_request(tokens)
        request.extras = {0: first} | ({1: rest, 2: rest} if rest else {})
        return request

    kinds = {
        "none": lambda: asking(),
        "salt": lambda: asking(salt),
        "adapter": lambda: asking(adapter, rest=(adapter,)),
        "both": lambda: asking(adapter, salt, rest=(adapter,)),
    }
    computed: dict[str, Request] = {}
    for kind, made in kinds.items():
        request = made()
        assert compute(cache, request).num_tokens == 0, f"{kind} reused blocks of {list(computed)}"
        computed[kind] = request
    for kind, made in kinds.items():
        again = made()
        assert cache.match(again).num_tokens == 12
        compute(cache, again)
        assert again.tables[0][:3] == computed[kind].tables[0][:3]
    tables = [set(r.tables[0][:3]) for r in computed.values()]
    assert len(set().union(*tables)) == 3 * len(tables)


def test_the_tail_of_a_request_is_evicted_before_its_head_and_empty_blocks_first() -> None:
    cache = make_cache(num_blocks=5)
    request = make_request(list(range(14)))  # three full blocks and a half
    compute(cache, request)
    table = request.tables[0]
    release(cache, request)
    order = list(cache.pool.free_blocks())
    assert order == [table[3], 4, table[2], table[1], table[0]]
    cache.pool.take(3)
    assert cache.match(make_request(list(range(14)))).num_tokens == 8


def test_recently_used_prefixes_outlive_others() -> None:
    cache = make_cache(num_blocks=6)
    prompts = [[base + i for i in range(5)] for base in (0, 100)]
    for prompt in (*prompts, prompts[0]):
        request = make_request(prompt)
        compute(cache, request)
        release(cache, request)
    cache.pool.take(5)
    assert cache.match(make_request(prompts[0])).num_tokens == 4
    assert cache.match(make_request(prompts[1])).num_tokens == 0


def test_blocks_behind_a_window_come_back_early_and_can_still_be_hit() -> None:
    cache = make_cache(windows=(0, 6), num_blocks=40)
    request = make_request(list(range(33)))
    compute(cache, request, chunk=4)
    full, windowed = request.tables
    assert NULL not in full
    # The next query is at 32 when the last block is taken: it sees 27 and later, so block 6 and later.
    assert [block == NULL for block in windowed] == [True] * 6 + [False] * 3
    assert cache.pool.num_free == 40 - 9 - 3
    assert cache.match(make_request(list(range(33)))).num_tokens == 32
    assert cache.match(make_request(list(range(17)))).num_tokens == 16, "its window is on the free list"


def test_a_hit_needs_every_group() -> None:
    """The fixed point: the full group has eight blocks, the windowed ones lost some of theirs."""
    cache = make_cache(windows=(0, 6, 11), num_blocks=90, max_chunk=64)
    request = make_request(list(range(33)))
    compute(cache, request, chunk=40)
    index, nodes = cache._index, request.nodes
    index.evict(nodes[7], nodes[7].blocks[1])  # window 6 needs the last two blocks before the length
    assert cache.match(make_request(list(range(33)))) == Match(28, tuple(nodes[:7]), "evicted")
    index.evict(nodes[4], nodes[4].blocks[2])  # window 11 needs three: 4 is among those before 28, 24, 20
    assert cache.match(make_request(list(range(33)))).num_tokens == 16
    index.evict(nodes[2], nodes[2].blocks[1])
    assert cache.match(make_request(list(range(33)))).num_tokens == 8
    index.evict(nodes[0], nodes[0].blocks[0])
    assert cache.match(make_request(list(range(33)))).num_tokens == 0


def test_promises_are_kept_from_others() -> None:
    cache = make_cache(num_blocks=8)
    one, two = make_request(list(range(24))), make_request(list(range(50, 62)))
    match = cache.match(one)
    assert cache.fits(one, match, one.known, 0)
    cache.admit(one, match, one.known)
    assert cache.take(one, 4) is not None
    assert (cache.pool.num_free, cache.promised) == (7, 5)
    other = cache.match(two)
    assert cache.fits(two, other, 8, 0) and not cache.fits(two, other, 9, 0)
    assert not cache.fits(two, other, 8, 1), "the watermark"
    release(cache, one)
    assert cache.promised == 0 and cache.fits(two, other, 12, 0)


def test_reset_refuses_while_blocks_are_in_use() -> None:
    cache = make_cache()
    request = make_request(list(range(9)))
    compute(cache, request)
    assert not cache.reset()
    release(cache, request)
    assert cache.reset()
    assert cache.match(make_request(list(range(9)))) == Match(0, (), "new")


def test_a_pool_too_small_for_one_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 blocks cannot hold one token in 3 groups"):
        make_cache(windows=(0, 4, 4), num_blocks=2)


@given(
    windows=st.lists(st.integers(0, 20), min_size=1, max_size=3),
    block_size=st.integers(1, 8),
    num_blocks=st.integers(3, 60),
    chunk=st.integers(1, 20),
    length=st.integers(1, 80),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_request_never_holds_more_than_it_was_sized_for(
    windows: list[int], block_size: int, num_blocks: int, chunk: int, length: int
) -> None:
    """Admission checks and the progress guarantee stand on `blocks_for` and `capacity`."""
    cache = make_cache(tuple(windows), block_size, num_blocks, chunk)
    capacity = cache.capacity(1000)
    assert capacity == 1000 or cache.blocks_for(capacity + 1) > num_blocks
    assert not capacity or cache.blocks_for(capacity) <= num_blocks
    request = make_request([5] * max(1, min(length, capacity)))
    if not capacity:
        return
    cache.admit(request, cache.match(request), request.known)
    while request.computed < request.known:
        reach = min(request.known, request.computed + chunk)
        if reach > request.room:
            assert cache.take(request, reach) is not None, "a lone request that fits ran out of blocks"
        assert num_blocks - cache.pool.num_free <= cache.blocks_for(request.known)
        request.computed = reach
        cache.publish(request)
    release(cache, request)
    assert cache.pool.num_free == num_blocks and cache.promised == 0
