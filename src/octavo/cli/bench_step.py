"""`octavo bench step`: the anatomy of a step, op by op, beside what the machine could do at most.

Runs steps of one shape on the real executor, without a server: first unprofiled (the step's time), then
with a clock between the ops. Limits are measured in the same run by loops that do nothing else.
"""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.config.asked import ENGINE_TOPICS
from octavo.config.load import Parser, add_options, parse
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.executors.base import ExecutorOptions, StepBatch
    from octavo.executors.native import NativeExecutor
    from octavo.launch.plan import Planned
    from octavo.program.cost import Cost, StepShape
    from octavo.program.program import Program

WEIGHTS = ("file", "f32", "f16", "bf16", "w8", "w4")
WARM_STEPS = 3
CACHED_BYTES = 1 << 18  # a thread: what lies in its own caches
KV_BYTE = 0x3C  # twice it is 0.0115 in bf16 and 1.06 in f16: finite
SHOWN_FRAC = 0.005  # groups of ops below this share of the step are shown as one


def main(argv: list[str]) -> int:
    parser = Parser(
        prog="octavo bench step",
        usage="octavo bench step [MODEL] [OPTIONS]",
        description="The anatomy of a step: op by op, with the limit that binds it.",
        allow_abbrev=False,
    )
    parser.add_argument("model_tag", metavar="MODEL", nargs="?", help="the same as --model")
    parser.add_argument("--batch", type=int, default=16, help="rows in the step (default: %(default)s)")
    parser.add_argument(
        "--context",
        type=int,
        default=512,
        help="tokens of each row in the cache already (default: %(default)s)",
    )
    parser.add_argument(
        "--new-tokens",
        type=int,
        default=1,
        help="tokens of each row computed: 1 is decode (default: %(default)s)",
    )
    parser.add_argument("--steps", type=int, default=20, help="steps measured (default: %(default)s)")
    parser.add_argument("--weights", choices=WEIGHTS, help="packed format, over what the other flags choose")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_options(parser, ENGINE_TOPICS)
    asked, given = parse(parser, argv, ENGINE_TOPICS)
    for name, least in (("batch", 1), ("context", 0), ("new_tokens", 1), ("steps", 1)):
        if getattr(given, name) < least:
            raise ConfigError(
                f"--{name.replace('_', '-')} is {getattr(given, name)}", fix=f"allowed is {least} or more"
            )
    from octavo.launch.plan import make_plan

    anatomy = measure(
        make_plan(asked), given.batch, given.context, given.new_tokens, given.steps, given.weights
    )
    print(json.dumps(asdict(anatomy), indent=2) if given.json else report(anatomy))
    return 0


@dataclass(frozen=True, slots=True)
class Group:
    """Ops of one name in all layers; times and counts are of one step."""

    name: str
    kind: str
    count: int
    time_us: float
    ops: float
    unit: str
    streamed_bytes: int
    limit_us: float
    bound_by: str  # "compute" | "memory" | "cache"


@dataclass(frozen=True, slots=True)
class Limits:
    """Ops and bytes per second."""

    read: float  # a piece as large as all that a step streams, again and again
    cached: float  # from the threads' own caches
    compute: dict[str, float]

    def of(self, cost: Cost) -> tuple[float, str]:
        """(seconds, what binds) of a cost."""
        times = {
            "compute": cost.ops / self.compute[cost.unit],
            "memory": cost.streamed_bytes / self.read,
            "cache": cost.buffer_bytes / self.cached,
        }
        bound_by = max(times, key=lambda name: times[name])
        return times[bound_by], bound_by


@dataclass(frozen=True, slots=True)
class Anatomy:
    model: str
    weights: str
    isa: str
    num_threads: int
    batch: int
    context: int
    new_tokens: int
    step_ms: float  # median, unprofiled
    ops_ms: float  # sum of the ops' medians
    limits: Limits
    groups: list[Group]
    waits: dict[str, int]  # of the unprofiled steps, as native.Program.waits() has them


def measure(
    planned: Planned, batch: int, context: int, new_tokens: int, num_steps: int, weights: str | None
) -> Anatomy:
    """Binds the plan's model and runs `WARM_STEPS + 2 * num_steps` steps."""
    from octavo.program.cost import StepShape, cost_of

    executor, program, options = bound(planned, batch, batch * new_tokens, context + new_tokens, weights)
    try:
        shape = StepShape((new_tokens,) * batch, (context,) * batch, batch)
        costs = [
            cost_of(op, program, planned.source, options.weights, shape, options.isa) for op in program.ops
        ]
        step = make_batch(program, shape)
        allocate_kv(executor, [step])
        whole_s, times_s, waits = run_steps(executor, step, num_steps)
    finally:
        executor.close()
    limits = measure_limits(costs, options.isa, options.num_threads)
    return Anatomy(
        model=planned.model.name,
        weights=options.weights,
        isa=options.isa,
        num_threads=options.num_threads,
        batch=batch,
        context=context,
        new_tokens=new_tokens,
        step_ms=1e3 * whole_s,
        ops_ms=1e3 * sum(times_s),
        limits=limits,
        groups=grouped(program, costs, times_s, limits),
        waits=waits,
    )


