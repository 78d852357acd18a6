"""An engine over the glass worker, and the checks that hold between any two of its calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.glass_worker import GlassWorker, make_layout

from octavo.config.plan import CachePlan, EnginePlan, ExecutorPlan, SchedulerPlan
from octavo.core.engine import Engine
from octavo.core.kv.pool import NULL
from octavo.core.request import State
from octavo.wire.messages import EngineRequest, FinishReason, TokenDelta
from octavo.wire.sampling import SamplingParams

VOCAB = 61
EOS = 1


def make_plan(
    *,
    block_size: int = 4,
    num_blocks: int = 64,
    caching: bool = True,
    hash_algo: str = "sha256",
    vocab: int = VOCAB,
    **scheduler: Any,
) -> EnginePlan:
    limits: dict[str, Any] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": 64,
        **scheduler,
    }
    return EnginePlan(
        model="glass",
        executor=ExecutorPlan(name="native", isa="generic", num_threads=1, weights="f32"),
        cache=CachePlan(
            block_size=block_size,
            num_blocks=num_blocks,
            dtype="f32",
            enable_prefix_caching=caching,
            hash_algo=hash_algo,
        ),
        scheduler=SchedulerPlan(**limits),
        seed=0,
        vocab_size=vocab,
    )


def make_engine(
    *,
    windows: Sequence[int] = (0,),
    worker_options: dict[str, Any] | None = None,
    engine_options: dict[str, Any] | None = None,
    plan: EnginePlan | None = None,
    **options: Any,
) -> tuple[Engine, GlassWorker]:
    plan = plan or make_plan(**options)
    worker = GlassWorker(
        windows,
        plan.cache.block_size,
        plan.cache.num_blocks,
        plan.vocab_size,
        max_rows=plan.scheduler.max_num_seqs,
        max_tokens=plan.scheduler.max_num_batched_tokens,
        **(worker_options or {}),
    )
    engine = Engine(plan, make_layout(windows, plan.cache.block_size), worker, **(engine_options or {}))
    return engine, worker


def ask(
    request_id: str,
    prompt: Sequence[int],
    max_tokens: int = 8,
    *,
    params: dict[str, Any] | None = None,
    eos: bool = False,
    **fields: Any,
) -> EngineRequest:
    """A request; unlike a client's it runs to its length unless `eos`."""
    return EngineRequest(
        id=request_id,
        prompt=list(prompt),
        params=SamplingParams(**(params or {})),
        max_tokens=max_tokens,
        seed=fields.pop("seed", 7),
        eos_ids=[EOS] if eos else [],
        **fields,
    )


@dataclass
class Heard:
    """All deltas of one request, folded."""

    token_ids: list[int] = field(default_factory=list)
    deltas: list[TokenDelta] = field(default_factory=list)

    @property
    def last(self) -> TokenDelta:
        assert self.deltas and self.deltas[-1].finish is not None, "no final delta"
        return self.deltas[-1]

    @property
    def finish(self) -> FinishReason | None:
        return self.deltas[-1].finish if self.deltas else None


class Ear(dict[str, Heard]):
    """Collects what an engine says; a second final delta, or anything after it, fails."""

    def take(self, deltas: Sequence[TokenDelta]) -> None:
        for delta in deltas:
            heard = self.setdefault(delta.id, Heard())
            assert heard.finish is None, f"{delta.id} spoke after its final delta"
            assert (delta.finish is None) == (delta.record is None)
            heard.token_ids += delta.token_ids
            heard.deltas.append(delta)


def run(engine: Engine, requests: Sequence[EngineRequest] = (), *, max_turns: int = 5000) -> Ear:
    """Add, then pump until there is no work; the algebra is checked after every turn."""
    ear = Ear()
    for request in requests:
        engine.add(request)
    for _ in range(max_turns):
        if not engine.has_work():
            check_idle(engine)
            return ear
        ear.take(engine.pump(None))
        check(engine)
    raise AssertionError("the engine does not come to an end")


def check(engine: Engine) -> None:
    """The algebra of every request, and who holds which block."""
    scheduler, cache, pool = engine.scheduler, engine.cache, engine.cache.pool
    held: Counter[int] = Counter()
    for request in engine._live.values():
        known = len(request.tokens)
        assert request.num_prompt <= known <= request.end
        assert known + request.drawn <= request.end
        assert 0 <= request.computed <= known + request.drawn
        assert request.pending == known + request.drawn - request.computed
        if request.state is State.RUNNING:
            assert request.slot >= 0 and request.computed <= request.room
            assert len({len(table) for table in request.tables}) == 1
            assert request.room == len(request.tables[0]) * cache.block_size
            for g, table in enumerate(request.tables):
                window = cache.windows[g]
                seen = max(0, request.computed - window + 1) // cache.block_size if window else 0
                assert NULL not in table[seen:], "a visible block was given back"
                held.update(block for block in table if block != NULL)
        else:
            assert request.slot == -1 and request.computed == 0 and not request.tables
    assert {block: refs for block, refs in enumerate(pool._refs) if refs} == held
    assert pool.num_free == pool.num_blocks - len(held)
    assert scheduler.waiting.num_tokens == sum(request.num_prompt for request in scheduler.waiting)
    running = scheduler.running
    assert [r.key for r in running] == sorted(r.key for r in running)
    slots = [r.slot for r in running] + scheduler._free_slots
    assert sorted(slots) == list(range(engine.plan.scheduler.max_num_seqs))
    assert cache.promised == sum(r.promised for r in running)
    assert len(engine._live) == len(running) + scheduler.num_waiting


def check_idle(engine: Engine) -> None:
    """Nothing is left behind."""
    check(engine)
    stats = engine.stats()
    assert stats.running == stats.waiting == stats.waiting_deferred == 0
    assert stats.kv_blocks_free == stats.kv_blocks_total and stats.kv_usage_frac == 0
    assert sorted(engine.cache.pool.free_blocks()) == list(range(stats.kv_blocks_total))
    assert not engine.num_in_flight
