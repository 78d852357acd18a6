"""The engine: requests in, steps through a worker, deltas out.

Owns the life of every request from `add` to its one final delta, stop checks, records and the
self-check against stalls. Does not know sockets (core.loop), text (api) or what a step computes (worker).
"""

from __future__ import annotations

import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from octavo.config.plan import EnginePlan
from octavo.core.kv.cache import KVCache
from octavo.core.kv_events import KVEvents
from octavo.core.pace import Pace
from octavo.core.pause import Paused, PauseGate, PauseMode
from octavo.core.protocols import Gate, Limit
from octavo.core.request import Request, State
from octavo.core.scheduler import MAX_PASSED, Scheduler, Step
from octavo.core.stop import may_stop
from octavo.errors import ConfigError, EngineDead, InvalidRequest
from octavo.wire.layout import KVLayout
from octavo.wire.messages import (
    EngineRequest,
    EngineStats,
    FinishReason,
    StepResult,
    TokenDelta,
    TokenLogprobs,
)
from octavo.wire.worker import WorkerPort

logger = logging.getLogger(__name__)

#: Live requests, nothing in flight and nothing to plan for this long is a stall (never just slowness).
STALL_S = 1.0
NOTHING_ALLOWED = (
    "no token may follow: logit_bias, bad_words, allowed_token_ids and min_tokens together ban all of them, "
    "or the logits are not finite"
)
MAX_STEP_TOKENS_KEPT = 4096


