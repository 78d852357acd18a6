"""Each kernel beside the limit that binds it, measured in the same run.

    ./run bench kernels [--only linear,decode,prefill,sampler] [--threads 2] [--isa NAME] [--json FILE]

Linear: every format over M rows; a program of as many copies of the matrix as make `--stream-mb`, so that
weights come from where a model's would. Decode attention reads scattered blocks; prefill attention computes
one long prompt. The limit is the later of two: all bytes at the bandwidth of a piece of that size, all
operations at the rate of the format's own arithmetic. A limit is the best pass of its loop, so the share of
it is that of the best run; the median stands beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.executors.base import SamplingBatch
from octavo.kernels import _native, native
from octavo.program.cost import UNITS

SHAPES = {"smollm2 gate+up": (3072, 576), "smollm2 down": (576, 1536), "qwen 1.5b gate+up": (17920, 1536)}
ROWS = (1, 4, 8, 16, 32, 64, 128, 512)
HEADS = {"9 heads of 3 kv": (9, 3), "14 heads of 2 kv": (14, 2)}
DECODES = ((1, 2048), (16, 512), (16, 2048), (16, 8192))  # batch, context
PREFILLS = (512, 2048, 4096)
VOCABS = (49152, 151936)
HEAD_DIM = 64
BLOCK = 16
ATTENTION_LAYERS = 4
LEAST_RUNS = 5
FLOAT = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one call; `unit` is the arithmetic of `ops`."""

    kernel: str
    shape: str
    format: str
    time_us: float  # median
    best_us: float
    ops: float
    unit: str
    num_bytes: float
    limit_us: float
    bound_by: str


class Machine:
    """Threads, instruction set, and the limits measured so far."""

    def __init__(self, num_threads: int, isa: str, seconds: float, stream_bytes: int) -> None:
        self.num_threads, self.isa, self.seconds, self.stream_bytes = num_threads, isa, seconds, stream_bytes
        self.compute = native.compute_speeds(isa, num_threads, 0.5)
        self._read: dict[int, float] = {}

    def read(self, num_bytes: float) -> float:
        """Bytes per second of a piece of about that size (a power of two)."""
        size = 1 << min(max(round(np.log2(max(num_bytes, 1))), 18), 30)
        if size not in self._read:
            self._read[size] = native.read_speed(size, self.num_threads, 0.3)
        return self._read[size]

    def times_us(self, run: Callable[[], None], calls: int = 1) -> tuple[float, float]:
        """(median, best) of a call, of `calls` in each of the runs that fit into `seconds` after a first one."""
        run()
        times: list[float] = []
        start = time.perf_counter()
        while len(times) < LEAST_RUNS or time.perf_counter() - start < self.seconds:
            before = time.perf_counter()
            run()
            times.append(time.perf_counter() - before)
        return 1e6 * statistics.median(times) / calls, 1e6 * min(times) / calls

    def measured(
        self,
        kernel: str,
        shape: str,
        form: str,
        times_us: tuple[float, float],
        ops: float,
        unit: str,
        num_bytes: float,
        whole: float,
    ) -> Measured:
        """`whole`: bytes that a run streams, of which this call's are a part."""
        compute_us = 1e6 * ops / self.compute[unit]
        memory_us = 1e6 * num_bytes / self.read(whole)
        bound_by = "compute" if compute_us >= memory_us else "memory"
        return Measured(
            kernel, shape, form, *times_us, ops, unit, num_bytes, max(compute_us, memory_us), bound_by
        )

    def program(self, max_tokens: int, max_rows: int, width: int, arena_bytes: int) -> native.Program:
        return native.Program(
            max_tokens=max_tokens,
            max_rows=max_rows,
            num_groups=1,
            table_width=width,
            block_size=BLOCK,
            vocab=64,
            num_threads=self.num_threads,
            isa=self.isa,
            arena_bytes=arena_bytes,
        )


def linear(machine: Machine) -> Iterator[Measured]:
    rng = np.random.default_rng(0)
    most = max(ROWS)
    for shape, (outputs, inputs) in SHAPES.items():
        values = (rng.standard_normal((outputs, inputs)) * 0.05).astype(np.float32)
        part: native.Part = ("F32", values.view(np.uint8).ravel(), outputs, inputs, None)
        for form in native.FORMATS:
            program = machine.program(most, 1, 0, most * (outputs + inputs) * FLOAT + 64)
            x = program.view(0, inputs * FLOAT, inputs)
            y = program.view(most * inputs * FLOAT, outputs * FLOAT, outputs)
            first = native.pack([part], form, num_threads=machine.num_threads)
            copies = max(1, round(machine.stream_bytes / first.nbytes))
            for i in range(copies):
                weight = native.pack([part], form, num_threads=machine.num_threads) if i else first
                program.linear(f"linear.{i}", x, y, weight)
            program.array(x, most)[:] = rng.standard_normal((most, inputs))
            for rows in ROWS:
                program.io("row_starts")[:2] = [0, rows]
                times_us = machine.times_us(lambda p=program, n=rows: p.run(n, 1, 0), copies)
                ops = 2.0 * rows * outputs * inputs
                yield machine.measured(
                    f"linear M={rows}",
                    shape,
                    form,
                    times_us,
                    ops,
                    UNITS[form],
                    first.nbytes,
                    first.nbytes * copies,
                )


