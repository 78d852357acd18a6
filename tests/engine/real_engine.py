"""A whole engine (scheduler, cache, worker, executor) in this process, over any model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.config.plan import CachePlan, EnginePlan, ExecutorPlan, SchedulerPlan
from octavo.core.engine import Engine
from octavo.executors.base import Executor
from octavo.executors.registry import create
from octavo.launch.build import executor_options
from octavo.launch.facts import optimise
from octavo.models.registry import build_program
from octavo.program.program import Program
from octavo.weights.source import ModelSource
from octavo.wire.messages import EngineRequest, FinishReason, TokenDelta, TokenLogprobs
from octavo.worker.worker import Worker


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish: FinishReason | None = None
    error: str | None = None
    is_refused: bool = False
    num_cached: int = 0
    preemptions: int = 0

    def take(self, delta: TokenDelta) -> None:
        assert self.finish is None, "a delta after the final one"
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or []
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.finish is not None:
            self.finish, self.error, self.is_refused = delta.finish, delta.error, delta.is_refused
            assert delta.record is not None
            self.num_cached, self.preemptions = delta.record.num_cached, delta.record.num_preemptions


class RealModel:
    """An executor with a model in it, reused by many engines: their KV content is never cleared."""

    def __init__(
        self,
        source: ModelSource,
        *,
        executor: str = "native",
        weights: str = "f32",
        kv_dtype: str | None = None,
        isa: str = "generic",
        threads: int = 1,
        num_blocks: int = 96,
        max_tokens: int = 256,
        max_rows: int = 16,
        max_len: int = 256,
        level: int = 2,
        block_size: int = 16,
    ) -> None:
        self.kv_dtype = kv_dtype or ("f32" if weights == "f32" else "bf16")
        self.name, self.weights, self.isa, self.threads = executor, weights, isa, threads
        self.num_blocks, self.max_tokens, self.max_rows, self.max_len = (
            num_blocks,
            max_tokens,
            max_rows,
            max_len,
        )
        self.block_size = block_size
        self.program: Program = optimise(
            build_program(source.config, block_size=block_size, kv_dtype=self.kv_dtype), level
        )
        self.executor: Executor = create(executor)
        self.executor.bind(self.program, source, executor_options(self.plan()))
        self.executor.allocate_kv(num_blocks)

    def plan(
        self,
        *,
        num_blocks: int | None = None,
        max_tokens: int | None = None,
        max_seqs: int | None = None,
        depth: int = 1,
        prefix_caching: bool = True,
        policy: str = "fcfs",
        reserve: bool = True,
        logprobs_mode: str = "raw_logprobs",
    ) -> EnginePlan:
        return EnginePlan(
            model="test",
            executor=ExecutorPlan(
                name=self.name, isa=self.isa, num_threads=self.threads, weights=self.weights
            ),
            cache=CachePlan(
                block_size=self.block_size,
                num_blocks=num_blocks or self.num_blocks,
                dtype=self.kv_dtype,
                enable_prefix_caching=prefix_caching,
            ),
            scheduler=SchedulerPlan(
                max_num_seqs=max_seqs or self.max_rows,
                max_num_batched_tokens=max_tokens or self.max_tokens,
                max_model_len=self.max_len,
                pipeline_depth=depth,
                policy=policy,
                reserve_full_prompt=reserve,
            ),
            seed=0,
            vocab_size=self.program.vocab_size,
            logprobs_mode=logprobs_mode,
        )

    def serve(self, plan: EnginePlan, requests: Sequence[EngineRequest]) -> dict[str, Answer]:
        """All requests through a fresh engine, to the end."""
        worker = Worker(self.executor, plan, self.program.kv)
        engine = Engine(plan, self.program.kv, worker)
        try:
            return run(engine, requests)
        finally:
            worker.close()

    def close(self) -> None:
        self.executor.close()


def run(engine: Engine, requests: Sequence[EngineRequest]) -> dict[str, Answer]:
    answers = {request.id: Answer() for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work():
        for delta in engine.pump(timeout_s=60):
            answers[delta.id].take(delta)
    assert all(answer.finish is not None for answer in answers.values())
    return answers
