"""Each kernel beside the limit that binds it, measured in the same run, and beside the goals of issue 3.

    ./run bench kernels [--only linear,decode,prefill,sampler] [--threads 2] [--isa NAME] [--json FILE] [--quick]

Linear: every format over M rows; a program of as many copies of the matrix as make `--stream-mb`, so that
weights come from where a model's would. Decode attention reads scattered blocks; prefill attention computes
one long prompt. The limit is the later of two: all bytes at the bandwidth of a piece of that size, all
operations at the full rate of the unit that the kernel uses (`program.cost.unit_of`). A shared machine swings for
seconds at a time, so cases are visited in random order, several times, with the limits measured anew in between; the
best of all visits counts on both sides, and the median stands beside it. A goal is a least share of the limit.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from octavo.cli.bench_step import KV_BYTE
from octavo.executors.base import SamplingBatch
from octavo.kernels import _native, native
from octavo.program.cost import unit_of

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
LIMIT_S = 0.05  # of each limit, a visit
FLOAT = 4
# Least shares of the limit (issue 3): many rows of a format; one row, for all formats; attention.
MANY_ROWS = 64
MANY_GOALS = {"bf16": 0.94, "w8": 0.80, "w4": 0.75}
ONE_ROW_GOAL = 0.90
DECODE_GOAL, DECODE_OF_GOAL = 0.85, (16, 2048)
PREFILL_GOAL = 0.60


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
    goal: float | None

    @property
    def share(self) -> float:
        return self.limit_us / self.best_us


@dataclass
class Case:
    """`run` makes `calls` calls, of which each does `ops` and reads `num_bytes` of the `whole` that a run streams."""

    kernel: str
    shape: str
    format: str
    run: Callable[[], None]
    calls: int
    ops: float
    unit: str
    num_bytes: float
    whole: float
    num_threads: int
    goal: float | None = None
    times_us: list[float] = field(default_factory=list)  # of a call

    def visit(self, seconds: float, least: int) -> None:
        start, done = time.perf_counter(), 0
        while done < least or time.perf_counter() - start < seconds:
            before = time.perf_counter()
            self.run()
            self.times_us.append(1e6 * (time.perf_counter() - before) / self.calls)
            done += 1


class Machine:
    """Threads, instruction set, and the best of each limit seen so far."""

    def __init__(self, num_threads: int, isa: str, stream_bytes: int) -> None:
        self.num_threads, self.isa, self.stream_bytes = num_threads, isa, stream_bytes
        self.compute: dict[str, float] = {}
        self._read: dict[tuple[int, int], float] = {}

    def measure_limits(self, cases: list[Case]) -> None:
        """Those that these cases need, once more."""
        found = native.compute_speeds(self.isa, self.num_threads, LIMIT_S)
        self.compute = {kind: max(speed, self.compute.get(kind, 0.0)) for kind, speed in found.items()}
        for key in {(self._size(case.whole), case.num_threads) for case in cases}:
            speed = native.read_speed(*key, LIMIT_S)
            self._read[key] = max(speed, self._read.get(key, 0.0))

    @staticmethod
    def _size(num_bytes: float) -> int:
        """A power of two, about as large."""
        return 1 << min(max(round(np.log2(max(num_bytes, 1))), 18), 30)

    def measured(self, case: Case) -> Measured:
        compute_us = 1e6 * case.ops / self.compute[case.unit]
        memory_us = 1e6 * case.num_bytes / self._read[self._size(case.whole), case.num_threads]
        return Measured(
            case.kernel,
            case.shape,
            case.format,
            statistics.median(case.times_us),
            min(case.times_us),
            case.ops,
            case.unit,
            case.num_bytes,
            max(compute_us, memory_us),
            "compute" if compute_us >= memory_us else "memory",
            case.goal,
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


def linear(machine: Machine) -> Iterator[list[Case]]:
    rng = np.random.default_rng(0)
    most = max(ROWS)
    for shape, (outputs, inputs) in SHAPES.items():
        values = (rng.standard_normal((outputs, inputs)) * 0.05).astype(np.float32)
        part: native.Part = ("F32", values.view(np.uint8).ravel(), outputs, inputs, None)
        cases = []
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
            cases += [
                Case(
                    f"linear M={rows}",
                    shape,
                    form,
                    lambda p=program, n=rows: _run_rows(p, n),
                    copies,
                    2.0 * rows * outputs * inputs,
                    unit_of(form, machine.isa, rows),
                    first.nbytes,
                    first.nbytes * copies,
                    machine.num_threads,
                    linear_goal(form, rows),
                )
                for rows in ROWS
            ]
        yield cases


def _run_rows(program: native.Program, rows: int) -> None:
    program.io("row_starts")[:2] = [0, rows]
    program.run(rows, 1, 0)


def linear_goal(form: str, rows: int) -> float | None:
    if rows == 1:
        return ONE_ROW_GOAL
    return MANY_GOALS.get(form) if rows >= MANY_ROWS else None


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
        program.kv()[:] = KV_BYTE  # finite, and every page is real memory
        rng = np.random.default_rng(0)
        program.array(q, tokens)[:] = rng.standard_normal((tokens, q_width))
        program.io("block_tables")[0] = rng.permutation(batch * width).reshape(batch, width)
        program.io("row_starts")[:] = np.arange(batch + 1) * new
        program.io("context_lens")[:] = context
        program.io("positions")[:] = np.tile(np.arange(context, length), batch)
        self.pairs = batch * sum(range(context + 1, length + 1))
        self.ops = 4.0 * heads * HEAD_DIM * self.pairs
        self.run: Callable[[], None] = lambda: program.run(tokens, batch, 0)


def attention(
    machine: Machine, name: str, cases: list[tuple[int, int, int]], goals: Callable[[int, int], float | None]
) -> Iterator[list[Case]]:
    """`cases`: (new tokens, context, batch); `goals`: of (batch, tokens seen by the last)."""
    for shape, (heads, kv_heads) in HEADS.items():
        made = []
        for new, context, batch in cases:
            one = Attention(machine, heads, kv_heads, new, context, batch)
            made.append(
                Case(
                    f"{name} {batch} x {context + 1:,}" if new == 1 else f"{name} {new:,}",
                    shape,
                    "bf16",
                    one.run,
                    ATTENTION_LAYERS,
                    one.ops,
                    "bf16",
                    one.kv_bytes,
                    one.kv_bytes * ATTENTION_LAYERS,
                    machine.num_threads,
                    goals(batch, context + new),
                )
            )
        yield made


def decode(machine: Machine) -> Iterator[list[Case]]:
    cases = [(1, context - 1, batch) for batch, context in DECODES]
    return attention(machine, "decode", cases, lambda *of: DECODE_GOAL if of == DECODE_OF_GOAL else None)


def prefill(machine: Machine) -> Iterator[list[Case]]:
    cases = [(tokens, 0, 1) for tokens in PREFILLS]
    return attention(machine, "prefill", cases, lambda *_: PREFILL_GOAL)


def sampler(machine: Machine) -> Iterator[list[Case]]:
    """One row, one thread; the limit is a single read of the logits."""
    kinds: dict[str, dict[str, float]] = {
        "greedy": {},
        "top_k 40 top_p 0.95": {"temperature": 1.0, "top_k": 40, "top_p": 0.95},
        "flat top_p 0.999": {"temperature": 1.5, "top_p": 0.999},
    }
    rng = np.random.default_rng(0)
    cases = []
    for vocab in VOCABS:
        logits = rng.standard_normal((1, vocab)).astype(np.float32) * 2
        for name, fields in kinds.items():
            batch = SamplingBatch.greedy(1)
            for key, value in fields.items():
                getattr(batch, key)[:] = value

            def run(logits: np.ndarray = logits, batch: Any = batch) -> None:
                _native.sample(logits, batch, machine.isa)

            shape = f"{vocab:,} words"
            cases.append(
                Case(f"sample {name}", shape, "f32", run, 1, 0, "f32", logits.nbytes, logits.nbytes, 1)
            )
    yield cases


PARTS = {"linear": linear, "decode": decode, "prefill": prefill, "sampler": sampler}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--isa", default=native.best_isa(), help="default: %(default)s")
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="for each figure, in all visits (default: %(default)s)"
    )
    parser.add_argument("--visits", type=int, default=8, help="of each case (default: %(default)s)")
    parser.add_argument(
        "--stream-mb", type=int, default=128, help="weights of a linear program (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="two visits, 32 MB: a look, no figures to keep")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args(argv)
    names = given.only.split(",")
    if unknown := set(names) - set(PARTS):
        parser.error(f"--only has {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if given.quick:
        given.visits, given.seconds, given.stream_mb = 2, 0.05, 32
    machine = Machine(given.threads, given.isa, given.stream_mb << 20)
    done: list[Case] = []
    for name in names:
        for cases in PARTS[name](machine):
            visit(machine, cases, given.visits, given.seconds)
            for case in cases:
                case.run = _nothing  # the memory of its program goes
            done += cases
    found = [machine.measured(case) for case in done]  # only now, with the limits of the whole run
    speeds = ", ".join(f"{kind} {speed / 1e9:,.0f}" for kind, speed in machine.compute.items())
    print(f"{given.isa}, {given.threads} threads; GFLOP/s at most: {speeds}\n")
    head = [
        "kernel",
        "shape",
        "format",
        "median us",
        "best us",
        "GFLOP/s",
        "GB/s",
        "unit",
        "% of its limit",
        "goal",
    ]
    print("\n".join(map(line, [head, *map(row, found)])))
    if given.json:
        from benchmarks.machine import facts

        whole = {"machine": facts(), "isa": given.isa, "threads": given.threads, "compute": machine.compute}
        given.json.write_text(json.dumps(whole | {"kernels": [asdict(one) for one in found]}, indent=1))
    return 0


def visit(machine: Machine, cases: list[Case], visits: int, seconds: float) -> None:
    """Every case `visits` times, in another order each time, and its limits as often."""
    rng = random.Random(0)
    least = -(-LEAST_RUNS // visits)
    for number in range(visits):
        shown = f"{cases[0].kernel}, {cases[0].shape}: visit {number + 1} of {visits}"
        print(f"\r{shown:<70}", end="", file=sys.stderr, flush=True)
        machine.measure_limits(cases)
        for case in rng.sample(cases, len(cases)):
            case.visit(seconds / visits, least)
    print(file=sys.stderr)


def _nothing() -> None:
    pass


def row(one: Measured) -> list[str]:
    return [
        one.kernel,
        one.shape,
        one.format,
        f"{one.time_us:,.1f}",
        f"{one.best_us:,.1f}",
        f"{one.ops / one.best_us / 1e3:,.0f}" if one.ops else "",
        f"{one.num_bytes / one.best_us / 1e3:,.1f}",
        one.unit if one.ops else "",
        f"{100 * one.share:.0f} {one.bound_by}",
        f"{100 * one.goal:.0f} {'yes' if one.share >= one.goal else 'no'}" if one.goal else "",
    ]


def line(cells: list[str]) -> str:
    widths = (27, 18, 6, 11, 11, 8, 7, 9, 14, 6)
    return "  ".join(
        cell.ljust(width) if i < 3 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
