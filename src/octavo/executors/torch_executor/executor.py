"""TorchExecutor: a Program run op by op in torch.

Owns the order of a step and the executor's life. Attention is a gather and two products per row, the
sampler is numpy: what it gives is the reference that the native executor is held against.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from octavo.errors import CapacityError, ConfigError, KernelFault
from octavo.executors.base import F32, ExecutorOptions, StepBatch, StepOutput, nothing
from octavo.executors.torch_executor.frame import Frame, KVCache
from octavo.executors.torch_executor.ops import run_op
from octavo.executors.torch_executor.sampler import finish_step
from octavo.executors.torch_executor.weights import STORED, Weights
from octavo.program.check import verify
from octavo.program.program import Program
from octavo.weights.source import ModelSource

DTYPES = {"f32": torch.float32, "f64": torch.float64}


class TorchExecutor:
    """`dtype` is what is computed in: "f32", or "f64" where a test needs a sharper reference."""

    def __init__(self, *, device: str = "cpu", dtype: str = "f32") -> None:
        if dtype not in DTYPES:
            raise ConfigError(f"the torch executor computes in {', '.join(DTYPES)}, not in {dtype!r}")
        self.device = torch.device(device)
        self.dtype = DTYPES[dtype]
        self._program: Program | None = None
        self._weights: Weights | None = None
        self._options: ExecutorOptions | None = None
        self._cache: KVCache | None = None

    def bind(self, program: Program, source: ModelSource, options: ExecutorOptions) -> None:
        """Raises WeightError when a tensor is missing or has another shape, ConfigError for a format."""
        verify(program)
        if options.isa != "torch":
            raise ConfigError(f"the torch executor has no instruction set {options.isa!r}, allowed: torch")
        weights = Weights(options.weights, self.dtype, self.device)
        weights.load(program, source)
        self._program, self._weights, self._options = program, weights, options
        self._cache = None
        if self.device.type == "cpu":
            torch.set_num_threads(options.num_threads)

    def allocate_kv(self, num_blocks: int) -> None:
        self._cache = KVCache(self._bound().kv, num_blocks, self.dtype, self.device)

    def run(self, batch: StepBatch, on_start: Callable[[], None] = nothing) -> StepOutput:
        on_start()
        logits = self._forward(batch, "logits")
        return finish_step(logits, batch)

    def logits(self, batch: StepBatch) -> F32:
        return self._forward(batch, "logits")[: len(batch.sample_tokens)]

    def hidden(self, batch: StepBatch, output: str) -> F32:
        """`[rows, width]` of any output of the program, e.g. of a tapped layer."""
        return self._forward(batch, output)

    def read_blocks(self, blocks: list[int]) -> npt.NDArray[np.uint8]:
        return self._kv().read(blocks)

    def write_blocks(self, blocks: list[int], data: npt.NDArray[np.uint8]) -> None:
        self._kv().write(blocks, data)

    def memory(self) -> dict[str, int]:
        kv = 0 if self._cache is None else self._cache.data.numel() * self._cache.data.element_size()
        weights = 0 if self._weights is None else self._weights.nbytes
        return {"weights": weights, "kv": kv, "arena": 0, "sampler": 0}

    def describe(self) -> list[list[str]]:
        program = self._bound()
        assert self._options is not None
        asked, kept = self._options.weights, str(STORED[self._options.weights]).removeprefix("torch.")
        reason = "as asked"
        if asked in ("file", "w8", "w4"):
            reason = f"the torch executor has no block formats: weights {asked!r} are expanded"
        elif self.dtype != STORED[asked]:
            reason = "widened when used"
        return [
            ["executor", f"torch {torch.__version__} on {self.device}", "the reference, op by op"],
            ["arithmetic", str(self.dtype).removeprefix("torch."), "every op"],
            ["matrices", kept, reason],
            ["embedding, norms, biases", "float32", "always"],
            ["kv cache", program.kv.dtype, "[block][layer][head][K | V][position][column]"],
            ["attention", "gather and product per row", "the reference"],
            ["sampler", "numpy float64", "the reference"],
        ]

    def close(self) -> None:
        self._program = self._weights = self._options = self._cache = None

    def _bound(self) -> Program:
        if self._program is None:
            raise ConfigError("no program is bound", fix="call bind first")
        return self._program

    def _kv(self) -> KVCache:
        if self._cache is None:
            raise CapacityError("there is no KV memory", fix="call allocate_kv first")
        return self._cache

    def _check_size(self, batch: StepBatch) -> None:
        assert self._options is not None
        for what, given, most in (
            ("tokens", len(batch.token_ids), self._options.max_tokens),
            ("rows", len(batch.context_lens), self._options.max_rows),
            ("blocks in a row's table", batch.block_tables.shape[2], self._options.max_blocks_per_row),
        ):
            if given > most:
                raise CapacityError(f"a step of {given} {what} was given; {most} are allowed")

    @torch.inference_mode()
    def _forward(self, batch: StepBatch, output: str) -> F32:
        program = self._bound()
        assert self._weights is not None
        if output not in program.outputs:
            known = ", ".join(program.outputs)
            raise ConfigError(f"program {program.name!r} has no output {output!r}, only {known}")
        self._check_size(batch)
        frame = Frame(program, self._weights, self._kv(), batch, self.dtype, self.device)
        for position, op in enumerate(program.ops):
            try:
                run_op(frame, op)
            except (RuntimeError, IndexError) as error:
                raise KernelFault(str(error), op=op.name, position=position) from error
        return np.asarray(frame.read(program.outputs[output]).to(torch.float32).cpu().numpy())