class Engine:
    """Single-threaded: every method is called from one thread. Time is `time.monotonic()`.

    Every request that `add` takes leaves with exactly one delta with `finish` set, from `pump`.
    """

    def __init__(
        self,
        plan: EnginePlan,
        layout: KVLayout,
        worker: WorkerPort,
        *,
        gates: Sequence[Gate] = (),
        limits: Sequence[Limit] = (),
        kv_events: KVEvents | None = None,
        max_passed: int = MAX_PASSED,
        stall_s: float = STALL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if plan.cache.block_size != layout.block_size:
            raise ConfigError(
                f"the plan has blocks of {plan.cache.block_size} tokens, the model's layout of "
                f"{layout.block_size}",
                fix="resolve the plan again",
            )
        self.plan = plan
        self.layout = layout
        self._worker = worker
        self._clock = clock
        self._depth = plan.scheduler.pipeline_depth
        self.cache = KVCache(
            layout,
            plan.cache.num_blocks,
            max_chunk=plan.scheduler.max_num_batched_tokens,
            enable_prefix_caching=plan.cache.enable_prefix_caching,
            hash_algo=plan.cache.hash_algo,
            events=None if kv_events is None else kv_events.log,
        )
        self._kv_events = kv_events
        bound_ms = plan.scheduler.max_step_ms
        if bound_ms and not plan.scheduler.enable_chunked_prefill:
            raise ConfigError(
                f"max_step_ms is {bound_ms:g} and chunked prefill is off",
                fix="set max_step_ms to 0, or switch chunked prefill on",
            )
        self.pace = Pace(bound_ms) if bound_ms else None
        self._pause = PauseGate()
        self.scheduler = Scheduler(
            plan.scheduler,
            self.cache,
            self.cache,
            watermark_blocks=int(plan.scheduler.watermark_frac * plan.cache.num_blocks),
            growth_blocks=len(layout.groups),
            gates=(self._pause, *gates),
            limits=limits if self.pace is None else (*limits, self.pace),
            max_passed=max_passed,
        )
        # The last token of a sequence is drawn and never computed, so it needs no room in the cache.
        self.max_len = min(
            plan.scheduler.max_model_len, self.cache.capacity(plan.scheduler.max_model_len) + 1
        )
        if self.max_len < plan.scheduler.max_model_len:
            logger.warning(
                "the KV cache holds %d tokens of one request, fewer than max_model_len %d: they end there",
                self.max_len - 1,
                plan.scheduler.max_model_len,
            )
        #: What launch knows besides: it fills in the fields of others.
        self.more_stats: Callable[[EngineStats], None] | None = None
        self._live: dict[str, Request] = {}
        self._in_flight: deque[Step] = deque()
        self._outbox: list[TokenDelta] = []  # of requests that ended outside a step
        self._num_added = 0
        self._last_step_tokens = 0
        self._step_tokens: deque[int] = deque(maxlen=MAX_STEP_TOKENS_KEPT)
        self._stall_s = stall_s
        self._stalled_since: float | None = None
        self._recovered = False
        self._clears_cache = False  # when the pause is complete

    # ---- requests in --------------------------------------------------------------------------

    def add(self, wire: EngineRequest) -> None:
        """Take a request. One that can never run ends with an ERROR delta; an id that is live already
        raises InvalidRequest, since a delta would end the request that has the id."""
        if wire.id in self._live:
            raise InvalidRequest(
                f"request id {wire.id!r} is live already", fix="give every request its own id"
            )
        now = self._clock()
        num_added = self._num_added = self._num_added + 1
        if self.plan.scheduler.policy == "priority":
            key: tuple[float, ...] = (wire.priority, wire.arrival or now, num_added)
        else:
            key = (num_added,)
        end = min(len(wire.prompt) + wire.max_tokens, self.max_len)
        request = Request(wire, end=end, key=key, now=now)
        self._live[wire.id] = request
        problem = self._refusal(wire)
        ended = self._forced_end(request) if problem is None and wire.forced else None
        if problem is None and ended is None:
            self.scheduler.add(request)
            return
        request.state = State.FINISHED  # it never was in line
        reason, stop_reason = ended or (FinishReason.ERROR, None)
        self._outbox.append(self._end(request, reason, stop_reason, error=problem))

    def _refusal(self, wire: EngineRequest) -> str | None:
        """Why a request can never run: what was given, what is allowed, what to do."""
        prompt, limits = len(wire.prompt), self.plan.scheduler
        if not prompt:
            return "the prompt has no tokens: send at least one"
        if wire.max_tokens < 1:
            return f"max_tokens is {wire.max_tokens}: ask for at least 1"
        if prompt + 1 > limits.max_model_len:
            return (
                f"prompt has {prompt:,} tokens; this model takes {limits.max_model_len:,}, prompt and answer "
                "together: shorten it or raise --max-model-len"
            )
        if prompt + 1 > self.max_len:
            return (
                f"prompt has {prompt:,} tokens; the KV cache of {self.plan.cache.num_blocks:,} blocks holds "
                f"{self.max_len - 1:,} of one request: shorten it or give the KV cache more memory"
            )
        if not limits.enable_chunked_prefill and prompt > limits.max_num_batched_tokens:
            return (
                f"prompt has {prompt:,} tokens; a step takes {limits.max_num_batched_tokens:,} and "
                "chunked prefill is off: shorten it, raise --max-num-batched-tokens, or switch it on"
            )
        vocab = self.plan.vocab_size
        for ids in (wire.prompt, wire.forced):
            if ids and not (min(ids) >= 0 and max(ids) < vocab):
                bad = next(i for i in ids if not 0 <= i < vocab)
                return f"token id {bad} is outside the vocabulary: this model has ids 0 to {vocab - 1}"
        return None

    def _forced_end(self, request: Request) -> tuple[FinishReason, int | str | None] | None:
        """The end that the forced tokens reached already: the engine died before it could say so."""
        wire = request.wire
        for i, token in enumerate(wire.forced):
            ended = self._may_stop(request, token, request.num_prompt + i + 1)
            if ended is not None:
                return ended
        return None

    def abort(self, ids: Sequence[str]) -> None:
        """End requests now; their final deltas come from the next `pump`. Unknown ids have ended already."""
        for request_id in ids:
            request = self._live.get(request_id)
            if request is not None:
                self._outbox.append(self._end(request, FinishReason.ABORT))

    def abort_all(self) -> None:
        self.abort(list(self._live))

    def close(self) -> None:
        """The engine is used no more: what it holds outside this process is given back."""
        if self._kv_events is not None:
            self._kv_events.close()

    # ---- the step loop ------------------------------------------------------------------------

    def has_work(self) -> bool:
        return bool(self._live or self._in_flight or self._outbox)

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def wake_fd(self) -> int:
        """Readable when a result waits for `pump`."""
        return self._worker.wake_fd

    @property
    def steps_done(self) -> int:
        return self.scheduler.counters.steps - len(self._in_flight)

    def pump(self, timeout_s: float | None = 0.0) -> list[TokenDelta]:
        """Plan and submit while fewer than `pipeline_depth` steps are in flight; commit what is ready.

        Waits up to `timeout_s` (None = for ever) for the first result when steps are in flight; 0 only
        looks. A step is planned as soon as another ends, so that the worker finds it waiting.
        Raises EngineDead when the worker reports a fault.
        """
        if not self._in_flight:
            self._worker.collect(0.0)  # nothing is due: this takes back the wake-up that a gate gave
        self._fill()
        deltas, self._outbox = self._outbox, []
        if deltas:
            timeout_s = 0.0
        for _ in range(len(self._in_flight)):
            result = self._worker.collect(timeout_s)
            if result is None:
                break
            timeout_s = 0.0
            self._commit(self._in_flight.popleft(), result, deltas)
            self._fill()
        if self._live and not self._in_flight and not self._pause.state:
            self._check_stall()
        else:
            self._stalled_since = None
        if self._kv_events is not None:
            self._kv_events.flush(self.cache)
        return deltas

    def _fill(self) -> None:
        if self._pause.state is Paused.ALL:
            return
        while len(self._in_flight) < self._depth:
            step = self.scheduler.plan(self._clock())
            if self.scheduler.failed:
                self._end_failed()
            if step is None:
                return
            self._worker.submit(step.plan)
            self._in_flight.append(step)
            self._last_step_tokens = step.num_tokens
            self._step_tokens.append(step.num_tokens)
            self._recovered = False

    def _end_failed(self) -> None:
        failed, self.scheduler.failed = self.scheduler.failed, []
        for request, problem in failed:
            delta = self._end(request, FinishReason.ERROR, error=problem)
            delta.is_refused = request.wire.params.structured is not None
            self._outbox.append(delta)

    def _commit(self, step: Step, result: StepResult, deltas: list[TokenDelta]) -> None:
        if result.fault is not None:
            raise EngineDead(f"step {step.plan.step} failed: {result.fault}")
        if result.step != step.plan.step:
            raise EngineDead(f"the worker answered step {result.step} when step {step.plan.step} was due")
        if self.pace is not None:
            self.pace.observe(step.load, result.elapsed_s)
        if result.prompt_logprobs:
            self._keep_scores(step, result)
        now = self._clock()
        has_logprobs = bool(result.logprobs)
        for row, (request, _, draws) in enumerate(step.rows):
            if not draws:
                continue
            request.drawn -= 1
            if request.state is not State.FINISHED:
                drawn = result.token_ids[row]
                logprobs = result.logprobs[row] if has_logprobs else None
                if drawn and drawn[-1] < 0:
                    slot = step.plan.slots[row]
                    problem = result.problems.get(slot, NOTHING_ALLOWED)
                    delta = self._end(request, FinishReason.ERROR, error=problem)
                    delta.is_refused = slot in result.refused or (
                        slot not in result.problems and request.wire.params.can_ban
                    )
                    deltas.append(delta)
                else:
                    deltas.append(self._accept(request, drawn, logprobs, now))

    def _keep_scores(self, step: Step, result: StepResult) -> None:
        for (request, epoch, _), slot in zip(step.rows, step.plan.slots, strict=True):
            if request.wants_scores and request.epoch == epoch:
                request.prompt_scores += result.prompt_logprobs.get(slot, ())

    def _accept(
        self, request: Request, token_ids: list[int], logprobs: list[TokenLogprobs] | None, now: float
    ) -> TokenDelta:
        """Tokens that a step drew join the sequence, up to the one that ends it."""
        tokens, ended = request.tokens, None
        for count, token in enumerate(token_ids, 1):
            tokens.append(token)
            if token not in request.ending_ids and len(tokens) < request.end and request.repetition is None:
                continue  # as nearly every token
            ended = self._may_stop(request, token, len(tokens))
            if ended is not None:
                token_ids = token_ids[:count]
                logprobs = logprobs[:count] if logprobs else logprobs
                break
        record = request.record
        record.num_generated += len(token_ids)
        delta = TokenDelta(id=request.wire.id, token_ids=token_ids, logprobs=logprobs)
        if request.is_new:
            request.is_new = False
            record.first_token = now
            delta.num_cached = record.num_cached
            if request.wants_scores and not self._deliver_scores(request, delta):
                return delta
        if ended is not None:
            self._end(request, *ended, delta=delta)
        return delta

    def _deliver_scores(self, request: Request, delta: TokenDelta) -> bool:
        scores = request.prompt_scores
        if len(scores) != request.num_prompt - 1:
            problem = f"the worker scored {len(scores)} of {request.num_prompt - 1} prompt tokens"
            self._end(request, FinishReason.ERROR, error=problem, delta=delta)
            return False
        delta.prompt_logprobs = [None, *scores]
        request.prompt_scores = []
        request.wants_scores = False
        request.may_reuse = not request.wire.skip_reading_prefix_cache
        return True

    def _may_stop(
        self, request: Request, token: int, length: int
    ) -> tuple[FinishReason, int | str | None] | None:
        wire = request.wire
        return may_stop(
            token,
            num_output=length - request.num_prompt,
            # An answer ends where its grammar does; until then the worker bans the end, min_tokens long.
            min_tokens=0 if wire.params.structured is not None else wire.params.min_tokens,
            is_last=length >= request.end,
            eos_ids=wire.eos_ids,
            stop_token_ids=wire.params.stop_token_ids,
            repetition=request.repetition,
        )

    # ---- requests out -------------------------------------------------------------------------

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        stop_reason: int | str | None = None,
        *,
        error: str | None = None,
        delta: TokenDelta | None = None,
    ) -> TokenDelta:
        """The one final delta of a request; everything that it held is given back."""
        del self._live[request.wire.id]
        self.scheduler.finish(request)
        record = request.record
        record.finished = self._clock()
        if delta is None:
            delta = TokenDelta(id=request.wire.id)
        delta.finish, delta.stop_reason, delta.error, delta.record = reason, stop_reason, error, record
        logger.debug(
            "finished %s: %s, %d prompt tokens (%d cached, %s), %d generated, %d preemptions",
            request.wire.id,
            reason.text,
            record.num_prompt,
            record.num_cached,
            record.prefix_miss or "never scheduled",
            record.num_generated,
            record.num_preemptions,
        )
        return delta

    # ---- self-check (every request makes progress, or is told why not) ----------------------------

    def _check_stall(self) -> None:
        """Requests live, nothing in flight, nothing planned: report, recover, and if that does not help
        fail the request at the head. Only a fault of ours leads here, unless gates hold everybody back."""
        now = self._clock()
        if self._stalled_since is None:
            self._stalled_since = now
        if now - self._stalled_since < self._stall_s:
            return
        self._stalled_since = now
        scheduler, pool = self.scheduler, self.cache.pool
        state = (
            f"{len(scheduler.running)} running, {len(scheduler.waiting)} waiting, "
            f"{len(scheduler.deferred)} deferred, {pool.num_free} of {pool.num_blocks} blocks free, "
            f"{self.cache.promised} promised"
        )
        if not scheduler.running and not len(scheduler.waiting):
            logger.warning("every request waits for what it needs to start: %s", state)
            return
        if not self._recovered:
            self._recovered = True
            logger.error("nothing can be scheduled: %s; starting again from an empty KV cache", state)
            scheduler.preempt_all()
            self.cache.rebuild()
            return
        request = scheduler.head()
        if request is not None:
            logger.error("nothing can be scheduled: %s; giving up %r", state, request)
            self._outbox.append(
                self._end(request, FinishReason.ERROR, error=f"could not be scheduled: {state}")
            )

    # ---- what it says of itself ---------------------------------------------------------------

    def stats(self, *, drain: bool = False) -> EngineStats:
        """Gauges now, counters since the start. `drain`: the sizes of steps are told once."""
        scheduler, pool, counters = self.scheduler, self.cache.pool, self.scheduler.counters
        step_tokens = list(self._step_tokens)
        if drain:
            self._step_tokens.clear()
        stats = EngineStats(
            running=len(scheduler.running),
            waiting=scheduler.num_waiting,
            waiting_deferred=len(scheduler.deferred),
            paused=bool(self._pause.state),
            kv_usage_frac=pool.usage_frac,
            kv_blocks_free=pool.num_free,
            kv_blocks_total=pool.num_blocks,
            prefix_queries=counters.prefix_queries,
            prefix_hits=counters.prefix_hits,
            preemptions=counters.preemptions,
            recomputed_tokens=counters.recomputed_tokens,
            steps=counters.steps,
            last_step_tokens=self._last_step_tokens,
            step_tokens=step_tokens,
        )
        if self.more_stats is not None:
            self.more_stats(stats)
        return stats

    def reset_prefix_cache(self, reset_running: bool = False) -> bool:
        """Forget cached prefixes; False while a running request holds blocks, unless `reset_running`
        makes all of them wait and compute again."""
        if reset_running:
            self.scheduler.preempt_all()
        return self.cache.reset()

    # ---- standing still -----------------------------------------------------------------------

    def pause(self, mode: str = "abort", clear_cache: bool = True) -> None:
        """Begin to stand still; `is_paused` says when it does. New requests queue meanwhile.

        `clear_cache`: once nothing is computed, cached prefixes are forgotten (and what `keep` has
        frozen is computed again after `resume`, to the same tokens). Raises InvalidRequest for a mode
        that does not exist.
        """
        wanted = PauseMode.named(mode)
        self._pause.state = Paused.ALL if wanted is PauseMode.KEEP else Paused.NEW
        self._clears_cache = clear_cache
        if wanted is PauseMode.ABORT:
            self.abort_all()

    def is_paused(self) -> bool:
        """Paused, and nothing is computed any more."""
        state = self._pause.state
        if not state or self._in_flight or (state is Paused.NEW and self.scheduler.running):
            return False
        if self._clears_cache:
            self._clears_cache = False
            self.reset_prefix_cache(reset_running=True)
        return True

    def resume(self) -> None:
        self._pause.state = Paused.NO
        self._clears_cache = False

    def describe(self) -> dict[str, object]:
        """What actually runs, as plain values."""
        return {
            "max_model_len": self.plan.scheduler.max_model_len,
            "max_sequence_len": self.max_len,
            "num_blocks": self.plan.cache.num_blocks,
            "block_size": self.plan.cache.block_size,
            "block_bytes": self.layout.block_bytes,
            "kv_groups": [{"layers": list(g.layers), "window": g.window} for g in self.layout.groups],
            "pipeline_depth": self._depth,
            "step_costs_ms": [] if self.pace is None else self.pace.time.costs_ms,
            "table": self.plan.table,
        }

    def call(self, method: str, args: Sequence[object] = ()) -> object:
        """A control call by name. Raises InvalidRequest for a method or arguments that do not exist."""
        calls: dict[str, Callable[..., object]] = {
            "reset_prefix_cache": self.reset_prefix_cache,
            "pause": self.pause,
            "is_paused": self.is_paused,
            "resume": self.resume,
            "stats": self.stats,
            "describe": self.describe,
        }
        if method not in calls:
            raise InvalidRequest(f"there is no engine call {method!r}", fix=f"call one of {', '.join(calls)}")
        try:
            bound = inspect.signature(calls[method]).bind(*args)
        except TypeError as error:
            raise InvalidRequest(f"{method} does not take {list(args)!r}: {error}") from None
        return calls[method](*bound.args)
