"""Memory arithmetic: what a context costs in KV blocks, and what is left for them. Pure numbers."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config.facts import KVGroupFacts, ModelFacts

GIB = 2**30
MIB = 2**20
KV_CAP_BYTES = 4 * GIB  # more only when asked: unused KV is memory that other programs miss
KV_SHARE_OF_LEFT = 0.6
PROCESS_BYTES = 320 * MIB  # both processes with their libraries, tokenizer, buffers of sockets
RESERVE_FRAC = 0.05  # of the memory that may be taken: page cache, allocator, surprises


def fmt(num_bytes: float) -> str:
    """Bytes for people: 1.5 GiB, 98.4 MiB."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", 1024)):
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes:.0f} B"


def block_bytes(model: ModelFacts, block_size: int, kv_dtype: str) -> int:
    """One block: every layer of one group, keys and values."""
    item = {"bf16": 2, "f32": 4}[kv_dtype]
    return model.kv_layers_per_block * model.kv_heads * 2 * model.head_dim * item * block_size


def blocks_for(groups: tuple[KVGroupFacts, ...], num_tokens: int, block_size: int, step_tokens: int) -> int:
    """Most blocks that a request of `num_tokens` holds at once.

    A group with a window keeps the window and the tokens of one step; blocks behind it are freed.
    """
    total = 0
    for group in groups:
        held = num_tokens if not group.window else min(num_tokens, group.window + step_tokens)
        extra = 1 if group.window and held < num_tokens else 0  # a window rarely starts on a border
        total += -(-held // block_size) + extra
    return total


@dataclass(frozen=True, slots=True)
class Budget:
    """Where the memory goes. `left` is what KV may take at most."""

    total: int
    weights: int
    arena: int
    process: int
    reserve: int

    @property
    def left(self) -> int:
        return self.total - self.weights - self.arena - self.process - self.reserve


def largest_len(model: ModelFacts, kv_bytes: int, block_size: int, kv_dtype: str, step_tokens: int) -> int:
    """Largest context of one request whose blocks fit in `kv_bytes`, at most the model's own."""
    num_blocks = kv_bytes // block_bytes(model, block_size, kv_dtype)
    low, high = 0, model.max_position
    while low < high:
        middle = (low + high + 1) // 2
        if blocks_for(model.kv_groups, middle, block_size, step_tokens) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low
