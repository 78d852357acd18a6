"""CPU microseconds of Python that the engine process spends on a step, beside the native call.

    PYTHONPATH=src:. python -m benchmarks.step_cost --running 1,16,64,256,1024 --waiting 0,10000

The engine and the worker are the real ones, in one thread here; the executor computes nothing and draws token 7.
Each figure is the median over steps of CPU time of the thread, for a batch of streams that all decode, with so
many requests waiting behind them. "engine" plans, commits and makes the message; "worker" applies the plan,
gathers the batch and scatters what was drawn. A line is fitted: a cost per step and one per running request.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from octavo.config.plan import CachePlan, EnginePlan, ExecutorPlan, SchedulerPlan
from octavo.core.engine import Engine
from octavo.executors.base import StepBatch, StepOutput, nothing
from octavo.util import collector
from octavo.wire.codec import encode
from octavo.wire.layout import KVGroup, KVLayout
from octavo.wire.messages import EngineRequest, Outputs, StepPlan, StepResult
from octavo.wire.sampling import SamplingParams
from octavo.worker.sampling import SamplingSlots
from octavo.worker.slots import Slots
from octavo.worker.step import StepRunner

VOCAB = 49_152
BLOCK = 16
MAX_LEN = 1024
PROMPT = 32
WARM_STEPS = 40


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--running", default="1,16,64,256,1024", help="sizes of the batch (default: %(default)s)"
    )
    parser.add_argument("--waiting", default="0,10000", help="requests behind it (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="measured of each (default: %(default)s)")
    given = parser.parse_args(argv)
    collector.settle()  # as the engine process does
    rows = [
        measure(running, waiting, given.steps)
        for waiting in map(int, given.waiting.split(","))
        for running in map(int, given.running.split(","))
    ]
    for row in rows:
        print(json.dumps(row))
    for waiting in sorted({row["waiting"] for row in rows}):
        of = [row for row in rows if row["waiting"] == waiting]
        if len(of) > 1:
            sizes, costs = [row["running"] for row in of], [row["engine_us"] + row["worker_us"] for row in of]
            # Relative errors count, else the largest batch alone would decide.
            slope, base = np.polyfit(sizes, costs, 1, w=[1 / cost for cost in costs])
            print(
                json.dumps(
                    {"waiting": waiting, "us_per_step": round(base), "us_per_request": round(slope, 2)}
                )
            )
    return 0


def measure(
    running: int, waiting: int, steps: int, of: Callable[[Sequence[float]], float] = statistics.median
) -> dict[str, Any]:
    """Microseconds of a step with so many streams, by side, and what of it the encoding of the message is."""
    worker = InThread(running)
    engine = Engine(plan_of(running), layout(), worker)
    for i in range(running + waiting):
        engine.add(request(i))
    times: dict[str, list[float]] = {"engine": [], "worker": [], "encode": []}
    while len(engine.scheduler.running) < running:
        engine.pump()
    for step in range(WARM_STEPS + steps):
        worker.spent_s = 0.0
        start = time.thread_time()
        deltas = engine.pump()
        planned = time.thread_time()
        encode(Outputs(deltas=deltas))
        end = time.thread_time()
        if step >= WARM_STEPS:
            assert len(deltas) == running, "every stream gets a token in every step"
            times["engine"].append(end - start - worker.spent_s)
            times["worker"].append(worker.spent_s)
            times["encode"].append(end - planned)
    assert engine.scheduler.num_waiting == waiting
    chosen = {f"{side}_us": round(1e6 * of(found), 1) for side, found in times.items()}
    return {"running": running, "waiting": waiting, **chosen}


def request(i: int) -> EngineRequest:
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    prompt = [(7 * i + j) % VOCAB for j in range(PROMPT + i % BLOCK)]  # blocks are filled in different steps
    return EngineRequest(
        id=f"{i:032x}", prompt=prompt, params=params, max_tokens=MAX_LEN - PROMPT - BLOCK, seed=i
    )


def layout() -> KVLayout:
    return KVLayout(groups=(KVGroup((0,), 0),), block_size=BLOCK, kv_heads=1, head_dim=8, dtype="bf16")


def plan_of(running: int) -> EnginePlan:
    return EnginePlan(
        model="none",
        executor=ExecutorPlan(name="native", isa="generic", num_threads=1, weights="f32"),
        cache=CachePlan(block_size=BLOCK, num_blocks=running * (MAX_LEN // BLOCK + 1) + 64, dtype="bf16"),
        # One step in flight: the thread's time of a turn is then that of one step.
        scheduler=SchedulerPlan(
            max_num_seqs=running,
            max_num_batched_tokens=max(2048, running),
            max_model_len=MAX_LEN,
            max_step_ms=100.0,
            pipeline_depth=1,
        ),
        seed=0,
        vocab_size=VOCAB,
    )


class Idle:
    """An executor that computes nothing."""

    def run(self, batch: StepBatch, on_start: Callable[[], None] = nothing) -> StepOutput:
        on_start()
        samples = len(batch.sample_tokens)
        none = np.zeros((samples, 0), np.float32)
        return StepOutput(
            token_ids=np.full(samples, 7, np.int32),
            logprobs=np.zeros(samples, np.float32),
            ranks=np.ones(samples, np.int32),
            top_ids=none.astype(np.int32),
            top_logprobs=none,
            score_logprobs=np.zeros(0, np.float32),
            score_ranks=np.zeros(0, np.int32),
            score_top_ids=none.astype(np.int32)[:0],
            score_top_logprobs=none[:0],
        )


class InThread:
    """The worker's work in the caller's thread, its time apart. Implements wire.worker.WorkerPort."""

    def __init__(self, max_rows: int) -> None:
        self.runner = StepRunner(
            Idle(),  # type: ignore[arg-type]  # of an executor, a step uses `run` alone
            Slots(max_rows, MAX_LEN, layout()),
            SamplingSlots(max_rows, VOCAB),
        )
        self.wake_fd = -1
        self.spent_s = 0.0
        self._results: queue.SimpleQueue[StepResult] = queue.SimpleQueue()

    def submit(self, plan: StepPlan) -> None:
        start = time.thread_time()
        self._results.put(self.runner.execute(plan))
        self.spent_s += time.thread_time() - start

    def collect(self, timeout_s: float | None = None) -> StepResult | None:
        return None if self._results.empty() else self._results.get()

    def close(self) -> None:
        pass


if __name__ == "__main__":
    import sys

    raise SystemExit(main(sys.argv[1:]))
