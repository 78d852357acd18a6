"""Runs single native ops on numpy arrays. Owns the arena and the metadata of a small program; knows no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels import _native as native

F32 = npt.NDArray[np.float32]
MAX_TOKENS = 512


@dataclass
class OpRunner:
    """One program. `buffer` lays buffers out one behind the other; `run` fills the inputs and reads back."""

    isa: str
    threads: int = 1
    max_tokens: int = MAX_TOKENS
    max_rows: int = 16
    num_groups: int = 1
    table_width: int = 64
    block_size: int = 16
    vocab: int = 1000
    arena_bytes: int = 64 << 20
    program: Any = field(init=False)
    _used: int = 0

    def __post_init__(self) -> None:
        self.program = native.Program(
            max_tokens=self.max_tokens,
            max_rows=self.max_rows,
            num_groups=self.num_groups,
            table_width=self.table_width,
            block_size=self.block_size,
            vocab=self.vocab,
            num_threads=self.threads,
            isa=self.isa,
            arena_bytes=self.arena_bytes,
        )
        self.program.allocate_kv(4096, 64)

    def buffer(self, width: int, rows: str = "tokens", pad: int = 0) -> Any:
        """A buffer whose rows lie `pad` elements further apart than they need."""
        stride = (width + pad) * 4
        count = self.max_tokens + (self.max_rows if rows == "samples" else 0)
        view = self.program.view(self._used, stride, width, rows)
        self._used = (self._used + stride * count + 63) // 64 * 64
        return view

    def write(self, buffer: Any, values: F32) -> None:
        self.program.array(buffer, len(values))[:] = values

    def read(self, buffer: Any, rows: int) -> F32:
        return np.array(self.program.array(buffer, rows))

    def step(
        self, lengths: Sequence[int], contexts: Sequence[int] | None = None, sample_tokens: Sequence[int] = ()
    ) -> None:
        """Runs a step of len(lengths) rows; block tables are as the caller left them."""
        io = self.program.io
        contexts = contexts if contexts is not None else [0] * len(lengths)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        io("row_starts")[: len(starts)] = starts
        io("context_lens")[: len(contexts)] = contexts
        io("positions")[: starts[-1]] = np.concatenate(
            [c + np.arange(n) for c, n in zip(contexts, lengths, strict=True)]
        )
        io("sample_tokens")[: len(sample_tokens)] = sample_tokens
        self.program.run(T=int(starts[-1]), R=len(lengths), S=len(sample_tokens))


def run_unary(
    isa: str,
    x: F32,
    add: Callable[[Any, Any, Any], None],
    width: int | None = None,
    threads: int = 1,
    pad: int = 0,
) -> F32:
    """y of an op with one input; `add(program, x, y)` appends it."""
    runner = OpRunner(isa, threads, table_width=64)
    source, target = runner.buffer(x.shape[1], pad=pad), runner.buffer(width or x.shape[1], pad=pad)
    add(runner.program, source, target)
    runner.write(source, x)
    runner.step([len(x)])
    return runner.read(target, len(x))
