"""Responses that are kept: for retrieval, for previous_response_id, and those that run in the background.

Bounded by count, bytes and age; the oldest go first, running ones never. One API key never sees what
belongs to another. Knows items and responses as JSON only, no model and no generation.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from octavo.config.plan import ServerPlan
from octavo.errors import InvalidRequest

Item = dict[str, Any]
_OVERHEAD = 1_024  # bytes of a record beside its texts
_encode, _decode = msgspec.json.encode, msgspec.json.decode


class Turn:
    """Items of one exchange: what was sent, then what was answered. A chain of them is a conversation.

    Kept as JSON, shared by all responses that continue it, counted once.
    """

    __slots__ = ("data", "ids", "num_sent", "parent", "refs")

    def __init__(self, parent: Turn | None, sent: list[Item], answered: list[Item]) -> None:
        items = [*sent, *answered]
        self.parent = parent
        self.num_sent = len(sent)
        self.data: bytes = _encode(items)
        self.ids = tuple(item["id"] for item in items)
        self.refs = 0  # stored responses and turns that need it

    @property
    def items(self) -> list[Item]:
        found: list[Item] = _decode(self.data)
        return found

    def chain(self) -> Iterator[Turn]:
        """This turn and those before it, newest first."""
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.parent


def conversation(turn: Turn | None) -> list[Item]:
    """All items up to and with a turn, oldest first."""
    turns = [] if turn is None else list(turn.chain())
    return [item for t in reversed(turns) for item in t.items]


class EventLog:
    """Frames of a running response, as they come; any number of readers, each from where it wants.

    `frames[i]` is the event of sequence number i. Readers share the log, so a slow one costs nothing.
    """

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.num_bytes = 0
        self.is_closed = False
        self._changed = asyncio.Event()

    def append(self, frames: list[bytes]) -> None:
        self.frames += frames
        self.num_bytes += sum(map(len, frames))
        self._wake()

    def close(self) -> None:
        self.is_closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def read(self, start: int) -> AsyncGenerator[bytes, None]:
        """The frames from number `start` on, until the log is closed."""
        while True:
            changed = self._changed
            if start < len(self.frames):
                batch = self.frames[start:]
                start += len(batch)
                yield b"".join(batch)
            elif self.is_closed:
                return
            else:
                await changed.wait()


@dataclass(eq=False, slots=True)
class Stored:
    """One response. While it runs `snapshot` gives it as it is; when it has ended `data` and `turn` do.

    `log` is there for background responses only, `cancel` for those of them that run.
    """

    id: str
    owner: str
    sent: list[Item]
    parent: Turn | None
    status: str = "in_progress"
    has_logprobs: bool = False
    snapshot: Callable[[], dict[str, Any]] | None = None
    turn: Turn | None = None
    log: EventLog | None = None
    cancel: Callable[[], Awaitable[None]] | None = None
    pinned: int = 0  # bytes that a running one may take of the store
    born: float = 0.0
    num_bytes: int = 0
    data: bytes = field(default=b"", repr=False)

    @property
    def is_background(self) -> bool:
        return self.log is not None

    @property
    def is_running(self) -> bool:
        return self.log is not None and not self.log.is_closed

    @property
    def can_be_continued(self) -> bool:
        return self.turn is not None and self.status in ("completed", "incomplete")

    def body(self) -> bytes:
        """The response as JSON."""
        return self.data if self.snapshot is None else _encode(self.snapshot())

    def context(self) -> list[Item]:
        """The items that it was made of: those of the turns before, and what was sent."""
        if self.turn is None:
            return [*conversation(self.parent), *self.sent]
        return [*conversation(self.turn.parent), *self.turn.items[: self.turn.num_sent]]

    def end(self, status: str, answered: list[Item], response: dict[str, Any]) -> None:
        """From now on it is JSON only."""
        self.status = status
        self.turn = Turn(self.parent, self.sent, list(map(_without_logprobs, answered)))
        self.data = _encode(response)
        self.num_bytes = _OVERHEAD + len(self.data) + (self.log.num_bytes if self.log is not None else 0)
        self.sent, self.parent, self.snapshot, self.cancel = [], None, None, None


def _without_logprobs(item: Item) -> Item:
    """As part of a conversation: logprobs are the response's only, and large."""
    if item["type"] != "message":
        return item
    return {**item, "content": [{**part, "logprobs": []} for part in item["content"]]}


