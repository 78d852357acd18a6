"""The chain of block hashes: which blocks hold the KV of a given run of leading tokens.

    digest(i) = H(digest(i - 1), token ids of block i, tagged extra keys of block i)

Owns hashing and the index from digest to blocks. Does not know requests, groups' windows or the free
list. A digest only ever proposes: a hit also compares token ids, extra keys and the identity of
the parent, so that a collision, found or forged, costs a miss and never serves another prefix's KV.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakValueDictionary

from octavo.core.kv.pool import NULL
from octavo.errors import ConfigError

#: What besides tokens decides the KV of a block: (tag, value) pairs. The tag keeps the spaces apart:
#: an adapter named like a salt is another key. Salt sits in the first block only; the chain carries it on.
ExtraKeys = tuple[tuple[str, bytes], ...]
Hasher = Callable[[bytes, bytes, ExtraKeys], bytes]

_ROOT = b"octavo kv prefix chain, 1"


def _plain(parent: bytes, tokens: bytes, extras: ExtraKeys) -> bytes:
    """Unambiguous for one block size: fixed-width parent and tokens, then length-prefixed extras."""
    if not extras:
        return parent + tokens
    parts = [parent, tokens]
    for tag, value in extras:
        name = tag.encode()
        parts += [len(name).to_bytes(4, "little"), name, len(value).to_bytes(8, "little"), value]
    return b"".join(parts)


def _sha256(parent: bytes, tokens: bytes, extras: ExtraKeys) -> bytes:
    return hashlib.sha256(_plain(parent, tokens, extras)).digest()


def _cbor() -> Callable[[bytes, bytes, ExtraKeys], bytes]:
    # Imported when chosen: the engine process stays light.
    import cbor2

    def encode(parent: bytes, tokens: bytes, extras: ExtraKeys) -> bytes:
        return cbor2.dumps([parent, unpack(tokens), [list(e) for e in extras]], canonical=True)

    return encode


def _xxh3() -> Callable[[bytes], bytes]:
    import xxhash

    return lambda data: xxhash.xxh3_128_digest(data)


def _sha256_cbor() -> Hasher:
    encode = _cbor()
    return lambda parent, tokens, extras: hashlib.sha256(encode(parent, tokens, extras)).digest()


def _xxhash() -> Hasher:
    digest = _xxh3()
    return lambda parent, tokens, extras: digest(_plain(parent, tokens, extras))


def _xxhash_cbor() -> Hasher:
    digest, encode = _xxh3(), _cbor()
    return lambda parent, tokens, extras: digest(encode(parent, tokens, extras))


HASHERS: dict[str, Callable[[], Hasher]] = {
    "sha256": lambda: _sha256,
    "sha256_cbor": _sha256_cbor,
    "xxhash": _xxhash,
    "xxhash_cbor": _xxhash_cbor,
}


def make_hasher(name: str) -> tuple[Hasher, bytes]:
    """(H, the root's digest). The cryptographic ones give the same digests in every process; the
    others start from a random root, so that collisions cannot be prepared."""
    if name not in HASHERS:
        raise ConfigError(
            f"prefix caching hash {name!r} is unknown", fix=f"choose one of {', '.join(sorted(HASHERS))}"
        )
    root = hashlib.sha256(_ROOT).digest() if name.startswith("sha256") else secrets.token_bytes(16)
    return HASHERS[name](), root


def pack(token_ids: Sequence[int]) -> bytes:
    return array("i", token_ids).tobytes()


def unpack(tokens: bytes) -> list[int]:
    return array("i", tokens).tolist()


class Node:
    """One block's worth of a prefix. Equal prefixes are one object while anything refers to it, so a
    chain is compared by the identity of parents. `blocks[g]` holds its KV for group g, or NULL."""

    __slots__ = ("__weakref__", "blocks", "digest", "extras", "num_held", "parent", "tokens")

    def __init__(
        self, parent: Node | None, digest: bytes, tokens: bytes, extras: ExtraKeys, num_groups: int
    ) -> None:
        self.parent = parent
        self.digest = digest
        self.tokens = tokens
        self.extras = extras
        self.blocks = [NULL] * num_groups
        self.num_held = 0  # entries of `blocks` that are not NULL

    def is_prefix(self, parent: Node | None, tokens: bytes, extras: ExtraKeys) -> bool:
        return self.parent is parent and self.tokens == tokens and self.extras == extras


class BlockKey:
    """Digest, tokens and extra keys of one full block of one request."""

    __slots__ = ("digest", "extras", "tokens")

    def __init__(self, digest: bytes, tokens: bytes, extras: ExtraKeys) -> None:
        self.digest = digest
        self.tokens = tokens
        self.extras = extras


class PrefixIndex:
    """Digest -> node -> blocks. Memory is bounded by what the pool's blocks and live requests refer to,
    plus a bounded memory of evicted digests that only explains misses."""

    def __init__(self, hash_algo: str, block_size: int, num_groups: int, max_remembered: int) -> None:
        self._hash, self._root = make_hasher(hash_algo)
        self._block_size = block_size
        self._num_groups = num_groups
        self._max_remembered = max_remembered
        self._nodes: WeakValueDictionary[bytes, Node] = WeakValueDictionary()
        self._evicted: dict[bytes, None] = {}  # ordered: the oldest is dropped first
        self._heads: dict[bytes, int] = {}  # tokens of first blocks that are held -> by how many salts

    def extend_keys(self, keys: list[BlockKey], token_ids: list[int], extras: dict[int, ExtraKeys]) -> None:
        """Append the keys of the full blocks of `token_ids` that `keys` does not cover yet."""
        size = self._block_size
        first, full = len(keys), len(token_ids) // size
        if full <= first:
            return
        packed = pack(token_ids[first * size : full * size])
        width = len(packed) // (full - first)
        parent = keys[-1].digest if keys else self._root
        for i in range(first, full):
            tokens = packed[(i - first) * width : (i - first + 1) * width]
            extra = extras.get(i, ())
            parent = self._hash(parent, tokens, extra)
            keys.append(BlockKey(parent, tokens, extra))

    def find(self, parent: Node | None, key: BlockKey) -> Node | None:
        node = self._nodes.get(key.digest)
        if node is not None and node.is_prefix(parent, key.tokens, key.extras):
            return node
        return None

    def intern(self, parent: Node | None, key: BlockKey) -> Node | None:
        """The node of a prefix, made when there is none; None when a collision holds its digest."""
        node = self._nodes.get(key.digest)
        if node is None:
            node = Node(parent, key.digest, key.tokens, key.extras, self._num_groups)
            self._nodes[key.digest] = node
            return node
        return node if node.is_prefix(parent, key.tokens, key.extras) else None

    def hold(self, node: Node, group: int, block: int) -> bool:
        """`block` has the node's KV. False when another block already serves it: the first one stays."""
        if node.blocks[group] != NULL:
            return False
        node.blocks[group] = block
        node.num_held += 1
        if node.num_held == 1 and node.parent is None:
            self._heads[node.tokens] = self._heads.get(node.tokens, 0) + 1
        self._evicted.pop(node.digest, None)
        return True

    def evict(self, node: Node, block: int) -> None:
        """`block` is about to be overwritten."""
        node.blocks[node.blocks.index(block)] = NULL
        node.num_held -= 1
        if node.num_held == 0 and node.parent is None:
            count = self._heads.pop(node.tokens) - 1
            if count:
                self._heads[node.tokens] = count
        self._evicted[node.digest] = None
        if len(self._evicted) > self._max_remembered:
            del self._evicted[next(iter(self._evicted))]

    def held(self) -> Iterator[Node]:
        """Nodes that some block holds, each after its parent (a node keeps its parent, made before it)."""
        return (node for node in list(self._nodes.values()) if node.num_held)

    def why_missing(self, keys: list[BlockKey], index: int) -> str:
        """Why block `index` of a prompt had to be computed. For operators: it tells one tenant about
        another's prompts, so it never goes into an answer."""
        key = keys[index]
        if key.digest in self._evicted:
            return "evicted"
        if index == 0 and key.tokens in self._heads and self.find(None, key) is None:
            return "salt"
        return "new"

    def reset(self) -> None:
        self._nodes.clear()
        self._evicted.clear()
        self._heads.clear()
