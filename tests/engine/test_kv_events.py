"""KV events: folded in order they are the prefix cache's index, at every moment, over a real socket too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import zmq
from tests.engine.harness import ask, make_engine, run
from tests.engine.worlds import World, run_worlds
from tests.fakes.glass_worker import make_layout

from octavo.config.kv_events import KVEventsPlan
from octavo.core.engine import Engine
from octavo.core.kv.cache import KVCache
from octavo.core.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, KVEvent, name_of
from octavo.core.kv.prefix import Node
from octavo.core.kv_events import KVEvents, open_kv_events
from octavo.errors import ConfigError
from octavo.wire.publish import END, Publisher

LAYOUT = make_layout((0,), 4)
ANY_PORT = "tcp://127.0.0.1:*"
PATIENCE_MS = 20_000
Held = set[tuple[int, int]]


class BatchIn(msgspec.Struct, array_like=True):
    """What a subscriber decodes."""

    ts: float
    events: list[KVEvent]
    data_parallel_rank: int | None = None


decode = msgspec.msgpack.Decoder(BatchIn).decode
encode = msgspec.msgpack.Encoder().encode


def fold(held: Held, events: list[KVEvent]) -> None:
    """What a subscriber believes: (hash, group) of every block. Nothing is stored or removed twice."""
    for event in events:
        if isinstance(event, AllBlocksCleared):
            held.clear()
            continue
        assert event.group_idx is not None
        named = {(block, event.group_idx) for block in event.block_hashes}
        assert len(named) == len(event.block_hashes)
        if isinstance(event, BlockStored):
            assert not named & held
            assert len(event.token_ids) == event.block_size * len(event.block_hashes)
            held |= named
        else:
            assert named <= held
            held -= named


def truth(cache: KVCache) -> Held:
    """By the pool: what each block holds."""
    found = set()
    for block in range(cache.pool.num_blocks):
        node = cache.pool.content(block)
        if isinstance(node, Node):
            found.add((name_of(node), node.blocks.index(block)))
    return found


def flush(engine: Engine) -> None:
    """What a call after the last `pump` has done leaves with the next one: here at once."""
    assert engine._kv_events is not None
    engine._kv_events.flush(engine.cache)


class Kept:
    """A sink that keeps batches; `has_room` as it is told."""

    def __init__(self) -> None:
        self.batches: list[EventBatch] = []
        self.has_room = True

    def put(self, item: EventBatch) -> None:
        assert self.has_room
        self.batches.append(item)

    def close(self) -> None:
        pass


# ---- the log -------------------------------------------------------------------------------------


class Watched(World):
    """A world whose events are folded after every turn."""

    _sink: Kept
    _held: Held
    num_removed = 0

    def _engine_options(self) -> dict[str, Any]:
        self._sink, self._held = Kept(), set()
        return {"kv_events": KVEvents(make_layout(self.windows, self.block_size), self._sink)}

    def turn(self) -> None:
        super().turn()
        flush(self.engine)
        for batch in self._sink.batches:
            fold(self._held, batch.events)
            Watched.num_removed += sum(isinstance(event, BlockRemoved) for event in batch.events)
        self._sink.batches.clear()
        assert self._held == truth(self.engine.cache)


def test_events_folded_are_the_index_after_every_turn_of_every_world() -> None:
    counts = run_worlds(0, 400, world=Watched)
    assert counts.restarts > 10 and counts.preemptions > 40
    assert Watched.num_removed > 200, "blocks are evicted"


class Slow(Watched):
    """The publisher has no room at times."""

    def turn(self) -> None:
        self._sink.has_room = self.rng.random() < 0.5
        World.turn(self)
        flush(self.engine)
        if not self._sink.has_room:
            assert not self._sink.batches
            return
        for batch in self._sink.batches:
            fold(self._held, batch.events)
        caught_up = bool(self._sink.batches)
        self._sink.batches.clear()
        if caught_up:
            assert self._held == truth(self.engine.cache)


def test_who_missed_events_gets_all_that_is_true() -> None:
    run_worlds(1000, 200, world=Slow)


def test_neighbouring_blocks_are_one_event_that_names_its_parent() -> None:
    sink = Kept()
    engine, _ = make_engine(engine_options={"kv_events": KVEvents(LAYOUT, sink)})
    run(engine, [ask("a", range(2, 15), 1)])
    run(engine, [ask("b", [*range(2, 15), 30, 31, 32, 33], 1)])
    events = [event for batch in sink.batches for event in batch.events]
    assert isinstance(events[0], AllBlocksCleared)
    first, second = (e for e in events if isinstance(e, BlockStored))
    assert first.token_ids == list(range(2, 14)) and first.parent_block_hash is None
    assert second.parent_block_hash == first.block_hashes[-1] and second.token_ids == [14, 30, 31, 32]
    assert (first.kv_cache_spec_kind, first.kv_cache_spec_sliding_window) == ("full_attention", None)
    assert engine.reset_prefix_cache()
    engine.pump()
    assert [type(e) for e in sink.batches[-1].events] == [AllBlocksCleared]


def test_windows_have_groups_of_their_own() -> None:
    sink = Kept()
    layout = make_layout((0, 6), 4)
    engine, _ = make_engine(windows=(0, 6), engine_options={"kv_events": KVEvents(layout, sink)})
    run(engine, [ask("a", range(2, 20), 1)])
    stored = [e for batch in sink.batches for e in batch.events if isinstance(e, BlockStored)]
    kinds = {(e.group_idx, e.kv_cache_spec_kind, e.kv_cache_spec_sliding_window) for e in stored}
    assert kinds == {(0, "full_attention", None), (1, "sliding_window", 6)}


def test_salts_of_tenants_are_not_told() -> None:
    sink = Kept()
    engine, _ = make_engine(engine_options={"kv_events": KVEvents(LAYOUT, sink)})
    run(engine, [ask("a", range(2, 12), 1, salt="key:s3cret"), ask("b", range(2, 12), 1, salt="key:other")])
    run(engine, [ask("c", range(20, 30), 1)])
    stored = [e for batch in sink.batches for e in batch.events if isinstance(e, BlockStored)]
    assert b"s3cret" not in encode([b.events for b in sink.batches])
    extras = [e.extra_keys for e in stored]
    assert extras[0] is not None and extras[0] != extras[1] and extras[2] is None
    assert [tag for tag, _ in extras[0][0] or ()] == ["salt"] and extras[0][1] is None


# ---- over a socket -------------------------------------------------------------------------------


class Follower:
    """A subscriber that asks for what it missed."""

    def __init__(self, publisher: Publisher[EventBatch], topic: str = "") -> None:
        self.context = zmq.Context()
        self.live: zmq.Socket[bytes] = self.context.socket(zmq.SUB)
        self.live.setsockopt(zmq.SUBSCRIBE, topic.encode())
        self.live.connect(publisher.endpoint)
        self.past: zmq.Socket[bytes] | None = None
        if publisher.replay_endpoint:
            self.past = self.context.socket(zmq.DEALER)
            self.past.connect(publisher.replay_endpoint)
        self.held: Held = set()
        self.next = 0
        self.num_live = self.num_replayed = 0

    def take(self, number: bytes, payload: bytes) -> None:
        sequence = int.from_bytes(number, "big")
        if sequence < self.next:
            return
        assert sequence == self.next, "a message is missing"
        fold(self.held, decode(payload).events)
        self.next += 1

    def replay(self, first: int) -> list[int]:
        """Asks for everything from `first` on; the numbers that came."""
        assert self.past is not None
        self.past.send_multipart([b"", first.to_bytes(8, "big")])
        numbers: list[int] = []
        while True:
            assert self.past.poll(PATIENCE_MS), "no answer"
            empty, number, payload = self.past.recv_multipart()
            assert empty == b""
            if number == END:
                assert payload == b""
                return numbers
            numbers.append(int.from_bytes(number, "big"))
            self.num_replayed += 1
            self.take(number, payload)

    def catch_up(self, end: int) -> None:
        """Until `end` messages are known."""
        while self.next < end:
            if self.live.poll(50 if self.past is not None else PATIENCE_MS):
                _, number, payload = self.live.recv_multipart()
                if int.from_bytes(number, "big") > self.next:
                    self.replay(self.next)
                else:
                    self.num_live += 1
                self.take(number, payload)
            else:
                self.replay(self.next)  # sent before the subscription had arrived

    def close(self) -> None:
        self.context.destroy(0)


class Counted(Publisher[EventBatch]):
    num_put = 0

    def put(self, item: EventBatch) -> None:
        self.num_put += 1
        super().put(item)


def publisher_of(**changes: Any) -> Counted:
    plan = KVEventsPlan(publisher="zmq", endpoint=ANY_PORT, replay_endpoint=ANY_PORT)
    return Counted(msgspec.structs.replace(plan, **changes), encode)


@contextmanager
def published(**changes: Any) -> Iterator[tuple[Engine, Counted]]:
    publisher = publisher_of(**changes)
    engine, _ = make_engine(engine_options={"kv_events": KVEvents(LAYOUT, publisher)}, num_blocks=12)
    try:
        yield engine, publisher
    finally:
        engine.close()


class Followed(World):
    """A world with a real subscriber, which catches up after every turn."""

    publisher: Counted | None = None
    follower: Follower | None = None
    num_live = 0

    def _engine_options(self) -> dict[str, Any]:
        self.end()
        self.publisher = publisher_of(topic="kv")
        self.follower = Follower(self.publisher, "kv")
        return {"kv_events": KVEvents(make_layout(self.windows, self.block_size), self.publisher)}

    def turn(self) -> None:
        super().turn()
        flush(self.engine)
        assert self.follower is not None and self.publisher is not None
        self.follower.catch_up(self.publisher.num_put)
        assert self.follower.held == truth(self.engine.cache)

    def run(self) -> Any:
        try:
            return super().run()
        finally:
            self.end()

    def end(self) -> None:
        if self.follower is not None and self.publisher is not None:
            Followed.num_live += self.follower.num_live
            self.publisher.close()
            self.follower.close()


def test_a_subscriber_knows_the_index_at_every_moment() -> None:
    run_worlds(0, 30, world=Followed)
    assert Followed.num_live > 100, "most messages come by themselves"


def test_a_late_subscriber_is_told_the_past() -> None:
    with published() as (engine, publisher):
        for i in range(6):
            run(engine, [ask(f"r{i}", range(2 + i, 20 + i), 3)])
        late = Follower(publisher)
        assert late.replay(0) == list(range(publisher.num_put))
        assert late.held == truth(engine.cache)
        assert late.replay(publisher.num_put - 2) == [publisher.num_put - 2, publisher.num_put - 1]
        assert late.replay(publisher.num_put) == []
        late.close()


def test_the_past_is_bounded_and_requests_that_are_none_are_dropped() -> None:
    with published(buffer_steps=3) as (engine, publisher):
        for i in range(6):
            run(engine, [ask(f"r{i}", range(2 + i, 20 + i), 3)])
        late = Follower(publisher)
        assert late.past is not None
        for frames in ([b"\0" * 8], [b"", b"\0"], [b"x", b"\0" * 8], [b"", b"\0" * 8, b""]):
            late.past.send_multipart(frames)
        late.next = publisher.num_put  # what came before is not folded
        assert late.replay(0) == list(range(publisher.num_put - 3, publisher.num_put))
        late.close()


def test_the_frames_are_topic_sequence_and_a_batch() -> None:
    with published(topic="kv@x", replay_endpoint="") as (engine, publisher):
        context = zmq.Context()
        live: zmq.Socket[bytes] = context.socket(zmq.SUB)
        live.setsockopt(zmq.SUBSCRIBE, b"kv@")
        live.connect(publisher.endpoint)
        number = 0
        while not live.poll(20):  # until the subscription has arrived
            engine.reset_prefix_cache()
            engine.pump()
        run(engine, [ask("a", [2, 3, 4, 5, 6], 1)])
        while True:
            assert live.poll(PATIENCE_MS)
            topic, sequence, payload = live.recv_multipart()
            assert topic == b"kv@x" and len(sequence) == 8
            assert int.from_bytes(sequence, "big") == number or not number
            number = int.from_bytes(sequence, "big") + 1
            ts, events, rank = msgspec.msgpack.decode(payload)
            assert ts > 1.7e9 and rank == 0
            if events != [["AllBlocksCleared"]]:
                break
        context.destroy(0)
        (block,) = (name_of(node) for node in engine.cache.held())
    head = ["BlockStored", [block], None, [2, 3, 4, 5], 4, None, "CPU", None, None, 0, "full_attention"]
    assert events == [[*head, None, None, None, None]]


def test_a_new_engine_at_the_old_address_begins_anew() -> None:
    with published() as (engine, publisher):
        run(engine, [ask("a", range(2, 20), 3)])
        address, past = publisher.endpoint, publisher.replay_endpoint
    with published(endpoint=address, replay_endpoint=past) as (engine, publisher):
        follower = Follower(publisher)
        engine.pump()
        follower.catch_up(1)
        assert follower.held == set() and publisher.num_put == 1
        follower.close()


def test_an_address_in_use_is_told_at_start() -> None:
    publisher = publisher_of()
    with pytest.raises(ConfigError, match=f"cannot be published at {publisher.endpoint}") as caught:
        publisher_of(endpoint=publisher.endpoint)
    assert "--kv-events-config" in (caught.value.fix or "")
    publisher.close()


def test_off_there_is_nothing() -> None:
    assert open_kv_events(KVEventsPlan(), LAYOUT) is None
    assert make_engine()[0].cache._events is None
    assert KVEventsPlan().endpoint.startswith("tcp://127.0.0.1:")
