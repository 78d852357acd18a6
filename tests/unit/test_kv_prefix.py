"""Hash chain: what makes two blocks equal, and that a digest alone never does."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.kv import prefix
from octavo.core.kv.prefix import BlockKey, ExtraKeys, Node, PrefixIndex, make_hasher, pack, unpack
from octavo.errors import ConfigError

ALGORITHMS = ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]
TOKENS = st.lists(st.integers(0, 200_000), max_size=40)


def keys_of(
    index: PrefixIndex, tokens: list[int], extras: dict[int, ExtraKeys] | None = None
) -> list[BlockKey]:
    keys: list[BlockKey] = []
    index.extend_keys(keys, tokens, extras or {})
    return keys


def digests(index: PrefixIndex, tokens: list[int], extras: dict[int, ExtraKeys] | None = None) -> list[bytes]:
    return [key.digest for key in keys_of(index, tokens, extras)]


@given(tokens=TOKENS)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_packing_is_lossless(tokens: list[int]) -> None:
    assert unpack(pack(tokens)) == tokens


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(one=TOKENS, other=TOKENS, cut=st.integers(0, 40))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_digests_are_equal_exactly_for_equal_prefixes(
    algorithm: str, one: list[int], other: list[int], cut: int
) -> None:
    index = PrefixIndex(algorithm, 4, 1, 16)
    other = one[:cut] + other
    for i, (left, right) in enumerate(zip(digests(index, one), digests(index, other), strict=False)):
        assert (left == right) == (one[: (i + 1) * 4] == other[: (i + 1) * 4])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_only_full_blocks_have_keys_and_growing_gives_the_same_ones(algorithm: str) -> None:
    index = PrefixIndex(algorithm, 4, 1, 16)
    tokens = list(range(100, 119))
    grown: list[BlockKey] = []
    for end in range(len(tokens) + 1):
        index.extend_keys(grown, tokens[:end], {})
        assert len(grown) == end // 4
    assert [key.digest for key in grown] == digests(index, tokens)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_tags_keep_the_spaces_of_extra_keys_apart(algorithm: str) -> None:
    """BB-094: a salt and an adapter of the same name are two keys; so are two ways to split bytes."""
    index = PrefixIndex(algorithm, 2, 1, 16)
    variants: list[ExtraKeys] = [
        (),
        (("salt", b"A"),),
        (("salt", b"B"),),
        (("adapter", b"A"),),
        (("salt", b"A"), ("adapter", b"A")),
        (("salt", b"A" + b"adapter"),),
        (("", b"saltA"),),
    ]
    found = {tuple(digests(index, [1, 2, 3, 4], {0: extra})) for extra in variants}
    assert len(found) == len(variants)
    # The salt is in the first block only, and the chain carries it into the second.
    assert len({second for _, second in found}) == len(variants)


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
def test_cryptographic_digests_are_the_same_in_every_process(algorithm: str) -> None:
    assert make_hasher(algorithm)[1] == make_hasher(algorithm)[1]
    assert digests(PrefixIndex(algorithm, 2, 1, 16), [1, 2]) == digests(
        PrefixIndex(algorithm, 2, 1, 16), [1, 2]
    )


def test_the_default_digest_is_pinned() -> None:
    """Stored blocks are named by it: a change here orphans them."""
    found = digests(PrefixIndex("sha256", 2, 1, 16), [1, 2], {0: (("salt", b"s"),)})
    assert [digest.hex() for digest in found] == [PINNED]


PINNED = "d21e20b2779e40541c1f1f5b2b4838a0777cafaf3f51a56068b4ea419e4d5664"


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_other_digests_start_from_a_random_root(algorithm: str) -> None:
    assert make_hasher(algorithm)[1] != make_hasher(algorithm)[1]


def test_an_unknown_algorithm_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'md5' is unknown: choose one of sha256, sha256_cbor"):
        make_hasher("md5")


def test_a_collision_never_serves_another_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(prefix.HASHERS, "constant", lambda: lambda parent, tokens, extras: b"same")
    index = PrefixIndex("constant", 2, 1, 16)
    first, second = keys_of(index, [1, 2, 3, 4]), keys_of(index, [5, 6])
    node = index.intern(None, first[0])
    assert node is not None and index.hold(node, 0, 9)
    assert index.find(None, first[0]) is node
    assert index.find(None, second[0]) is None, "other tokens"
    assert index.intern(None, second[0]) is None, "and they get no name"
    assert index.find(node, first[1]) is None
    salted = keys_of(index, [1, 2], {0: (("salt", b"x"),)})
    assert index.find(None, salted[0]) is None, "other extra keys"
    other_parent = Node(None, b"", b"", (), 1)
    assert index.find(other_parent, first[0]) is None, "another parent"


def test_a_node_lives_as_long_as_something_refers_to_it() -> None:
    index = PrefixIndex("sha256", 2, 1, 16)
    keys = keys_of(index, [1, 2, 3, 4])
    head = index.intern(None, keys[0])
    tail = index.intern(head, keys[1])
    assert head is not None and tail is not None
    assert index.hold(tail, 0, 3)
    identity = id(head)
    del head
    gc.collect()
    again = index.intern(None, keys[0])
    assert id(again) == identity, "its child keeps it, so the child is still found behind it"
    assert index.find(again, keys[1]) is tail
    del again, tail
    gc.collect()
    assert len(index._nodes) == 0


def test_the_first_block_of_a_prefix_stays_the_one_that_serves() -> None:
    index = PrefixIndex("sha256", 2, 2, 16)
    node = index.intern(None, keys_of(index, [1, 2])[0])
    assert node is not None
    assert index.hold(node, 0, 4) and not index.hold(node, 0, 5)
    assert index.hold(node, 1, 6)
    assert node.blocks == [4, 6]
    index.evict(node, 4)
    assert node.blocks == [-1, 6] and index.hold(node, 0, 5)


def test_misses_are_explained() -> None:
    index = PrefixIndex("sha256", 2, 1, max_remembered=2)
    keys = keys_of(index, [1, 2, 3, 4])
    assert index.why_missing(keys, 0) == "new"
    node = index.intern(None, keys[0])
    assert node is not None and index.hold(node, 0, 0)
    salted = keys_of(index, [1, 2], {0: (("salt", b"x"),)})
    assert index.why_missing(salted, 0) == "salt"
    index.evict(node, 0)
    assert index.why_missing(keys, 0) == "evicted"
    assert index.why_missing(salted, 0) == "new", "nobody holds these tokens under any salt"
    assert index.hold(node, 0, 1)
    assert index.why_missing(keys, 1) == "new"


def test_the_memory_of_evicted_digests_is_bounded() -> None:
    index = PrefixIndex("sha256", 1, 1, max_remembered=3)
    for token in range(10):
        node = index.intern(None, keys_of(index, [token])[0])
        assert node is not None and index.hold(node, 0, 0)
        index.evict(node, 0)
    assert len(index._evicted) == 3 and not index._heads
    assert index.why_missing(keys_of(index, [9]), 0) == "evicted"
    assert index.why_missing(keys_of(index, [0]), 0) == "new"
