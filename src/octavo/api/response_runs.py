"""Runs of responses: to the client while it listens, or in the background, where they outlive it.

Owns when a response is stored and how a background one is bounded, ended and cancelled. Knows no route.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from octavo.api.faults import error_body
from octavo.api.generation import Generation, engine_error
from octavo.api.response_store import EventLog, Item, ResponseStore, Stored, Turn
from octavo.api.text.pipeline import ChoiceEvent
from octavo.api.writers.responses import Event, ResponseWriter, event_frame, event_frames
from octavo.api.writers.shapes import usage_shape
from octavo.errors import InvalidRequest

log = logging.getLogger("octavo.api")

_NO_INTERVAL = 1 << 40
_RETRY_S = 5


class Run:
    """One response on its way. `keep` is where it goes when it has ended; None = nowhere."""

    def __init__(
        self,
        generation: Generation,
        writer: ResponseWriter,
        *,
        id: str,
        owner: str,
        sent: list[Item],
        parent: Turn | None,
        has_logprobs: bool,
        keep: ResponseStore | None,
    ) -> None:
        self.generation = generation
        self.writer = writer
        self._keep = keep
        self.stored = Stored(id, owner, sent, parent, has_logprobs=has_logprobs, snapshot=writer.snapshot)

    # ---- while the client listens ---------------------------------------------------------------

    async def whole(self) -> dict[str, object]:
        """The response; the events that a stream would have carried are made and added up."""
        self.writer.opening()
        async with aclosing(self.generation.events(interval=_NO_INTERVAL)) as events:
            async for event in events:
                if event.error is not None:
                    raise engine_error(event)
                for _ in self.writer.chunks(event):
                    pass
        self._finish()
        return self.writer.snapshot()

    async def frames(self, events: AsyncGenerator[ChoiceEvent, None]) -> AsyncGenerator[bytes, None]:
        """The stream. It ends with completed, incomplete or failed, whatever happens."""
        try:
            yield event_frames(self.writer.opening())
            async for event in events:
                if event.error is not None:
                    raise engine_error(event)
                if chunks := list(self.writer.chunks(event)):
                    yield event_frames(chunks)
            yield event_frames(self._finish())
        except Exception as error:
            yield event_frames(self._fail(error))

    def _finish(self) -> list[Event]:
        """The last events. Stored before anybody hears them, so that they can be acted upon at once."""
        events = self.writer.usage(usage_shape(self.generation.usage))
        self._store()
        return events

    def _fail(self, error: Exception) -> list[Event]:
        if self.writer.is_ended:
            return []
        message = error_body(error)[1]["error"]["message"]
        log.warning("the response %s ended with an error: %s", self.stored.id, message)
        events = self.writer.fail("server_error", message)
        self._store()
        return events

    def _store(self) -> None:
        writer, stored = self.writer, self.stored
        stored.status = writer.status
        if self._keep is not None and not stored.is_background:
            stored.end(writer.status, writer.output, writer.snapshot())
            self._keep.add(stored)

    # ---- in the background ----------------------------------------------------------------------

    def start(self) -> EventLog:
        """Starts the work; it goes on until it ends or is cancelled. Raises InvalidRequest (503, 400)."""
        store, stored = self._keep, self.stored
        assert store is not None
        opening = list(map(event_frame, self.writer.opening(queued=True)))
        # Three more events of its life repeat the request as these do.
        stored.pinned = 2 * sum(map(len, opening)) + len(msgspec.json.encode(stored.sent))
        _check_room(store, stored.pinned)
        log = stored.log = EventLog()
        log.append(opening)
        stored.status = "queued"
        store.add(stored)
        task = asyncio.create_task(self._work(log, store))

        async def cancel() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if not log.is_closed:  # cancelled before it had begun
                self._cancelled(log)
                self._end(log, store)

        stored.cancel = cancel
        return log

    async def _work(self, log: EventLog, store: ResponseStore) -> None:
        try:
            async with aclosing(self.generation.events()) as events:
                async for event in events:
                    if event.error is not None:
                        raise engine_error(event)
                    if self.writer.status == "queued":
                        self._log(log, self.writer.starting())
                        self.stored.status = self.writer.status
                    self._log(log, list(self.writer.chunks(event)))
            self._log(log, self._finish())
        except asyncio.CancelledError:
            self._cancelled(log)
        except Exception as error:
            self._log(log, self._fail(error))
        finally:
            self._end(log, store)

    def _cancelled(self, log: EventLog) -> None:
        if not self.writer.is_ended:
            self._log(log, self.writer.cancel(usage_shape(self.generation.usage)))

    def _end(self, log: EventLog, store: ResponseStore) -> None:
        self.stored.end(self.writer.status, self.writer.output, self.writer.snapshot())
        log.close()
        store.settle(self.stored)

    @staticmethod
    def _log(log: EventLog, events: list[Event]) -> None:
        if events:
            log.append([event_frame(event) for event in events])


def _check_room(store: ResponseStore, pinned: int) -> None:
    running = store.running
    if store.max_background == 0:
        raise InvalidRequest(
            "background true is refused here: --max-background-responses is 0",
            param="background",
            fix="stream instead",
        )
    if pinned > store.max_bytes:
        raise InvalidRequest(
            f"in the background this request would take {pinned:,} bytes of the store; it has {store.max_bytes:,} "
            "(--response-store-bytes)",
            param="background",
        )
    taken = sum(s.pinned for s in running)
    if len(running) >= store.max_background or taken + pinned > store.max_bytes:
        raise InvalidRequest(
            f"{len(running)} responses run in the background and hold {taken:,} bytes; allowed are "
            f"{store.max_background} (--max-background-responses) and {store.max_bytes:,} bytes "
            "(--response-store-bytes)",
            param="background",
            status=503,
            kind="ServiceUnavailableError",
            retry_after_s=_RETRY_S,
        )
