"""The life of an engine process after it is ready: messages in, steps, deltas out.

Owns the order of things in one turn (messages first, so that an abort acts before the result that
waits; then steps; then one message with all deltas) and when to sleep. Does not know what launched
it, and drains nobody: the API stops sending and tells it to stop.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Sequence

from octavo.core.engine import Engine
from octavo.errors import OctavoError, UserError
from octavo.wire.addresses import FORGET_LINE
from octavo.wire.codec import encode_value
from octavo.wire.heartbeat import Heartbeat
from octavo.wire.messages import (
    Abort,
    Add,
    Call,
    EngineStats,
    Failed,
    FromEngine,
    Outputs,
    Ready,
    Reply,
    ToEngine,
    TokenDelta,
)
from octavo.wire.sockets import EngineEndpoint

logger = logging.getLogger(__name__)

STATS_EVERY_S = 0.5
#: A loop turns at least this often: for the heartbeat, the self-check, and gates that open by themselves.
TICK_S = 0.5
#: Requests are live but no step is in flight: only a gate can be the reason, and it cannot wake us.
GATED_TICK_S = 0.02


def run_engine(
    engine: Engine,
    endpoints: EngineEndpoint | Sequence[EngineEndpoint],
    ready: Ready,
    stop_fd: int | None = None,
    *,
    death_fd: int | None = None,
    heartbeat: Heartbeat | None = None,
) -> int:
    """Serve until `stop_fd` or `death_fd` becomes readable (closed counts). Returns the exit code.

    One endpoint for each API process; whoever added a request gets its deltas.

    On stop every live request gets its ABORT delta first; on death (the parent is gone, nobody reads)
    the loop just ends. A fault of the worker or of the engine is sent as `Failed`; then the code is 1.
    """
    lines = [endpoints] if isinstance(endpoints, EngineEndpoint) else list(endpoints)
    loop = _Loop(engine, lines, heartbeat)
    try:
        loop.tell_all(ready)
        return loop.run(stop_fd, death_fd)
    except Exception as error:
        logger.exception("the engine ends")
        cause = str(error) if isinstance(error, OctavoError) else f"{type(error).__name__}: {error}"
        fix = (error.fix or "") if isinstance(error, UserError) else ""
        loop.tell_all(Failed(cause, fix))
        return 1


class _Loop:
    def __init__(self, engine: Engine, lines: list[EngineEndpoint], heartbeat: Heartbeat | None) -> None:
        self._engine = engine
        self._lines = lines
        self._owners: dict[str, int] = {}  # live request -> index of its line; only with several lines
        self._heartbeat = heartbeat
        self._stats_at = 0.0  # when the last stats were sent
        self._was_idle = False

    def run(self, stop_fd: int | None, death_fd: int | None) -> int:
        engine, lines = self._engine, self._lines
        poller = select.poll()
        for fd in (*(line.fd for line in lines), engine.wake_fd, stop_fd, death_fd):
            if fd is not None:
                poller.register(fd, select.POLLIN)
        while True:
            for i, line in enumerate(lines):
                for message in line.recv():
                    self._handle(message, i)
            # Before the first step of the turn, so that a step that never ends shows as work.
            self._beat()
            self._send(engine.pump())
            self._beat()
            # The descriptor is edge-triggered: whatever came since `recv` is only seen by asking.
            timeout_s = 0.0 if any(line.has_more() for line in lines) else self._sleep_s()
            for fd, _ in poller.poll(timeout_s * 1000):
                if fd == death_fd:
                    return 0
                if fd == stop_fd:
                    engine.abort_all()
                    self._send(engine.pump())
                    return 0

    def _beat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.beat(self._engine.steps_done, has_work=self._engine.has_work())

    def _sleep_s(self) -> float:
        engine = self._engine
        if engine.has_work() and not engine.num_in_flight:
            return GATED_TICK_S
        return TICK_S

    def _send(self, deltas: list[TokenDelta]) -> None:
        """One message per turn; stats ride on it at most every half second, and once on becoming idle."""
        engine, now = self._engine, time.monotonic()
        is_idle = not engine.has_work()
        is_due = now - self._stats_at >= STATS_EVERY_S and not (is_idle and self._was_idle)
        if is_due or (is_idle and not self._was_idle):
            self._stats_at = now
            self._send_parts(deltas, engine.stats(drain=True))
        elif deltas:
            self._send_parts(deltas, None)
        self._was_idle = is_idle

    def _send_parts(self, deltas: list[TokenDelta], stats: EngineStats | None) -> None:
        """To each line what it owns; stats to all."""
        if len(self._lines) == 1:
            self._lines[0].send(Outputs(deltas=deltas, stats=stats))
            return
        parts: list[list[TokenDelta]] = [[] for _ in self._lines]
        for delta in deltas:
            owner = self._owners.get(delta.id) if delta.finish is None else self._owners.pop(delta.id, None)
            if owner is not None:  # None: its API process is gone
                parts[owner].append(delta)
        for line, part in zip(self._lines, parts, strict=True):
            if part or stats is not None:
                line.send(Outputs(deltas=part, stats=stats))

    def tell_all(self, message: FromEngine) -> None:
        for line in self._lines:
            line.send(message)

    def _handle(self, message: ToEngine, line: int) -> None:
        engine = self._engine
        if isinstance(message, Add):
            try:
                engine.add(message.request)
            except UserError as error:
                logger.error("refused a request: %s", error)
            else:
                if len(self._lines) > 1:
                    self._owners[message.request.id] = line
        elif isinstance(message, Abort):
            engine.abort(message.ids)
        elif isinstance(message, Call):
            if message.method == FORGET_LINE:
                self._forget(int(message.args[0] or 0))
                self._lines[line].send(Reply(call_id=message.call_id))
            else:
                self._lines[line].send(self._answer(message))

    def _forget(self, line: int) -> None:
        """An API process is gone: nobody reads what it asked for."""
        gone = [request_id for request_id, owner in self._owners.items() if owner == line]
        for request_id in gone:
            del self._owners[request_id]
        self._engine.abort(gone)
        self._lines[line].forget()

    def _answer(self, call: Call) -> Reply:
        try:
            return Reply(call_id=call.call_id, result=encode_value(self._engine.call(call.method, call.args)))
        except Exception as error:  # a control call never ends the engine
            logger.exception("call %s failed", call.method)
            return Reply(call_id=call.call_id, error=str(error))
