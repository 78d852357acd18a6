"""How the cost of a step grows: with its batch, its context, the length of a prompt, requests running and waiting.

    ./run bench growth [--model smollm2] [--weights file] [--json FILE] [--quick]

The first three run steps of the real native executor with a clock between the ops, attention apart from the rest;
the last two are CPU time of the engine process's Python (step_cost). A shared machine swings for seconds at a time,
so the points of all axes are visited in random order, several times, and each keeps its best; axes that seem to grow
too fast are visited up to as often again, since noise goes away then and growth does not. Fits are in `fits`:
what grows faster than its axis is named, and the exit code is 1 then; only a prompt's attention may.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import step_cost
from benchmarks.fits import Fit, fit
from octavo.program.cost import StepShape
from octavo.util import collector

if TYPE_CHECKING:
    from octavo.executors.base import StepBatch
    from octavo.executors.native import NativeExecutor
    from octavo.program.program import Program

# Beyond 16 rows multiples of 16: products take rows in tiles of that size.
BATCHES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256)
BATCH_CONTEXT = 127
CONTEXTS = (128, 256, 512, 1024, 2048, 3072, 4096, 5120, 6144, 7168, 8191)
CONTEXT_ROWS = 4
PROMPTS = (128, 256, 512, 1024, 1536, 2048, 2560, 3072, 3584, 4096)
RUNNING = (1, 4, 16, 64, 128, 256, 384, 512, 768, 1024)
WAITING = (0, 100, 1000, 2500, 5000, 7500, 10_000)
WAITING_ROWS = 16
BURST_S = 0.15  # a visit of a point
LEAST_STEPS = 2


@dataclass
class Axis:
    """`points`: x -> part -> least microseconds seen. `may_grow`: parts that may grow faster than x."""

    name: str
    unit: str
    fixed: str
    visit: Callable[[int], dict[str, float]]
    xs: tuple[int, ...]
    has_knee: bool = False  # a limit of another kind may decide up to some x, so that the slope changes there
    may_grow: tuple[str, ...] = ()
    points: dict[int, dict[str, float]] = field(default_factory=dict)

    def see(self, x: int) -> None:
        seen, known = self.visit(x), self.points.setdefault(x, {})
        for part, time_us in seen.items():
            known[part] = min(time_us, known.get(part, time_us))

    def fits(self) -> dict[str, Fit]:
        xs = sorted(self.points)
        parts = self.points[xs[0]]
        return {part: fit(xs, [self.points[x][part] for x in xs], has_knee=self.has_knee) for part in parts}

    def record(self) -> dict[str, Any]:
        fits = self.fits()
        return {
            "name": self.name,
            "unit": self.unit,
            "fixed": self.fixed,
            "points": [{"x": x, **self.points[x]} for x in sorted(self.points)],
            "fits": {part: found.record() for part, found in fits.items()},
            "too_fast": [p for p, found in fits.items() if found.is_superlinear and p not in self.may_grow],
        }


class Steps:
    """Steps of one bound executor, of any shape that the axes ask for."""

    def __init__(self, executor: NativeExecutor, program: Program, burst_s: float) -> None:
        self.executor, self.program, self.burst_s = executor, program, burst_s
        self._is_attention = [op.kind == "attend" for op in program.ops]
        self._made: dict[StepShape, StepBatch] = {}

    def prepare(self, shapes: Iterable[StepShape]) -> None:
        from octavo.cli.bench_step import allocate_kv, make_batch

        self._made = {shape: make_batch(self.program, shape) for shape in shapes}
        allocate_kv(self.executor, list(self._made.values()))

    def visit(self, shape: StepShape) -> dict[str, float]:
        step, core = self._made[shape], self.executor.core
        best = {"attention": float("inf"), "rest": float("inf")}
        start, done = time.perf_counter(), 0
        while done < LEAST_STEPS or time.perf_counter() - start < self.burst_s:
            core.profile(True)
            self.executor.run(step)
            times = [ns for _, _, ns in core.times()]
            attention = sum(ns for ns, is_it in zip(times, self._is_attention, strict=True) if is_it) / 1e3
            best["attention"] = min(best["attention"], attention)
            best["rest"] = min(best["rest"], sum(times) / 1e3 - attention)
            done += 1
        core.profile(False)
        return best


def decode(rows: int, context: int) -> StepShape:
    return StepShape((1,) * rows, (context,) * rows, rows)


def prompt(tokens: int) -> StepShape:
    return StepShape((tokens,), (0,), 1)


def native_axes(steps: Steps) -> list[Axis]:
    axes = [
        Axis(
            "batch",
            "rows",
            f"one token each, behind {BATCH_CONTEXT}",
            lambda x: steps.visit(decode(x, BATCH_CONTEXT)),
            BATCHES,
            has_knee=True,
        ),
        Axis(
            "context",
            "tokens behind each row",
            f"{CONTEXT_ROWS} rows, one token each",
            lambda x: steps.visit(decode(CONTEXT_ROWS, x)),
            CONTEXTS,
            has_knee=True,
        ),
        Axis(
            "prompt",
            "tokens of one prompt",
            "in one step",
            lambda x: steps.visit(prompt(x)),
            PROMPTS,
            may_grow=("attention",),
        ),
    ]
    shapes = [decode(x, BATCH_CONTEXT) for x in BATCHES] + [decode(CONTEXT_ROWS, x) for x in CONTEXTS]
    steps.prepare([*shapes, *map(prompt, PROMPTS)])
    return axes


def python_axes(num_steps: int) -> list[Axis]:
    def cost(running: int, waiting: int) -> dict[str, float]:
        # Of means: collections of cycles, once in many steps, count as well.
        found = step_cost.measure(running, waiting, num_steps, statistics.fmean)
        return {"engine": found["engine_us"], "worker": found["worker_us"]}

    return [
        Axis("running", "requests running", "Python of a step", lambda x: cost(x, 0), RUNNING),
        Axis(
            "waiting",
            "requests waiting",
            f"Python of a step, {WAITING_ROWS} running",
            lambda x: cost(WAITING_ROWS, x),
            WAITING,
        ),
    ]


def measure(axes: list[Axis], rng: random.Random, shown: str) -> None:
    """All points of these axes, in random order."""
    todo = [(axis, x) for axis in axes for x in axis.xs]
    rng.shuffle(todo)
    for i, (axis, x) in enumerate(todo):
        line = f"{shown}, point {i + 1} of {len(todo)}: {axis.name} {x:,}"
        print(f"\r{line:<60}", end="", file=sys.stderr, flush=True)
        axis.see(x)
    print(file=sys.stderr)


def report(axes: list[Axis]) -> str:
    from octavo.cli.bench_step import columns

    head = ["axis", "part", "from", "to", "us", "us", "us for one more", "x^2 share", "exponent", "grows"]
    rows = [head]
    for axis in axes:
        xs = sorted(axis.points)
        for part, found in axis.fits().items():
            faster = "faster" if found.is_superlinear else "no faster"
            rows.append(
                [
                    axis.name,
                    part,
                    f"{xs[0]:,}",
                    f"{xs[-1]:,}",
                    f"{axis.points[xs[0]][part]:,.0f}",
                    f"{axis.points[xs[-1]][part]:,.0f}",
                    f"{found.slope:,.3f}",
                    f"{100 * found.square_frac:.0f}%",
                    f"{found.exponent:.2f}",
                    faster + (" (may)" if part in axis.may_grow else ""),
                ]
            )
    return columns(rows)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="with a context of 8,192 (default: %(default)s)")
    parser.add_argument("--weights", help="packed format (default: the file's own)")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--visits", type=int, help="of each point (default: 6; with --quick 2)")
    parser.add_argument("--only", default="batch,context,prompt,running,waiting", help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="two short visits: a look, no figures to keep")
    parser.add_argument("--seed", type=int, default=0, help="of the order (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args(argv)
    only = given.only.split(",")
    if unknown := set(only) - set(parser.get_default("only").split(",")):
        parser.error(f"--only has {', '.join(sorted(unknown))}; there are {parser.get_default('only')}")
    visits = given.visits or (2 if given.quick else 6)
    from benchmarks.machine import facts
    from octavo.cli.bench_step import bound
    from octavo.config.load import from_keywords
    from octavo.launch.plan import make_plan

    planned = make_plan(from_keywords(given.model, {"threads": given.threads}))
    max_len = max(*CONTEXTS, *PROMPTS) + 1
    executor, program, options = bound(planned, max(BATCHES), max(PROMPTS), max_len, given.weights)
    try:
        steps = Steps(executor, program, BURST_S / 5 if given.quick else BURST_S)
        axes = [*native_axes(steps), *python_axes(20 if given.quick else 60)]
        axes = [axis for axis in axes if axis.name in only]
        collector.settle()  # as the engine process does
        rng = random.Random(given.seed)
        for number in range(visits):
            measure(axes, rng, f"visit {number + 1} of {visits}")
        for _ in range(visits):
            if not (suspects := [axis for axis in axes if axis.record()["too_fast"]]):
                break
            measure(suspects, rng, "once more")
    finally:
        executor.close()
    print(report(axes))
    records = [axis.record() for axis in axes]
    if given.json:
        about = {"machine": facts(), "model": planned.model.name, "weights": options.weights}
        about |= {"isa": options.isa, "threads": options.num_threads, "visits": visits}
        given.json.write_text(json.dumps(about | {"axes": records}, indent=1))
    too_fast = [f"{record['name']}: {part}" for record in records for part in record["too_fast"]]
    print(
        "grows faster than it may: " + ", ".join(too_fast) if too_fast else "nothing grows faster than it may"
    )
    return 1 if too_fast else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
