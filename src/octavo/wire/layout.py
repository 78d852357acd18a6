"""Shape of the KV cache: which layers share a block table, and what one block holds.

Shared by the scheduler (groups, windows, block size) and the executors (strides). A *group* is a
set of layers with the same attention span and the same number of layers as every other group, so
that one block id, of one pool, is one contiguous piece of memory whatever group uses it:

    block = [layer in group][kv head][K | V]

A model with one kind of attention has one group. Gemma 3 (15 sliding + 3 full layers) has six
groups of three layers: one full, five sliding, each with its own block table per request.
"""

from __future__ import annotations

import msgspec


class KVGroup(msgspec.Struct, frozen=True):
    """`layers[i]` lies at index i of a block. `window`: tokens a query sees, itself included; 0 = all."""

    layers: tuple[int, ...]
    window: int = 0


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    groups: tuple[KVGroup, ...]
    block_size: int  # tokens
    kv_heads: int
    head_dim: int
    dtype: str  # "bf16" | "f32"

    @property
    def layers_per_block(self) -> int:
        return max(len(g.layers) for g in self.groups)

    @property
    def block_bytes(self) -> int:
        item = {"bf16": 2, "f16": 2, "f32": 4}[self.dtype]
        return self.layers_per_block * self.kv_heads * 2 * self.block_size * self.head_dim * item

    def place(self, layer: int) -> tuple[int, int]:
        """(group, index in the block) of a layer."""
        for g, group in enumerate(self.groups):
            if layer in group.layers:
                return g, group.layers.index(layer)
        raise ValueError(f"layer {layer} is in no KV group")


def group_layers(windows: list[int]) -> tuple[KVGroup, ...]:
    """Groups for a model whose layer i has `windows[i]` (0 = full attention).

    Layers of one window are cut into groups of equal size, the size being the smallest number of
    layers that any window has; a last, shorter group wastes part of its blocks.
    """
    kinds: dict[int, list[int]] = {}
    for layer, window in enumerate(windows):
        kinds.setdefault(window, []).append(layer)
    size = min(len(layers) for layers in kinds.values())
    groups = []
    for window in sorted(kinds):
        layers = kinds[window]
        groups += [KVGroup(tuple(layers[i : i + size]), window) for i in range(0, len(layers), size)]
    return tuple(groups)
