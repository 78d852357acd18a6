"""The engine as the API sees it: requests in, deltas out, and no token lost when the engine dies (law 4).

Owns the tokens of every running request. When an engine process dies (`on_engine_down`) and another
comes (`on_engine_up`), unfinished requests are added again with what was already sent as a forced
prefix; law 1 makes the rest identical. A request that was in an engine at two deaths and got no token
between them ends with one ERROR delta, and so does one that saw MAX_CRASHES; the others live.
Knows no HTTP, no text, and not how an engine is started.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from octavo.errors import EngineDead
from octavo.wire.messages import (
    Abort,
    Add,
    Call,
    EngineRequest,
    EngineStats,
    Failed,
    FinishReason,
    FromEngine,
    Outputs,
    Ready,
    Reply,
    RequestRecord,
    ToEngine,
    TokenDelta,
)

log = logging.getLogger("octavo.api")

MAX_CRASHES_STUCK = 2  # without a token in between: it may be what kills engines
MAX_CRASHES = 8  # tokens or not: none may take down engines without end
OnEnd = Callable[[str, RequestRecord | None], None]

#: Counters of EngineStats that are added up over engines.
_COUNTERS = (
    "prefix_queries prefix_hits preemptions recomputed_tokens grammars_compiled grammars_failed "
    "grammar_compile_us grammar_masks grammar_mask_us"
).split()


class Endpoint(Protocol):
    """A line to one engine process: `wire.sockets.ClientEndpoint`, or a fake in tests.

    `send` queues and returns at once; order is kept. Whoever made the endpoint closes it.
    """

    def send(self, message: ToEngine, /) -> object: ...

    def __aiter__(self) -> AsyncIterator[FromEngine]: ...


@dataclass(slots=True)
class _Live:
    """A request between `submit` and its final delta."""

    request: EngineRequest
    tokens: list[int] = field(default_factory=list)
    deltas: deque[TokenDelta] = field(default_factory=deque)
    waiter: asyncio.Future[None] | None = None  # of the consumer, while it has nothing to take
    is_held: bool = False  # its turn among the choices of a large request is still to come
    is_sent: bool = False  # an engine has it
    is_left: bool = False  # the client is gone; only the record is awaited
    has_prompt_logprobs: bool = False
    has_cached: bool = False
    is_over: bool = False
    num_before: int = 0  # tokens at the last death of an engine that had it
    num_stuck: int = 0  # deaths in a row without a token between them

    def wake(self) -> None:
        """The consumer has something to take."""
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class EngineClient:
    """Requests of one API process. All methods belong to one event loop.

    `progress` gives (steps done, work pending) of the engine, for /health. `on_end` is called once per
    request, with its record (None when an engine died with it).
    """

    def __init__(
        self, *, progress: Callable[[], tuple[int, bool]] | None = None, on_end: OnEnd | None = None
    ) -> None:
        self.ready: Ready | None = None
        self.failed: Failed | None = None
        self.stats = EngineStats()
        self.step_tokens: deque[int] = deque(maxlen=100_000)
        self.restarts = 0
        self._progress = progress
        self.on_end = on_end
        self._live: dict[str, _Live] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._next_call = 0
        self._endpoint: Endpoint | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._past = EngineStats()  # counters of engines that are gone
        self._is_closed = False

    # ---- state ----------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self._endpoint is not None

    @property
    def num_unfinished(self) -> int:
        return sum(not r.is_left for r in self._live.values())

    @property
    def num_ending(self) -> int:
        """Requests whose client is served, and whose record is still to come."""
        return sum(r.is_left for r in self._live.values())

    def owns(self, request_id: str) -> bool:
        """Whether `on_end` is still to come for a request."""
        return request_id in self._live

    @property
    def num_prefill_tokens(self) -> int:
        """Prompt tokens of requests that have no first token yet."""
        return sum(len(r.request.prompt) for r in self._live.values() if not r.tokens and not r.is_left)

    def progress(self) -> tuple[int, bool]:
        """(steps done, work pending): what was submitted is pending even if the engine has not seen it."""
        steps, pending = self._progress() if self._progress is not None else (self.stats.steps, False)
        return steps, pending or any(r.is_sent for r in self._live.values())

    def total(self, counter: str) -> int:
        """A counter of EngineStats over all engines since the API process started."""
        return int(getattr(self._past, counter)) + int(getattr(self.stats, counter))

    # ---- requests -------------------------------------------------------------------------------

    async def submit(
        self, request: EngineRequest, window: asyncio.Semaphore | None = None
    ) -> AsyncGenerator[TokenDelta, None]:
        """Deltas of one request; the last has `finish`. Closing the generator aborts what still runs.

        Waits while the engine is down, and first for a place in `window`: it counts as unfinished
        from now on, but the engine gets it then. Raises EngineDead when no engine will come back.
        """
        if self._is_closed:
            raise EngineDead("the engine is gone and was not restarted")
        if request.id in self._live:
            raise ValueError(f"internal request id {request.id!r} is in use")
        live = self._live[request.id] = _Live(request, is_held=window is not None)
        try:
            if window is not None:
                await window.acquire()
                live.is_held = False
            self._send_request(live)
            while True:
                while live.deltas:
                    delta = live.deltas.popleft()
                    yield delta
                    if delta.finish is not None:
                        return
                live.waiter = asyncio.get_running_loop().create_future()
                await live.waiter
        finally:
            self._leave(live)
            if window is not None and not live.is_held:
                window.release()

    def _send_request(self, live: _Live) -> None:
        if self._endpoint is None:
            return
        live.is_sent = True
        request = live.request
        if live.tokens:
            request = msgspec.structs.replace(request, forced=[*request.forced, *live.tokens])
        self._endpoint.send(Add(request))

    def _leave(self, live: _Live) -> None:
        """The consumer has gone: abort what runs; an engine that has the request still owes its record."""
        if live.is_over:
            return
        live.is_left = True
        live.deltas.clear()
        if live.is_sent and self._endpoint is not None:
            self._endpoint.send(Abort([live.request.id]))
        else:
            self._end(live, None)

    def _end(self, live: _Live, record: RequestRecord | None) -> None:
        live.is_over = True
        self._live.pop(live.request.id, None)
        if self.on_end is not None:
            self.on_end(live.request.id, record)

    def _take(self, delta: TokenDelta) -> None:
        live = self._live.get(delta.id)
        if live is None:
            return
        if not live.is_left:
            live.tokens += delta.token_ids
            if live.has_prompt_logprobs:
                delta.prompt_logprobs = None
            live.has_prompt_logprobs |= delta.prompt_logprobs is not None
            if live.has_cached:
                delta.num_cached = None
            live.has_cached |= delta.num_cached is not None
            live.deltas.append(delta)
            live.wake()
        if delta.finish is not None:
            self._end(live, delta.record)

    def _fail(self, live: _Live, error: str, *, is_gone: bool = False) -> None:
        if not live.is_left:
            delta = TokenDelta(id=live.request.id, finish=FinishReason.ERROR, error=error, is_gone=is_gone)
            live.deltas.append(delta)
            live.wake()
        self._end(live, None)

    # ---- control calls --------------------------------------------------------------------------

    async def call(self, method: str, *args: int | float | str | bool | None, timeout_s: float = 30.0) -> Any:
        """Runs a control method of the engine. Raises EngineDead when there is none, RuntimeError when it fails."""
        if self._endpoint is None:
            raise EngineDead("the engine is down")
        self._next_call += 1
        call_id = self._next_call
        future = self._calls[call_id] = asyncio.get_running_loop().create_future()
        self._endpoint.send(Call(call_id, method, list(args)))
        try:
            return await asyncio.wait_for(future, timeout_s)
        finally:
            self._calls.pop(call_id, None)

    def _answer(self, reply: Reply) -> None:
        future = self._calls.get(reply.call_id)
        if future is None or future.done():
            return
        if reply.error is not None:
            future.set_exception(RuntimeError(reply.error))
        else:
            future.set_result(None if reply.result is None else msgspec.msgpack.decode(reply.result))

    # ---- engines come and go --------------------------------------------------------------------

    def on_engine_up(self, endpoint: Endpoint) -> None:
        """A (new) engine listens: everything unfinished is added to it."""
        if self._endpoint is not None:
            self.on_engine_down()
        self._endpoint = endpoint
        self.failed = None
        self._receiving = asyncio.get_running_loop().create_task(self._receive(endpoint))
        for live in list(self._live.values()):
            if not live.is_held:
                self._send_request(live)

    def on_engine_down(self) -> None:
        """The engine process is gone. Streams wait for the next one; see `_survive` for those that do not."""
        if self._endpoint is None:
            return
        self._endpoint = None
        self.ready = None
        self.restarts += 1
        self._stop_receiving()
        self._keep_counters()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(EngineDead("the engine ended during the call"))
        for live in list(self._live.values()):
            if live.is_left:
                self._end(live, None)
            elif live.is_sent:
                self._survive(live)

    def _survive(self, live: _Live) -> None:
        live.is_sent = False
        crashes = live.request.crashes + 1
        has_moved = len(live.tokens) > live.num_before
        live.num_stuck = 1 if has_moved else live.num_stuck + 1
        live.num_before = len(live.tokens)
        if live.num_stuck >= MAX_CRASHES_STUCK:
            self._fail(
                live,
                f"the engine ended {live.num_stuck} times while it ran this request, and made no token of it "
                "between; it is not tried again",
            )
        elif crashes >= MAX_CRASHES:
            self._fail(
                live, f"the engine ended {crashes} times while it ran this request; it is not tried again"
            )
        else:
            live.request = msgspec.structs.replace(live.request, crashes=crashes)

    def close(self, error: str = "the engine is gone and was not restarted") -> None:
        """No engine will come any more: every request ends with an error, new ones are refused."""
        self._is_closed = True
        self._endpoint = None
        self._stop_receiving()
        for live in list(self._live.values()):
            self._fail(live, error, is_gone=True)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def _stop_receiving(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _keep_counters(self) -> None:
        for name in (*_COUNTERS, "steps"):
            setattr(self._past, name, getattr(self._past, name) + getattr(self.stats, name))
        self.stats = EngineStats()

    async def _receive(self, endpoint: Endpoint) -> None:
        async for message in endpoint:
            if isinstance(message, Outputs):
                if message.stats is not None:
                    self.stats = message.stats
                    self.step_tokens.extend(message.stats.step_tokens)
                for delta in message.deltas:
                    self._take(delta)
            elif isinstance(message, Reply):
                self._answer(message)
            elif isinstance(message, Ready):
                self.ready = message
            else:
                self.failed = message
                log.error("engine: %s%s", message.cause, f" ({message.fix})" if message.fix else "")
