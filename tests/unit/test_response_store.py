"""The store of responses: bounds of count, bytes and age hold whatever comes; keys never meet."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.api.response_store import EventLog, ResponseStore, Stored, Turn, conversation
from octavo.errors import InvalidRequest

MAX_COUNT, MAX_BYTES, MAX_AGE_S = 5, 12_000, 100.0


def item(name: str, size: int = 10) -> dict[str, Any]:
    return {
        "id": name,
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "x" * size}],
    }


def make(max_count: int = MAX_COUNT, **more: Any) -> ResponseStore:
    bounds = {"max_bytes": MAX_BYTES, "max_age_s": MAX_AGE_S, "max_background": 2} | more
    return ResponseStore(max_responses=max_count, **bounds)


def ended(name: str, owner: str = "", parent: Turn | None = None, size: int = 10) -> Stored:
    stored = Stored(name, owner, [item(f"{name}-in", size)], parent)
    stored.end("completed", [item(f"{name}-out", size)], {"id": name})
    return stored


def test_what_is_not_there_is_a_404_that_names_it() -> None:
    store = make()
    with pytest.raises(InvalidRequest, match="resp_1") as caught:
        store.get("", "resp_1", param="previous_response_id")
    assert (caught.value.status, caught.value.param) == (404, "previous_response_id")
    with pytest.raises(InvalidRequest, match="item_1") as caught:
        store.item("", "item_1", "input[3]")
    assert (caught.value.status, caught.value.param) == (404, "input[3].id")


def test_the_oldest_go_first_and_their_turns_stay_while_they_are_continued() -> None:
    store = make(max_count=2)
    first = ended("a")
    store.add(first)
    second = ended("b", parent=first.turn)
    store.add(second)
    store.add(ended("c"))
    with pytest.raises(InvalidRequest):
        store.get("", "a")
    assert [i["id"] for i in conversation(store.get("", "b").turn)] == ["a-in", "a-out", "b-in", "b-out"]
    assert store.item("", "a-out", "x")["id"] == "a-out"
    store.add(ended("d"))
    with pytest.raises(InvalidRequest):
        store.item("", "a-out", "x")


def test_age() -> None:
    now = 0.0
    store = make(clock=lambda: now)
    store.add(ended("a"))
    now = MAX_AGE_S
    assert store.get("", "a").id == "a"
    now += 1
    with pytest.raises(InvalidRequest):
        store.get("", "a")
    assert (len(store), store.num_bytes) == (0, 0)


def test_one_that_is_larger_than_the_store_is_kept_alone() -> None:
    store = make()
    store.add(ended("a"))
    store.add(ended("b", size=MAX_BYTES))
    assert len(store) == 1
    assert store.get("", "b").id == "b"
    store.add(ended("c"))
    assert [store.is_taken("", name) for name in "abc"] == [False, False, True]


def test_a_turn_whose_response_went_while_it_was_continued_counts_again() -> None:
    store = make()
    first = ended("a")
    store.add(first)
    parent = first.turn
    store.remove(first)
    assert store.num_bytes == 0
    second = ended("b", parent=parent)
    store.add(second)
    assert parent is not None
    assert second.turn is not None
    assert store.num_bytes == second.num_bytes + len(second.turn.data) + len(parent.data)
    assert store.item("", "a-in", "x")["id"] == "a-in"
    store.remove(second)
    assert store.num_bytes == 0


class Stores(RuleBasedStateMachine):
    """Random life of a store against a plain list of what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.store = make(clock=lambda: self.now)
        self.made: list[Stored] = []
        self.running: list[Stored] = []

    @rule(owner=st.sampled_from(["", "k"]), size=st.integers(0, 3_000), parent=st.integers(0, 30))
    def finish_one(self, owner: str, size: int, parent: int) -> None:
        before = [s for s in self.made if s.owner == owner and s.turn is not None]
        turn = before[parent % len(before)].turn if before and parent % 3 else None
        stored = ended(f"r{len(self.made)}", owner, turn, size)
        self.made.append(stored)
        self.store.add(stored)
        assert self.store.get(owner, stored.id) is stored

    @precondition(lambda self: len(self.running) < 2)
    @rule()
    def start_one(self) -> None:
        stored = Stored(f"r{len(self.made)}", "", [item("x")], None, log=EventLog(), snapshot=dict)
        self.made.append(stored)
        self.running.append(stored)
        self.store.add(stored)

    @precondition(lambda self: self.running)
    @rule()
    def end_one(self) -> None:
        stored = self.running.pop()
        assert stored.log is not None
        stored.log.append([b"x" * 500])
        stored.end("completed", [item("y")], {})
        stored.log.close()
        self.store.settle(stored)

    @precondition(lambda self: self.made)
    @rule(which=st.integers(0, 100))
    def remove_one(self, which: int) -> None:
        stored = self.made[which % len(self.made)]
        if stored not in self.running:
            self.store.remove(stored)
            assert not self.store.is_taken(stored.owner, stored.id)

    @rule(seconds=st.sampled_from([1, 60]))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @invariant()
    def bounds_and_bytes_are_exact(self) -> None:
        with contextlib.suppress(InvalidRequest):
            self.store.get("", "sweeps what is too old")
        kept = [s for s in self.made if self.store.is_taken(s.owner, s.id)]
        done = [s for s in kept if s.turn is not None]
        turns = {id(t): t for s in done if s.turn is not None for t in s.turn.chain()}
        assert self.store.num_bytes == sum(s.num_bytes for s in done) + sum(
            len(t.data) for t in turns.values()
        )
        assert all(s in kept for s in self.running), "a running one never goes"
        newest = max(done, key=lambda s: s.born, default=None)
        if len(done) > 1 and newest is not None and not self.running:
            assert len(kept) <= MAX_COUNT
            assert self.store.num_bytes <= MAX_BYTES
        for s in done:
            assert s.turn is not None
            for name in s.turn.ids:
                assert self.store.item(s.owner, name, "x")["id"] == name


TestStores = Stores.TestCase


async def test_readers_of_a_log_each_get_all_of_it() -> None:
    log = EventLog()

    async def read(start: int) -> bytes:
        return b"".join([data async for data in log.read(start)])

    readers = [asyncio.create_task(read(start)) for start in (0, 1, 3, 9)]
    for frame in (b"a", b"b", b"c", b"d"):
        log.append([frame])
        await asyncio.sleep(0)
    log.close()
    assert await asyncio.gather(*readers) == [b"abcd", b"bcd", b"d", b""]
    assert await read(2) == b"cd"
