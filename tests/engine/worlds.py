"""Random worlds: an engine of random limits, requests that share, collide, leave and come back.

A world is a function of its seed. Whatever happens in it, each request must get the tokens that it
would get alone (`glass_worker.expected`), once, and leave nothing behind.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field, fields
from typing import Any

from tests.engine.harness import EOS, VOCAB, Ear, check, check_idle, make_engine, make_plan
from tests.fakes.glass_worker import GlassWorker, Solo, expected, expected_scores, scored

from octavo.core.engine import Engine
from octavo.core.kv import prefix
from octavo.core.pause import Paused
from octavo.core.protocols import StepView, Verdict
from octavo.core.request import Request
from octavo.wire.messages import EngineRequest, FinishReason
from octavo.wire.sampling import RepetitionDetectionParams, SamplingParams

MAX_TURNS = 4000


def weak_hasher() -> prefix.Hasher:
    """Four different digests in all: nearly every lookup is a collision."""
    return lambda parent, tokens, extras: bytes([hashlib.sha256(parent + tokens).digest()[0] & 3])


class Whim:
    """A gate and a limit that answer at random."""

    least = 1

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def check(self, request: Request) -> Verdict:
        return self.rng.choice((Verdict.GO, Verdict.GO, Verdict.SKIP, Verdict.STOP))

    def is_full(self, view: StepView) -> bool:
        return self.rng.random() < 0.1

    def grant(self, request: Request, want: int, view: StepView) -> int:
        assert 0 < want <= view.budget and view.num_others >= 0
        return self.rng.randint(0, want)


@dataclass
class Counts:
    """What a run of worlds met, so that a test can tell that it met it."""

    worlds: int = 0
    requests: int = 0
    steps: int = 0
    preemptions: int = 0
    pauses: int = 0
    hits: int = 0
    recomputed: int = 0
    aborts: int = 0
    restarts: int = 0
    finals: dict[FinishReason, int] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        for each in fields(self):
            if each.name != "finals":
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        for reason, number in other.finals.items():
            self.finals[reason] = self.finals.get(reason, 0) + number


class World:
    """`check_reads`: the worker compares what it reads; `check_state`: the algebra is checked every turn.
    With both off only the answers can tell."""

    def __init__(self, seed: int, *, check_reads: bool = True, check_state: bool = True) -> None:
        self.seed = seed
        self.check_state = check_state
        self.rng = rng = random.Random(seed)
        self.check_reads = check_reads
        self.block_size = rng.choice((1, 2, 2, 3, 4, 4, 8))
        self.windows = self._windows()
        self.depth = rng.choice((1, 2, 2, 2, 3))
        self.is_whimsical = rng.random() < 0.1
        self.max_model_len = rng.randint(12, 48)
        chunked = rng.random() < 0.85
        budget = rng.choice((1, 2, 3, 5, 8, 16, 32)) if chunked else rng.randint(self.max_model_len, 64)
        self.plan = make_plan(
            block_size=self.block_size,
            num_blocks=self._num_blocks(),
            caching=rng.random() < 0.85,
            hash_algo=rng.choice(("sha256", "sha256", "xxhash", "weak")),
            max_num_seqs=rng.randint(1, 6),
            max_num_batched_tokens=budget,
            max_model_len=self.max_model_len,
            policy=rng.choice(("fcfs", "priority")),
            long_prefill_token_threshold=rng.choice((0, 0, 0, 2, 5)) if chunked else 0,
            reserve_full_prompt=rng.random() < 0.7,
            watermark_frac=rng.choice((0.0, 0.0, 0.1)),
            pipeline_depth=self.depth,
            enable_chunked_prefill=chunked,
            max_step_ms=self._max_step_ms() if chunked else 0.0,
        )
        self.engine, self.worker = self._start()
        self.requests: dict[str, EngineRequest] = {}
        self.solo: dict[str, Solo] = {}
        self.aborted: set[str] = set()
        self.ear = Ear()
        self.counts = Counts(worlds=1)
        self.stems = [[rng.randrange(2, VOCAB) for _ in range(rng.randint(1, 20))] for _ in range(3)]

    def _windows(self) -> tuple[int, ...]:
        rng = self.rng
        kind = rng.randrange(6)
        if kind < 3:
            return (0,)
        sizes = [rng.randint(1, 12) for _ in range(2)]
        return ((0, sizes[0]), (sizes[0],), (0, *sizes))[kind - 3]

    def _num_blocks(self) -> int:
        """From hardly one request to plenty."""
        widest = -(-self.max_model_len // self.block_size)
        low = max(1, widest // 2)
        high = self.rng.choice((widest, 2 * widest, 6 * widest))
        return self.rng.randint(low * len(self.windows), high * len(self.windows))

    def _max_step_ms(self) -> float:
        return random.Random(f"pace {self.seed}").choice((0.0, 0.0, 1.0, 10.0, 40.0))

    def _engine_options(self) -> dict[str, Any]:
        """More of them, for worlds that watch something."""
        return {}

    def _start(self) -> tuple[Engine, GlassWorker]:
        rng, options = self.rng, {}
        if self.is_whimsical:
            whim = Whim(rng)
            options = {"gates": [whim], "limits": [whim], "stall_s": 1e9}
        pace_rng = random.Random(f"step times {self.seed}")
        latency: Any = (lambda: 0) if rng.random() < 0.3 else (lambda: rng.randrange(3))
        engine, worker = make_engine(
            plan=self.plan,
            windows=self.windows,
            worker_options={
                "latency": latency,
                "check": self.check_reads,
                "takes_s": lambda _, plan: pace_rng.uniform(0.0, 1e-3) * (5 + plan.num_tokens),
            },
            engine_options={"max_passed": rng.choice((0, 2, 32)), **options, **self._engine_options()},
        )
        if pace_rng.random() < 0.5:  # nobody waits for a prefix, so that equal ones are computed side by side
            engine.cache.is_coming = lambda request, other: False  # type: ignore[method-assign]
        if engine.pace is not None:
            engine.pace.grain = pace_rng.choice((1, 2, 16))
            engine.pace.floor = engine.pace.grain * pace_rng.choice((1, 2))
        return engine, worker

    # ---- what happens -------------------------------------------------------------------------

    def _prompt(self) -> list[int]:
        rng = self.rng
        stem = rng.choice(self.stems)
        tail = [rng.randrange(2, VOCAB) for _ in range(rng.choice((0, 0, 1, 3, 9)))]
        return stem[: rng.choice((len(stem), len(stem), rng.randint(1, len(stem))))] + tail

    def _repetition(self) -> RepetitionDetectionParams | None:
        rng = random.Random(f"repetition {self.seed} {len(self.requests)}")
        if rng.random() < 0.6:
            return None
        return RepetitionDetectionParams(max_pattern_size=rng.randint(1, 9), min_count=rng.choice((2, 2, 3)))

    def add(self) -> None:
        rng = self.rng
        prompt = self._prompt()
        if rng.random() < 0.95:
            prompt = prompt[: rng.randint(1, self.engine.max_len - 1)]
        max_tokens = rng.choice((rng.randint(1, 6), rng.randint(6, 30)))
        params = SamplingParams(
            min_tokens=rng.choice((0, 0, 0, min(max_tokens, 5))),
            stop_token_ids=rng.choice(([], [], [rng.randrange(VOCAB)])),
            logprobs=rng.choice((None, None, None, 0, 2)),
            prompt_logprobs=rng.choice((None,) * 9 + (1,)),
            repetition_detection=self._repetition(),
        )
        request = EngineRequest(
            id=f"r{len(self.requests)}",
            prompt=prompt,
            params=params,
            max_tokens=max_tokens,
            seed=rng.randrange(3),
            eos_ids=rng.choice(([], [EOS], [EOS, 5])),
            priority=rng.choice((0, 0, 1, -1)),
            salt=rng.choice((None, None, "a", "b")),
            skip_reading_prefix_cache=rng.random() < 0.05,
        )
        self.requests[request.id] = request
        self.counts.requests += 1
        if len(prompt) + 1 <= self.engine.max_len:
            self.solo[request.id] = expected(request, self.windows, VOCAB, self.engine.max_len)
        self.engine.add(request)

    def abort(self) -> None:
        request_id = self.rng.choice(list(self.requests))
        heard = self.ear.get(request_id)
        if heard is None or heard.finish is None:
            self.aborted.add(request_id)
        self.engine.abort([request_id, "nobody"])
        self.counts.aborts += 1

    def restart(self) -> None:
        """The engine dies; everything unfinished comes back with the tokens already heard."""
        self._count_engine()
        self.counts.restarts += 1
        self.engine, self.worker = self._start()
        for request in self.requests.values():
            heard = self.ear.get(request.id)
            if heard is not None and heard.finish is not None:
                continue
            again = EngineRequest(**{f: getattr(request, f) for f in request.__struct_fields__})
            again.forced = list(heard.token_ids) if heard else []
            again.crashes = 1
            self.engine.add(again)

    def pause_or_resume(self) -> None:
        """`abort` is left to `abort`, which knows whom it ends."""
        if self.engine._pause.state:
            self.engine.resume()
        else:
            self.engine.pause(self.rng.choice(("wait", "keep")), self.rng.random() < 0.5)
            self.counts.pauses += 1

    def turn(self) -> None:
        engine = self.engine
        self.ear.take(engine.pump(self.rng.choice((0.0, 0.0, None))))
        if self.check_state:
            check(engine)
        if engine.is_paused():
            assert not engine.num_in_flight
            if engine._pause.state is Paused.NEW:
                assert not engine.scheduler.running
        if not self.is_whimsical and not engine._pause.state:
            assert not engine._live or engine.num_in_flight, "requests live and nothing is planned"

    def run(self) -> Counts:
        rng = self.rng
        to_add = rng.randint(2, 8)
        restarts = rng.random() < 0.15
        for _ in range(MAX_TURNS):
            while to_add and rng.random() < 0.4:
                self.add()
                to_add -= 1
            dice = rng.random()
            if dice < 0.02 and self.requests:
                self.abort()
            elif dice < 0.03:
                idle = self.engine.cache.pool.num_free == self.engine.cache.pool.num_blocks
                assert self.engine.reset_prefix_cache() == idle
            elif dice < 0.06 and restarts:
                self.restart()
            elif dice > (0.8 if self.engine._pause.state else 0.98):
                self.pause_or_resume()
            self.turn()
            if not to_add and not self.engine.has_work():
                break
        else:
            raise AssertionError("the world does not come to an end")
        if self.check_state:
            check_idle(self.engine)
        self._count_engine()
        for request_id in self.requests:
            self._judge(request_id)
        return self.counts

    # ---- what must be true ---------------------------------------------------------------------

    def _count_engine(self) -> None:
        stats, counts = self.engine.stats(), self.counts
        assert stats.prefix_hits <= stats.prefix_queries
        if not self.plan.cache.enable_prefix_caching:
            assert stats.prefix_queries == 0
        counts.steps += stats.steps
        counts.preemptions += stats.preemptions
        counts.hits += stats.prefix_hits
        counts.recomputed += stats.recomputed_tokens

    def _judge(self, request_id: str) -> None:
        request, heard = self.requests[request_id], self.ear[request_id]
        last = heard.last
        record, solo = last.record, self.solo.get(request_id)
        assert record is not None and last.finish is not None
        self.counts.finals[last.finish] = self.counts.finals.get(last.finish, 0) + 1
        assert record.num_prompt == len(request.prompt)
        assert record.finished >= record.queued > 0
        if solo is None:
            assert heard.token_ids == []
            assert last.finish is FinishReason.ERROR or request_id in self.aborted
            return
        assert record.num_generated == len(heard.token_ids)
        if last.finish is FinishReason.ABORT:
            assert request_id in self.aborted
            begun = solo.token_ids[: len(heard.token_ids)]
            assert heard.token_ids == begun, f"{request_id} differs from its solo run until its abort"
        else:
            assert heard.token_ids == solo.token_ids, f"{request_id} differs from its solo run"
            assert (last.finish, last.stop_reason) == (solo.finish, solo.stop_reason)
        self._judge_logprobs(request, solo)
        if record.first_token:
            assert record.queued <= record.scheduled <= record.first_token <= record.finished
            assert record.prefix_miss in ("new", "evicted", "salt", "disabled", "tail-block")
            # After a restart the last known token, which is never reused, is an output token.
            assert record.num_cached < record.num_prompt + bool(self.counts.restarts)
        assert (record.num_recomputed > 0) <= (record.num_preemptions > 0)

    def _judge_logprobs(self, request: EngineRequest, solo: Solo) -> None:
        deltas = [delta for delta in self.ear[request.id].deltas if delta.token_ids]
        assert [delta.prompt_logprobs for delta in deltas[1:]] == [None] * len(deltas[1:])
        if not deltas:
            return
        assert deltas[0].num_cached is not None
        params = request.params
        if params.prompt_logprobs is not None:
            scores = expected_scores(request.prompt, self.windows, VOCAB, params.prompt_logprobs)
            assert deltas[0].prompt_logprobs == scores, (
                f"{request.id} differs from its solo run in its scores"
            )
            assert deltas[0].num_cached == 0
        if params.logprobs is not None:
            got = [one for delta in deltas for one in delta.logprobs or []]
            want = [
                scored(seen, token, params.logprobs, VOCAB)
                for seen, token in zip(solo.seen, solo.token_ids, strict=True)
            ]
            assert len(got) == sum(len(delta.token_ids) for delta in deltas)
            assert got == want[: len(got)], f"{request.id} differs from its solo run in its logprobs"
        else:
            assert all(delta.logprobs is None for delta in deltas)


def run_worlds(first: int, count: int, *, world: type[World] = World, **options: Any) -> Counts:
    """Worlds `first` to `first + count - 1`; a failure names its seed."""
    total = Counts()
    saved = dict(prefix.HASHERS)
    prefix.HASHERS["weak"] = weak_hasher
    try:
        for seed in range(first, first + count):
            try:
                counts = world(seed, **options).run()
            except Exception as error:
                error.add_note(f"in world {seed}")
                raise
            for name in (
                "worlds",
                "requests",
                "steps",
                "preemptions",
                "hits",
                "recomputed",
                "aborts",
                "restarts",
            ):
                setattr(total, name, getattr(total, name) + getattr(counts, name))
            for reason, number in counts.finals.items():
                total.finals[reason] = total.finals.get(reason, 0) + number
    finally:
        prefix.HASHERS.clear()
        prefix.HASHERS.update(saved)
    return total