def bound(
    planned: Planned, max_rows: int, max_tokens: int, max_len: int, weights: str | None
) -> tuple[NativeExecutor, Program, ExecutorOptions]:
    """The plan's model in a native executor for steps of at most this size, without KV yet. The caller closes it."""
    from octavo.config.plan import PackCachePlan
    from octavo.executors.native import NativeExecutor
    from octavo.launch.build import build_program, executor_options

    plan = planned.resolved.engine
    if plan.executor.name != "native":
        raise ConfigError(
            f"--executor is {plan.executor.name}: only the native executor has a clock between its ops",
            fix="leave --executor out",
        )
    program = build_program(planned.source, plan)
    options = executor_options(
        msgspec.structs.replace(
            plan,
            scheduler=msgspec.structs.replace(
                plan.scheduler,
                max_num_seqs=max_rows,
                max_num_batched_tokens=max_tokens,
                max_model_len=max_len,
            ),
            executor=msgspec.structs.replace(
                plan.executor,
                weights=weights or plan.executor.weights,
                pack_cache=PackCachePlan(reason="nothing is written beside what is measured"),
            ),
        )
    )
    executor = NativeExecutor()
    executor.bind(program, planned.source, options)
    return executor, program, options


def allocate_kv(executor: NativeExecutor, steps: Sequence[StepBatch]) -> None:
    """For the blocks of all these steps, and written: pages that are only read are one page of zeros, in the caches."""
    executor.allocate_kv(1 + max(int(step.block_tables.max()) for step in steps))
    executor.core.kv()[:] = KV_BYTE


def make_batch(program: Program, shape: StepShape) -> StepBatch:
    """Random tokens, greedy, blocks scattered over the pool as in an old server."""
    import numpy as np

    from octavo.executors.base import SamplingBatch, StepBatch

    rng = np.random.default_rng(0)
    rows, samples, block = len(shape.new), shape.samples, program.kv.block_size
    width = max(-(-(c + n) // block) for c, n in zip(shape.context, shape.new, strict=True))
    tables = rng.permutation(len(program.kv.groups) * rows * width).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(shape.new)]).astype(np.int32)
    ones, zeros = np.ones(samples, np.float32), np.zeros(samples, np.float32)
    none, empty = np.full(samples, -1, np.int32), np.zeros(0, np.int32)
    sampling = SamplingBatch(
        temperature=zeros,
        top_k=np.zeros(samples, np.int32),
        top_p=ones,
        min_p=zeros,
        seed=np.zeros(samples, np.uint64),
        position=np.zeros(samples, np.int64),
        repetition=ones,
        presence=zeros,
        frequency=zeros,
        penalty_row=none,
        counts=np.zeros((0, 0), np.int32),
        seen=np.zeros((0, 0), np.uint32),
        bias_start=np.zeros(samples + 1, np.int32),
        bias_ids=empty,
        bias_values=np.zeros(0, np.float32),
        mask_row=none,
        masks=np.zeros((0, 0), np.uint32),
        num_logprobs=none,
    )
    return StepBatch(
        token_ids=rng.integers(0, program.vocab_size, shape.tokens, np.int32),
        positions=np.concatenate(
            [np.arange(c, c + n, dtype=np.int32) for c, n in zip(shape.context, shape.new, strict=True)]
        ),
        row_starts=starts,
        context_lens=np.asarray(shape.context, np.int32),
        block_tables=tables.reshape(len(program.kv.groups), rows, width),
        sample_tokens=starts[1:] - 1,
        sampling=sampling,
        score_tokens=empty,
        score_targets=empty,
    )


def run_steps(
    executor: NativeExecutor, step: StepBatch, num_steps: int
) -> tuple[float, list[float], dict[str, int]]:
    """(median seconds of a step, median seconds of each op, what threads waited in the first of both)."""
    for _ in range(WARM_STEPS):
        executor.run(step)
    executor.core.reset_waits()
    whole = []
    for _ in range(num_steps):
        start = time.perf_counter()
        executor.run(step)
        whole.append(time.perf_counter() - start)
    waits = executor.core.waits()
    by_step = []
    for _ in range(num_steps):
        executor.core.profile(True)
        executor.run(step)
        by_step.append([ns for _, _, ns in executor.core.times()])
    executor.core.profile(False)
    return (
        statistics.median(whole),
        [statistics.median(ns) * 1e-9 for ns in zip(*by_step, strict=True)],
        waits,
    )


