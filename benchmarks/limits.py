"""What this machine can do at most: bandwidth by size and threads, arithmetic by type and instruction set.

    ./run bench limits [--threads 1,2] [--json FILE]

Loops of the native module that do nothing else (csrc/limits.cpp); the best pass counts. A benchmark that
compares with a limit measures it anew, since a shared machine drifts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.quant.formats import natural

if TYPE_CHECKING:
    from octavo.cli.bench_step import Limits
    from octavo.launch.plan import Planned
    from octavo.program.cost import Cost

SIZES = (1 << 18, 1 << 20, 4 << 20, 16 << 20, 32 << 20, 64 << 20, 128 << 20, 256 << 20, 1 << 30)
C1_SHAPE = (1, 100 + 256 // 2)  # new tokens, and the mean context of case c1
C4_TOKENS = 3500


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", default="1,2", help="numbers of threads (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each figure (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args(argv)
    counts = [int(word) for word in given.threads.split(",")]
    found = measure(counts, given.seconds)
    print(report(found, counts))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    return 0


def measure(counts: list[int], seconds: float) -> dict[str, Any]:
    """{"read": {threads: {bytes: bytes/s}}, "compute": {isa: {threads: {kind: ops/s}}}, "machine": ...}"""
    from benchmarks.machine import facts
    from octavo.kernels import native

    return {
        "machine": facts(),
        "read": {n: {size: native.read_speed(size, n, seconds) for size in SIZES} for n in counts},
        "compute": {
            isa: {n: native.compute_speeds(isa, n, seconds) for n in counts} for isa in native.isas()
        },
    }


def report(found: dict[str, Any], counts: list[int]) -> str:
    from octavo.cli.bench_step import columns

    threads = [f"{n} thread{'s' if n > 1 else ''}" for n in counts]
    reads = [["read", "", *threads]]
    for size in SIZES:
        shown = f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"
        reads.append([shown, "", *(f"{found['read'][n][size] / 1e9:.1f} GB/s" for n in counts)])
    computes = [["compute", "", *threads]]
    for isa, by_count in found["compute"].items():
        computes += [
            [isa, kind, *(f"{by_count[n][kind] / 1e9:,.0f} GFLOP/s" for n in counts)]
            for kind in by_count[counts[0]]
        ]
    return f"{found['machine']['cpu']}\n\n{columns(reads)}\n\n{columns(computes)}"


def own_form(model: str) -> str:
    """The format that "file" packs most of the model's weights in."""
    counts: Counter[str] = Counter()
    for info in plan_of(model).source.tensors.values():
        if len(info.shape) == 2:
            counts[natural(info.type)] += info.shape[0] * info.shape[1]
    return counts.most_common(1)[0][0]


def case_limits(model: str, weights: str, num_threads: int) -> dict[str, float]:
    """tokens/s at the machine's limits, measured now: a stream of c1, and the prefill of c4.

    Every byte of weights and KV is read once a step, every multiply-add done at the full rate of the
    format's own arithmetic, attention counted. `weights`: as ExecutorOptions.weights.
    """
    from octavo.cli.bench_step import measure_limits

    decode, prefill, isa = _costs(model, weights)
    limits = measure_limits(decode, isa, num_threads)
    return {
        "c1": 1 / _seconds(limits, decode),
        "c4": C4_TOKENS / _seconds(limits, prefill),
        "read_gb_s": limits.read / 1e9,
        **{f"{kind} gflop_s": speed / 1e9 for kind, speed in limits.compute.items()},
    }


def _seconds(limits: Limits, costs: tuple[Cost, ...]) -> float:
    return sum(limits.of(cost)[0] for cost in costs)


@lru_cache
def plan_of(model: str) -> Planned:
    from octavo.config.load import from_keywords
    from octavo.launch.plan import make_plan

    return make_plan(from_keywords(model, {}))


@lru_cache
def _costs(model: str, weights: str) -> tuple[tuple[Cost, ...], tuple[Cost, ...], str]:
    """(a decode step of c1, a prompt of c4, instruction set)."""
    from octavo.launch.build import build_program
    from octavo.program.cost import StepShape, cost_of

    planned = plan_of(model)
    plan = planned.resolved.engine
    program = build_program(planned.source, plan)

    def costs(new: int, context: int) -> tuple[Cost, ...]:
        shape = StepShape((new,), (context,), 1)
        return tuple(
            cost_of(op, program, planned.source, weights, shape, plan.executor.isa) for op in program.ops
        )

    return costs(*C1_SHAPE), costs(C4_TOKENS, 0), plan.executor.isa


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
