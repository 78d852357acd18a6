"""An engine that replays token ids over the endpoint interface: what a model says is written in the test.

Obeys what decides the length and shape of an answer (max_tokens, min_tokens, eos and stop ids, ignore_eos,
logit_bias, logprobs, forced prefix, abort); draws nothing. Faults: `kill`, `fail_at`, `hold`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable

import msgspec
from tests.fakes.glass_worker import repeats
from tests.fakes.toy_codec import BYTE_0, ToyCodec

from octavo.wire.messages import (
    Abort,
    Add,
    EngineRequest,
    EngineStats,
    FinishReason,
    FromEngine,
    Outputs,
    Reply,
    RequestRecord,
    ToEngine,
    TokenDelta,
    TokenLogprobs,
)

Script = Callable[[EngineRequest], list[int]]
FILLER = BYTE_0 + ord("x")


class ScriptedEngine:
    """`group(rng)` tokens go into a delta. `hold`: clear it to stop all output. `seen`: requests as they came."""

    def __init__(
        self,
        codec: ToyCodec,
        script: Script | str = "Hello",
        *,
        group: int | Callable[[], int] = 1,
        delay_s: float = 0.0,
        fail_at: int | None = None,
        num_cached: int = 0,
    ) -> None:
        self.codec = codec
        self.script: Script = (lambda _: codec.encode(script, False)) if isinstance(script, str) else script
        self.group = group
        self.delay_s = delay_s
        self.fail_at = fail_at
        self.num_cached = num_cached
        self.seen: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.generated = 0
        self.hold = asyncio.Event()
        self.hold.set()
        self.steps = 0
        self._out: asyncio.Queue[FromEngine] = asyncio.Queue()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._is_dead = False

    # ---- the endpoint ---------------------------------------------------------------------------

    def send(self, message: ToEngine) -> None:
        if self._is_dead:
            return
        if isinstance(message, Add):
            self.seen.append(message.request)
            task = asyncio.get_running_loop().create_task(self._run(message.request))
            self._running[message.request.id] = task
        elif isinstance(message, Abort):
            for request_id in message.ids:
                self._abort(request_id)
        else:
            self._out.put_nowait(Reply(call_id=message.call_id, result=msgspec.Raw(b"\xc3")))

    async def __aiter__(self) -> AsyncIterator[FromEngine]:
        while True:
            yield await self._out.get()

    # ---- faults ---------------------------------------------------------------------------------

    def kill(self) -> None:
        """The process is gone: nothing more comes out, nothing more is heard."""
        self._is_dead = True
        for task in self._running.values():
            task.cancel()
        self._running.clear()

    async def close(self) -> None:
        tasks = list(self._running.values())
        self.kill()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def num_running(self) -> int:
        return len(self._running)

    # ---- a request ------------------------------------------------------------------------------

    def _abort(self, request_id: str) -> None:
        task = self._running.pop(request_id, None)
        if task is None:
            return
        task.cancel()
        self.aborted.append(request_id)
        request = next(r for r in self.seen if r.id == request_id)
        made = getattr(task, "made", 0)
        self._emit(TokenDelta(id=request_id, finish=FinishReason.ABORT, record=self._record(request, made)))

    async def _run(self, request: EngineRequest) -> None:
        task = asyncio.current_task()
        try:
            script = self.script(request)
        except Exception as error:  # a test's own mistake: said, not waited for
            self._running.pop(request.id, None)
            finish = FinishReason.ERROR
            self._emit(
                TokenDelta(
                    id=request.id,
                    finish=finish,
                    error=f"the script of this test failed: {error!r}",
                    record=self._record(request, 0),
                )
            )
            return
        made = len(request.forced)
        tokens: list[int] = []
        is_first = True
        while True:
            await asyncio.sleep(self.delay_s)
            await self.hold.wait()
            size = self.group if isinstance(self.group, int) else self.group()
            delta = TokenDelta(id=request.id)
            for _ in range(max(1, size)):
                token = self._next(request, script, made)
                made += 1
                tokens.append(token)
                delta.token_ids.append(token)
                self._finish(request, delta, token, made, [*request.forced, *tokens])
                if delta.finish is not None:
                    break
            self.generated += len(delta.token_ids)
            self.steps += 1
            task.made = made  # type: ignore[union-attr]
            self._score(request, delta, is_first=is_first)
            is_first = False
            if delta.finish is not None:
                delta.record = self._record(request, made)
                self._running.pop(request.id, None)
            self._emit(delta)
            if delta.finish is not None:
                return

    def _next(self, request: EngineRequest, script: list[int], made: int) -> int:
        params = request.params
        ends = {*request.eos_ids, *params.stop_token_ids}
        token = script[made] if made < len(script) else min(request.eos_ids, default=FILLER)
        if params.logit_bias:
            best = max(params.logit_bias, key=lambda i: params.logit_bias[i])  # type: ignore[index]
            token = best if params.logit_bias[best] >= 50 else token
        return FILLER if token in ends and made < params.min_tokens else token

    def _finish(
        self, request: EngineRequest, delta: TokenDelta, token: int, made: int, output: list[int]
    ) -> None:
        if self.fail_at is not None and made >= self.fail_at:
            delta.finish, delta.error = (
                FinishReason.ERROR,
                "a fault at 0x7f0123456789 in /srv/octavo/engine.py",
            )
        elif token in request.eos_ids:
            delta.finish = FinishReason.STOP
        elif token in request.params.stop_token_ids:
            delta.finish, delta.stop_reason = FinishReason.STOP, token
        elif made >= request.max_tokens:
            delta.finish = FinishReason.LENGTH
        elif repeats(output, request.params.repetition_detection):
            delta.finish, delta.stop_reason = FinishReason.REPETITION, "repetition_detected"

    def _score(self, request: EngineRequest, delta: TokenDelta, *, is_first: bool) -> None:
        params = request.params
        chosen = params.logprob_token_ids
        if chosen:
            values = [-1.5 - i for i in range(len(chosen))]
            delta.logprobs = [TokenLogprobs(i, -0.25, 1, list(chosen), values) for i in delta.token_ids]
        elif params.logprobs is not None:
            delta.logprobs = [self._logprobs(i, params.logprobs) for i in delta.token_ids]
        if is_first:
            delta.num_cached = self.num_cached
            if params.prompt_logprobs is not None:
                scored = [self._logprobs(i, params.prompt_logprobs) for i in request.prompt[1:]]
                delta.prompt_logprobs = [None, *scored]

    def _logprobs(self, token: int, k: int) -> TokenLogprobs:
        size = self.codec.vocab_size
        count = size if k < 0 else k
        ids = [(token + i) % size for i in range(count)]
        return TokenLogprobs(token, -0.25, 1, ids, [-0.25 - i for i in range(count)])

    def _record(self, request: EngineRequest, made: int) -> RequestRecord:
        now = time.monotonic()
        return RequestRecord(
            num_prompt=len(request.prompt),
            num_cached=self.num_cached,
            num_generated=made,
            arrival=request.arrival,
            queued=now,
            scheduled=now,
            first_token=now,
            finished=now,
        )

    def _emit(self, delta: TokenDelta) -> None:
        if not self._is_dead:
            stats = EngineStats(running=len(self._running), steps=self.steps, step_tokens=[1])
            self._out.put_nowait(Outputs(deltas=[delta], stats=stats))


def random_groups(seed: int) -> Callable[[], int]:
    rng = random.Random(seed)
    return lambda: rng.randint(1, 4)
