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
    from octavo.grammar.base import Vocabulary
    from octavo.grammar.store import GrammarStore
    from octavo.wire.messages import EngineStats
    from octavo.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class Built:
    engine: Engine
    executor: Executor
    table: list[list[str]]  # the plan's rows, then what the executor says of itself
    worker: Worker
    grammars: GrammarStore

    def close(self) -> None:
        """Ends the worker's thread, then gives the executor's memory back."""
        self.engine.close()
        self.grammars.close()
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


def build_engine(
    source: ModelSource,
    plan: EnginePlan,
    phase: Callable[[str], None],
    vocabulary: Callable[[], Vocabulary] | None = None,
) -> Built:
    """Binds weights, allocates KV, and returns an engine that can take requests.

    `phase(name)` is called as each phase begins; `vocabulary` where the caller has read the tokenizer already.
    Raises WeightError, CapacityError, KernelFault.
    """
    from octavo.core.engine import Engine
    from octavo.core.grammar import GrammarGate
    from octavo.core.kv_events import open_kv_events
    from octavo.executors.registry import create
    from octavo.grammar.store import GrammarStore
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
    source.leave_pages()
    phase("allocate the KV cache")
    executor.allocate_kv(plan.cache.num_blocks)
    phase("try one step")
    warm_up(executor, len(program.kv.groups))
    phase("start the engine")
    kv_events = open_kv_events(plan.cache.events, program.kv)
    grammars = GrammarStore(vocabulary or (lambda: model_vocabulary(source, plan)))
    worker = Worker(executor, plan, program.kv, grammars)
    grammars.wake = worker.wake
    engine = Engine(plan, program.kv, worker, gates=(GrammarGate(grammars),), kv_events=kv_events)
    engine.more_stats = lambda stats: add_stats(stats, grammars, worker)
    return Built(engine, executor, plan.table + executor.describe(), worker, grammars)


def model_vocabulary(source: ModelSource, plan: EnginePlan) -> Vocabulary:
    """Bytes of the model's tokens, for grammars: read when the first one comes."""
    from octavo.grammar.vocabulary import of_tokenizer
    from octavo.launch.text import codec_at

    return of_tokenizer(codec_at(source, plan.tokenizer), plan.vocab_size)


def add_stats(stats: EngineStats, grammars: GrammarStore, worker: Worker) -> None:
    """What grammars cost and how many there are."""
    counts, slots = grammars.counts, worker.runner.grammars
    stats.grammars_compiled = counts.compiled
    stats.grammars_failed = counts.failed
    stats.grammars_kept = counts.kept
    stats.grammar_compile_us = int(counts.seconds * 1e6)
    stats.grammar_masks = slots.num_masks
    stats.grammar_mask_us = int(slots.seconds * 1e6)


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
        pack_cache=plan.executor.pack_cache,
    )
