"""From a plan to a running engine inside this process: shared by the engine child and by `LLM`.

Each phase has a name and a deadline; whoever starts an engine watches them (launch.spawn).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.config.plan import EnginePlan
from octavo.launch.facts import optimise
from octavo.program.program import Program
from octavo.weights.source import ModelSource

if TYPE_CHECKING:
    from octavo.core.engine import Engine
    from octavo.executors.base import Executor, ExecutorOptions
    from octavo.worker.worker import Worker

# Seconds that a phase of the start may take before it counts as hung.
PHASES: dict[str, float] = {
    "start python": 30,
    "read headers": 60,
    "receive the plan": 60,
    "build the program": 60,
    "bind weights": 900,
    "allocate the KV cache": 120,
    "try one step": 60,
    "start the engine": 60,
}


@dataclass(frozen=True, slots=True)
class Built:
    engine: Engine
    executor: Executor
    table: list[list[str]]  # the plan's rows, then what the executor says of itself
    worker: Worker

    def close(self) -> None:
        """Ends the worker's thread, then gives the executor's memory back."""
        self.worker.close()
        self.executor.close()


def build_program(source: ModelSource, plan: EnginePlan) -> Program:
    """The program that the plan's executor runs, after the passes of its optimisation level."""
    from octavo.models.registry import build_program as build

    program = build(
        source.config,
        block_size=plan.cache.block_size,
        kv_dtype=plan.cache.dtype,
        max_length=plan.scheduler.max_model_len,
    )
    return optimise(program, plan.executor.optimization_level)


def build_engine(source: ModelSource, plan: EnginePlan, phase: Callable[[str], None]) -> Built:
    """Binds weights, allocates KV, and returns an engine that can take requests.

    `phase(name)` is called as each phase begins. Raises WeightError, CapacityError, KernelFault.
    """
    from octavo.core.engine import Engine
    from octavo.executors.registry import create
    from octavo.models.registry import weights_of
    from octavo.weights.load import check_tensors
    from octavo.worker.warm_up import warm_up
    from octavo.worker.worker import Worker

    phase("build the program")
    program = build_program(source, plan)
    check_tensors(source, weights_of(program))
    phase("bind weights")
    executor = create(plan.executor.name)
    executor.bind(program, source, executor_options(plan))
    phase("allocate the KV cache")
    executor.allocate_kv(plan.cache.num_blocks)
    phase("try one step")
    warm_up(executor, len(program.kv.groups))
    phase("start the engine")
    worker = Worker(executor, plan, program.kv)
    engine = Engine(plan, program.kv, worker)
    return Built(engine, executor, plan.table + executor.describe(), worker)


def executor_options(plan: EnginePlan) -> ExecutorOptions:
    """What `Executor.bind` needs of the plan."""
    from octavo.executors.base import ExecutorOptions

    longest = -(-plan.scheduler.max_model_len // plan.cache.block_size)
    return ExecutorOptions(
        weights=plan.executor.weights,
        max_tokens=plan.scheduler.max_num_batched_tokens,
        max_rows=plan.scheduler.max_num_seqs,
        max_blocks_per_row=longest,
        num_threads=plan.executor.num_threads,
        isa=plan.executor.isa,
        optimization_level=plan.executor.optimization_level,
    )
