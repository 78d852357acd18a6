"""Frame: one step under way. Values of the buffers, the step's index tensors, the KV cache.

Owns where a token's key and value lie. Does not know what any op computes (torch_executor.ops).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from octavo.executors.base import StepBatch
from octavo.executors.torch_executor.weights import Weights
from octavo.program.program import Program
from octavo.wire.layout import KVLayout

KV_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


class KVCache:
    """`data` is [blocks, layers per block, kv heads, K and V, block size, head_dim].

    With `dtype` float64 (oracle of float64) values are kept in full, whatever the layout says.
    """

    def __init__(self, layout: KVLayout, num_blocks: int, dtype: torch.dtype, device: torch.device) -> None:
        self.layout = layout
        self.file_dtype = KV_DTYPES[layout.dtype]
        stored = dtype if dtype == torch.float64 else self.file_dtype
        shape = (num_blocks, layout.layers_per_block, layout.kv_heads, 2, layout.block_size, layout.head_dim)
        self.data = torch.zeros(shape, dtype=stored, device=device)

    def read(self, blocks: list[int]) -> npt.NDArray[np.uint8]:
        content = self.data[torch.tensor(blocks, dtype=torch.int64)].to(self.file_dtype).cpu().contiguous()
        return content.view(torch.uint8).reshape(len(blocks), self.layout.block_bytes).numpy().copy()

    def write(self, blocks: list[int], data: npt.NDArray[np.uint8]) -> None:
        expected = (len(blocks), self.layout.block_bytes)
        if data.shape != expected:
            raise ValueError(f"block data has the shape {data.shape}, allowed is {expected}")
        content = torch.from_numpy(np.array(data, np.uint8)).view(self.file_dtype)
        shape = (len(blocks), *self.data.shape[1:])
        self.data[torch.tensor(blocks, dtype=torch.int64)] = content.reshape(shape).to(self.data)


class Frame:
    """Buffers are made when an op writes them; a view reads and writes columns of its parent."""

    def __init__(
        self,
        program: Program,
        weights: Weights,
        cache: KVCache | None,
        batch: StepBatch,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.program = program
        self.weights = weights
        self.cache = cache
        self.batch = batch
        self.dtype = dtype
        self.device = device
        self.num_tokens = len(batch.token_ids)
        self._values: dict[int, torch.Tensor] = {}

    def index(self, values: npt.NDArray[np.integer]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, np.int64)).to(self.device)

    def read(self, buffer: int) -> torch.Tensor:
        """[rows, width]"""
        b = self.program.buffers[buffer]
        if b.parent is None:
            return self._values[buffer]
        return self._values[b.parent][:, b.offset : b.offset + b.width]

    def write(self, buffer: int, value: torch.Tensor) -> None:
        b = self.program.buffers[buffer]
        if b.parent is None:
            self._values[buffer] = value
            return
        if b.parent not in self._values or self._values[b.parent].shape[0] != value.shape[0]:
            shape = (value.shape[0], self.program.buffers[b.parent].width)
            self._values[b.parent] = torch.empty(shape, dtype=self.dtype, device=self.device)
        self._values[b.parent][:, b.offset : b.offset + b.width] = value

    @cached_property
    def gathered(self) -> torch.Tensor:
        """Tokens of the "samples" rows: those that sample, then those that score."""
        return self.index(np.concatenate([self.batch.sample_tokens, self.batch.score_tokens]))

    @cached_property
    def token_rows(self) -> npt.NDArray[np.int64]:
        """Row of each token, [T]."""
        lengths = np.diff(self.batch.row_starts)
        return np.repeat(np.arange(len(lengths)), lengths)

    @cached_property
    def token_places(self) -> npt.NDArray[np.int64]:
        """Index of each token in its sequence, [T]."""
        rows = self.token_rows
        inside = np.arange(self.num_tokens) - np.asarray(self.batch.row_starts, np.int64)[rows]
        return np.asarray(self.batch.context_lens, np.int64)[rows] + inside

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """k, v: [T, kv heads, head_dim]"""
        assert self.cache is not None
        group, index = self.program.kv.place(layer)
        size = self.program.kv.block_size
        tables = np.asarray(self.batch.block_tables[group], np.int64)
        blocks = self.index(tables[self.token_rows, self.token_places // size])
        slots = self.index(self.token_places % size)
        self.cache.data[blocks, index, :, 0, slots] = k.to(self.cache.data.dtype)
        self.cache.data[blocks, index, :, 1, slots] = v.to(self.cache.data.dtype)

    def load(self, layer: int, row: int, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of positions first..end of a row, each [kv heads, end - first, head_dim]."""
        assert self.cache is not None
        group, index = self.program.kv.place(layer)
        size = self.program.kv.block_size
        low = first // size
        blocks = self.index(self.batch.block_tables[group][row, low : -(-end // size)])
        content = self.cache.data[blocks, index].to(self.dtype)  # [blocks, kv heads, 2, block size, head_dim]
        joined = content.permute(2, 1, 0, 3, 4).flatten(2, 3)  # [2, kv heads, positions, head_dim]
        part = joined[:, :, first - low * size : end - low * size]
        return part[0], part[1]
