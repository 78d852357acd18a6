"""KV events of an engine: the log that the cache writes, and the publisher that sends it.

Owns when events leave (at the end of a turn, one batch) and what happens when the publisher cannot keep up:
events are dropped, and the next batch says all that is true. Knows no scheduling.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Protocol

import msgspec

from octavo.core.kv.events import EventBatch, EventLog

if TYPE_CHECKING:
    from octavo.config.kv_events import KVEventsPlan
    from octavo.core.kv.cache import KVCache
    from octavo.wire.layout import KVLayout

logger = logging.getLogger(__name__)

RANK = 0  # there is one replica


class Sink(Protocol):
    """Where batches go: `wire.publish.Publisher`, or a fake in tests."""

    @property
    def has_room(self) -> bool: ...

    def put(self, item: EventBatch, /) -> None: ...

    def close(self) -> None: ...


class KVEvents:
    """`log` is the cache's to write. A new engine holds nothing, and says so first."""

    def __init__(self, layout: KVLayout, sink: Sink) -> None:
        self.log = EventLog(layout.block_size, [group.window for group in layout.groups])
        self.log.cleared()
        self._sink = sink
        self._is_behind = False

    def flush(self, cache: KVCache) -> None:
        """Send what has happened, if anything has."""
        log = self.log
        if not len(log):
            return
        if not self._sink.has_room:
            log.take()
            if not self._is_behind:
                self._is_behind = True
                logger.warning(
                    "KV events come faster than they are sent: subscribers will get all blocks anew"
                )
            return
        if self._is_behind:
            self._is_behind = False
            log.restate(cache.held())
        self._sink.put(EventBatch(time.time(), log.take(), RANK))

    def close(self) -> None:
        self._sink.close()


def open_kv_events(plan: KVEventsPlan, layout: KVLayout) -> KVEvents | None:
    """None, and no socket, where they are off. Raises ConfigError when an address cannot be bound."""
    if not plan.is_on:
        return None
    from octavo.wire.publish import Publisher

    return KVEvents(layout, Publisher(plan, msgspec.msgpack.Encoder().encode))