class Attention:
    """A few layers of attention over `batch` sequences whose blocks lie scattered over the pool."""

    def __init__(
        self, machine: Machine, heads: int, kv_heads: int, new: int, context: int, batch: int
    ) -> None:
        tokens, length = new * batch, context + new
        width = -(-length // BLOCK)
        self.kv_bytes = 2 * kv_heads * HEAD_DIM * 2 * length * batch  # bf16, of one layer
        q_width = heads * HEAD_DIM
        program = machine.program(tokens, batch, width, 2 * tokens * q_width * FLOAT + 64)
        q = program.view(0, q_width * FLOAT, q_width)
        y = program.view(tokens * q_width * FLOAT, q_width * FLOAT, q_width)
        for layer in range(ATTENTION_LAYERS):
            program.attend(
                f"attend.{layer}",
                q,
                y,
                group=0,
                index=layer,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=HEAD_DIM,
                dtype="bf16",
                scale=HEAD_DIM**-0.5,
            )
        program.allocate_kv(ATTENTION_LAYERS * kv_heads * 2 * BLOCK * HEAD_DIM * 2, batch * width)
        program.kv()[:] = 0x3C  # bf16 0.0115: finite, and every page is real memory
        rng = np.random.default_rng(0)
        program.array(q, tokens)[:] = rng.standard_normal((tokens, q_width))
        program.io("block_tables")[0] = rng.permutation(batch * width).reshape(batch, width)
        program.io("row_starts")[:] = np.arange(batch + 1) * new
        program.io("context_lens")[:] = context
        program.io("positions")[:] = np.tile(np.arange(context, length), batch)
        self.pairs = batch * sum(range(context + 1, length + 1))
        self.ops = 4.0 * heads * HEAD_DIM * self.pairs
        self.run: Callable[[], None] = lambda: program.run(tokens, batch, 0)


def attention(machine: Machine, name: str, cases: list[tuple[int, int, int]]) -> Iterator[Measured]:
    """`cases`: (new tokens, context, batch)."""
    for shape, (heads, kv_heads) in HEADS.items():
        for new, context, batch in cases:
            made = Attention(machine, heads, kv_heads, new, context, batch)
            times_us = machine.times_us(made.run, ATTENTION_LAYERS)
            shown = f"{name} {batch} x {context + 1:,}" if new == 1 else f"{name} {new:,}"
            whole = made.kv_bytes * ATTENTION_LAYERS
            yield machine.measured(shown, shape, "bf16", times_us, made.ops, "bf16", made.kv_bytes, whole)


def decode(machine: Machine) -> Iterator[Measured]:
    return attention(machine, "decode", [(1, context - 1, batch) for batch, context in DECODES])


def prefill(machine: Machine) -> Iterator[Measured]:
    return attention(machine, "prefill", [(tokens, 0, 1) for tokens in PREFILLS])


def sampler(machine: Machine) -> Iterator[Measured]:
    """One row, one thread; the limit is a single read of the logits."""
    kinds: dict[str, dict[str, float]] = {
        "greedy": {},
        "top_k 40 top_p 0.95": {"temperature": 1.0, "top_k": 40, "top_p": 0.95},
        "flat top_p 0.999": {"temperature": 1.5, "top_p": 0.999},
    }
    one = Machine(1, machine.isa, machine.seconds, machine.stream_bytes)
    rng = np.random.default_rng(0)
    for vocab in VOCABS:
        logits = rng.standard_normal((1, vocab)).astype(np.float32) * 2
        for name, fields in kinds.items():
            batch = SamplingBatch.greedy(1)
            for key, value in fields.items():
                getattr(batch, key)[:] = value

            def run(logits: np.ndarray = logits, batch: Any = batch) -> None:
                _native.sample(logits, batch, machine.isa)

            times_us = one.times_us(run)
            yield one.measured(
                f"sample {name}", f"{vocab:,} words", "f32", times_us, 0, "f32", logits.nbytes, logits.nbytes
            )


PARTS = {"linear": linear, "decode": decode, "prefill": prefill, "sampler": sampler}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--isa", default=native.best_isa(), help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each figure (default: %(default)s)")
    parser.add_argument(
        "--stream-mb", type=int, default=128, help="weights of a linear program (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args(argv)
    names = given.only.split(",")
    if unknown := set(names) - set(PARTS):
        parser.error(f"--only has {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    machine = Machine(given.threads, given.isa, given.seconds, given.stream_mb << 20)
    speeds = ", ".join(f"{kind} {speed / 1e9:,.0f}" for kind, speed in machine.compute.items())
    print(f"{given.isa}, {given.threads} threads; GFLOP/s at most: {speeds}\n")
    print(line(["kernel", "shape", "format", "median us", "best us", "GFLOP/s", "GB/s", "% of its limit"]))
    found = []
    for name in names:
        for one in PARTS[name](machine):
            found.append(one)
            print(line(row(one)), flush=True)
    if given.json:
        from benchmarks.machine import facts

        whole = {"machine": facts(), "isa": given.isa, "threads": given.threads, "compute": machine.compute}
        given.json.write_text(json.dumps(whole | {"kernels": [asdict(one) for one in found]}, indent=1))
    return 0


def row(one: Measured) -> list[str]:
    return [
        one.kernel,
        one.shape,
        one.format,
        f"{one.time_us:,.1f}",
        f"{one.best_us:,.1f}",
        f"{one.ops / one.best_us / 1e3:,.0f}" if one.ops else "",
        f"{one.num_bytes / one.best_us / 1e3:,.1f}",
        f"{100 * one.limit_us / one.best_us:.0f} {one.bound_by}",
    ]


def line(cells: list[str]) -> str:
    widths = (27, 18, 6, 11, 11, 8, 7, 14)
    return "  ".join(
        cell.ljust(width) if i < 3 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