class ResponseStore:
    """`max_responses` 0 = nothing is kept. `off` says why nothing is, when that is not the reason."""

    def __init__(
        self,
        *,
        max_responses: int,
        max_bytes: int,
        max_age_s: float,
        max_background: int,
        off: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_bytes = max_bytes
        self.max_background = max_background
        self._max_responses = max_responses
        self._max_age_s = max_age_s
        self._clock = clock
        self.off = off or ("--response-store-size is 0" if max_responses == 0 else None)
        self._stored: dict[tuple[str, str], Stored] = {}  # oldest first
        self._holders: dict[tuple[str, str], list[Turn]] = {}  # of items, by owner and item id
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def running(self) -> list[Stored]:
        return [s for s in self._stored.values() if s.is_running]

    # ---- looking up -----------------------------------------------------------------------------

    def get(self, owner: str, response_id: str, *, param: str = "response_id") -> Stored:
        """Raises InvalidRequest (404) for what is not there: never was, is gone, or is another key's."""
        if self.off is not None:
            raise InvalidRequest(
                f"no response is stored here: {self.off}", param=param, status=404, kind="NotFoundError"
            )
        self._expire()
        found = self._stored.get((owner, response_id))
        if found is None:
            raise InvalidRequest(
                f"there is no response {response_id[:256]!r}: it was never stored for this API key, was deleted, or "
                f"had to go (kept are {self._max_responses:,} responses, {self.max_bytes:,} bytes, for "
                f"{self._max_age_s:,.0f} s)",
                param=param,
                status=404,
                kind="NotFoundError",
            )
        return found

    def is_taken(self, owner: str, response_id: str) -> bool:
        return (owner, response_id) in self._stored

    def item(self, owner: str, item_id: str, place: str) -> Item:
        """The item that an item_reference names. Raises InvalidRequest (404)."""
        self._expire()
        turns = self._holders.get((owner, item_id))
        if not turns:
            reason = self.off or "it was never stored for this API key, or had to go"
            raise InvalidRequest(
                f"{place}: there is no item {item_id[:256]!r}: {reason}",
                param=f"{place}.id",
                status=404,
                kind="NotFoundError",
            )
        return next(item for item in turns[-1].items if item["id"] == item_id)

    # ---- coming and going -----------------------------------------------------------------------

    def add(self, stored: Stored) -> None:
        """Keeps a response that has ended, or one that runs in the background.

        Of two that a client gave one id at the same time the later one stays.
        """
        key = (stored.owner, stored.id)
        if (old := self._stored.get(key)) is not None:
            if old.is_running:
                return
            self.remove(old)
        stored.born = self._clock()
        self._stored[key] = stored
        if not stored.is_running:
            self._weigh(stored)
        self._expire()
        self._shrink(stored)

    def settle(self, stored: Stored) -> None:
        """A background response has ended: from now on it counts and may go."""
        if self._stored.get((stored.owner, stored.id)) is stored:
            self._weigh(stored)
            self._shrink(stored)

    def remove(self, stored: Stored) -> None:
        """Turns that other responses continue stay as long as these do."""
        if self._stored.get((stored.owner, stored.id)) is not stored:
            return
        del self._stored[stored.owner, stored.id]
        if stored.turn is not None:
            self.num_bytes -= stored.num_bytes
            self._release(stored.turn, stored.owner)

    def _weigh(self, stored: Stored) -> None:
        self.num_bytes += stored.num_bytes
        if stored.turn is not None:
            self._retain(stored.turn, stored.owner)

    def _retain(self, turn: Turn, owner: str) -> None:
        for t in turn.chain():
            t.refs += 1
            if t.refs > 1:
                return
            self.num_bytes += len(t.data)
            for item_id in t.ids:
                self._holders.setdefault((owner, item_id), []).append(t)

    def _release(self, turn: Turn, owner: str) -> None:
        for t in turn.chain():
            t.refs -= 1
            if t.refs:
                return
            self.num_bytes -= len(t.data)
            for item_id in t.ids:
                turns = self._holders[owner, item_id]
                turns.remove(t)
                if not turns:
                    del self._holders[owner, item_id]

    def _expire(self) -> None:
        oldest_born = self._clock() - self._max_age_s
        old = []
        for stored in self._stored.values():
            if stored.born >= oldest_born:
                break
            if not stored.is_running:
                old.append(stored)
        for stored in old:
            self.remove(stored)

    def _shrink(self, newest: Stored) -> None:
        """Within the bounds again; the newest stays, so that an answer can always be continued."""
        if len(self._stored) <= self._max_responses and self.num_bytes <= self.max_bytes:
            return
        for stored in list(self._stored.values()):
            if len(self._stored) <= self._max_responses and self.num_bytes <= self.max_bytes:
                return
            if stored is not newest and not stored.is_running:
                self.remove(stored)

    async def close(self) -> None:
        """Ends what runs in the background."""
        for stored in self.running:
            if stored.cancel is not None:
                await stored.cancel()


def store_of(server: ServerPlan) -> ResponseStore:
    """Several API processes have no memory in common: then nothing is stored, since another may be asked for it."""
    count = server.api_server_count
    return ResponseStore(
        max_responses=server.response_store_size,
        max_bytes=server.response_store_bytes,
        max_age_s=server.response_store_seconds,
        max_background=server.max_background_responses,
        off=f"--api-server-count is {count}, and a response is kept in one process" if count > 1 else None,
    )