def measure_limits(costs: Sequence[Cost], isa: str, num_threads: int) -> Limits:
    from octavo.kernels import native

    streamed = min(max(sum(cost.streamed_bytes for cost in costs), num_threads << 12), 1 << 30)
    return Limits(
        read=native.read_speed(streamed, num_threads, 0.3),
        cached=native.read_speed(CACHED_BYTES * num_threads, num_threads, 0.05),
        compute=native.compute_speeds(isa, num_threads, 0.25),
    )


def grouped(program: Program, costs: Sequence[Cost], times_s: Sequence[float], limits: Limits) -> list[Group]:
    """Ops of the same name in every layer, in the program's order."""
    members: dict[str, list[int]] = {}
    for i, op in enumerate(program.ops):
        members.setdefault(re.sub(r"\b\d+\b", "*", op.name), []).append(i)
    groups = []
    for name, indices in members.items():
        bound = [limits.of(costs[i]) for i in indices]
        groups.append(
            Group(
                name=name,
                kind=program.ops[indices[0]].kind,
                count=len(indices),
                time_us=1e6 * sum(times_s[i] for i in indices),
                ops=sum(costs[i].ops for i in indices),
                unit=costs[indices[0]].unit,
                streamed_bytes=sum(costs[i].streamed_bytes for i in indices),
                limit_us=1e6 * sum(time_s for time_s, _ in bound),
                bound_by=max(bound)[1],
            )
        )
    return groups


def report(a: Anatomy) -> str:
    """The table that a person reads: the slowest group first."""
    total_us = 1e3 * a.ops_ms
    large = [g for g in a.groups if g.time_us >= SHOWN_FRAC * total_us]
    small = [g for g in a.groups if g.time_us < SHOWN_FRAC * total_us]
    rows = [_row(g, total_us) for g in sorted(large, key=lambda g: -g.time_us)]
    if small:
        rest_us = sum(g.time_us for g in small)
        rows.append(
            [
                f"{len(small)} more",
                "",
                str(sum(g.count for g in small)),
                f"{rest_us:,.0f}",
                f"{100 * rest_us / total_us:.1f}",
                *[""] * 5,
                "",
            ]
        )
    limit_us = sum(g.limit_us for g in a.groups)
    head = ["op", "kind", "ops", "us", "%", "MB", "GB/s", "GFLOP", "GFLOP/s", "limit us", "% of its limit"]
    total = ["all ops", "", "", f"{total_us:,.0f}", "100", *[""] * 4, f"{limit_us:,.0f}"]
    rows.append([*total, f"{100 * limit_us / total_us:.0f}"])
    per_second = a.batch * a.new_tokens / a.step_ms * 1e3
    compute = ", ".join(f"{name} {speed / 1e9:,.0f}" for name, speed in a.limits.compute.items())
    head_lines = (
        f"{a.model}: weights {a.weights}, {a.isa}, {a.num_threads} threads; "
        f"{a.batch} rows of {a.new_tokens} new tokens behind {a.context:,}\n"
        f"step {a.step_ms:.3f} ms ({per_second:,.0f} tokens/s); "
        f"sum of its ops {a.ops_ms:.3f} ms with a clock between them\n"
        f"{waited(a.waits)}\n"
        f"limits measured now: {a.limits.read / 1e9:.1f} GB/s for what a step streams, "
        f"{a.limits.cached / 1e9:.0f} GB/s in caches; GFLOP/s: {compute}\n\n"
    )
    return head_lines + columns([head, *rows])


def waited(w: dict[str, int]) -> str:
    """One line: how much of the threads' time went by at barriers, and whether other processes are why."""
    share = 100 * w["wait_ns"] / max(w["thread_ns"], 1)
    used = w["thread_ns"] / max(w["wall_ns"], 1)
    line = f"threads waited {share:.1f}% of their time; {used:.1f} in use; {w['sleeps']} waits ended in sleep"
    if w["late"]:
        line += f", {w['late']} took over a millisecond (a long op, or a core lost to another process)"
    return line


def _row(g: Group, total_us: float) -> list[str]:
    streams, computes = g.streamed_bytes > 0, g.ops > 0
    return [
        g.name,
        g.kind,
        str(g.count),
        f"{g.time_us:,.0f}",
        f"{100 * g.time_us / total_us:.1f}",
        f"{g.streamed_bytes / 1e6:,.2f}" if streams else "",
        f"{g.streamed_bytes / g.time_us / 1e3:,.1f}" if streams else "",
        f"{g.ops / 1e9:,.3f}" if computes else "",
        f"{g.ops / g.time_us / 1e3:,.0f} {g.unit}" if computes else "",
        f"{g.limit_us:,.0f}",
        f"{100 * g.limit_us / g.time_us:.0f} {g.bound_by}",
    ]


def columns(rows: Sequence[Sequence[Any]]) -> str:
    """Words to the left, figures to the right, two spaces between."""
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            str(cell).ljust(width) if i < 2 else str(cell).rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
