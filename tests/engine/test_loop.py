"""The engine's loop behind its sockets: nothing lost, aborts first, faults told, an honest heartbeat."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from tests.engine.harness import VOCAB, Ear, ask, check_idle, make_engine
from tests.fakes.glass_worker import expected

from octavo.core.loop import run_engine
from octavo.core.protocols import Verdict
from octavo.core.request import Request
from octavo.wire.addresses import FORGET_LINE, Addresses, new_addresses, private_dir
from octavo.wire.codec import (
    MalformedMessageError,
    decode_from_engine,
    decode_to_engine,
    decode_value,
    encode,
    encode_value,
)
from octavo.wire.heartbeat import Heartbeat, Pulse
from octavo.wire.messages import (
    Abort,
    Add,
    Call,
    EngineStats,
    Failed,
    FinishReason,
    FromEngine,
    Outputs,
    Ready,
    Reply,
    TokenDelta,
    TokenLogprobs,
)
from octavo.wire.sockets import ClientEndpoint, EngineEndpoint

READY = Ready(max_model_len=64, num_blocks=64, block_size=4, table=[["executor", "glass", "a test"]])
PATIENCE_S = 20


@pytest.fixture
def addresses() -> Iterator[Addresses]:
    directory = private_dir()
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
    yield new_addresses(directory, "engine-0")
    shutil.rmtree(directory)


# ---- codec --------------------------------------------------------------------------------------


def test_messages_survive_the_wire() -> None:
    request = ask("r", [1, 2], params={"logit_bias": {3: 0.5}, "stop": ["\n"]}, salt="s", forced=[4])
    for one in (Add(request), Abort(["a", "b"]), Call(7, "stats", [1, "x", None, True, 0.5])):
        assert decode_to_engine(encode(one)) == one
    delta = TokenDelta(
        id="r",
        token_ids=[5],
        logprobs=[TokenLogprobs(5, -0.5, 1, [5, 6], [-0.5, -1.5])],
        prompt_logprobs=[None, TokenLogprobs(2, -1.0, 3, [], [])],
        finish=FinishReason.STOP,
        stop_reason=5,
    )
    others: list[FromEngine] = [
        READY,
        Outputs(deltas=[delta], stats=EngineStats(running=3)),
        Failed("it broke", "mend it"),
    ]
    for other in others:
        assert decode_from_engine(encode(other)) == other
    reply = decode_from_engine(encode(Reply(call_id=1, result=encode_value({"a": [1, None]}))))
    assert isinstance(reply, Reply)
    assert decode_value(reply.result) == {"a": [1, None]}


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"hello", msgspec.msgpack.encode({"type": "add"}), b"\x80\x04K\x01."]
)
def test_bytes_that_are_no_message_are_an_error_of_ours(data: bytes) -> None:
    for decode in (decode_to_engine, decode_from_engine):
        with pytest.raises(MalformedMessageError):
            decode(data)


# ---- sockets ------------------------------------------------------------------------------------


async def test_a_burst_arrives_whole_and_in_order_both_ways(addresses: Addresses) -> None:
    """More than any default queue of ZMQ holds, sent before the other side exists."""
    count = 3000
    client = ClientEndpoint(addresses)
    for i in range(count):
        client.send(Abort([str(i)]))
    engine = EngineEndpoint(*addresses)
    got: list[str] = []
    while len(got) < count:
        for message in engine.recv():
            assert isinstance(message, Abort)
            got += message.ids
        await asyncio.sleep(0.001)
    assert got == [str(i) for i in range(count)]
    for i in range(count):
        engine.send(Failed(str(i)))
    back = [await asyncio.wait_for(client.recv(), PATIENCE_S) for _ in range(count)]
    assert back == [Failed(str(i)) for i in range(count)]
    await client.send(Abort([]))  # awaiting is allowed
    client.close()
    engine.close()


async def test_the_edge_of_the_descriptor_is_never_missed(addresses: Addresses) -> None:
    """One message at a time, the reader asleep each time, a send between: each must wake it."""
    client, engine = ClientEndpoint(addresses), EngineEndpoint(*addresses)
    for i in range(300):
        waiting = asyncio.create_task(client.recv())
        if i % 3:
            await asyncio.sleep(0)
        client.send(Abort(["x"]))
        engine.send(Failed(str(i)))
        assert await asyncio.wait_for(waiting, PATIENCE_S) == Failed(str(i))
    client.close()
    engine.close()


async def test_closing_under_a_reader_leaves_the_next_endpoint_alone(addresses: Addresses) -> None:
    """As when an engine is replaced: the old reader's clean-up comes after the new one has its descriptor."""
    old = ClientEndpoint(addresses)
    reading = asyncio.create_task(old.recv())
    await asyncio.sleep(0.01)
    reading.cancel()
    old.close()
    new = ClientEndpoint(Addresses(addresses.to_engine + "2", addresses.from_engine + "2"))
    waiting = asyncio.create_task(new.recv())
    engine = EngineEndpoint(addresses.to_engine + "2", addresses.from_engine + "2")
    await asyncio.sleep(0.01)
    assert reading.cancelled()
    engine.send(Failed("heard"))
    assert await asyncio.wait_for(waiting, PATIENCE_S) == Failed("heard")
    new.close()
    engine.close()


# ---- the loop -----------------------------------------------------------------------------------


class Running:
    """An engine loop in a thread, and what its client heard."""

    def __init__(self, client: ClientEndpoint) -> None:
        self.client = client
        self.ear = Ear()
        self.replies: dict[int, Reply] = {}
        self.stats: list[EngineStats] = []
        self.failed: Failed | None = None
        self.num_outputs = 0

    async def listen(self, done: Callable[[], bool]) -> None:
        async def hear() -> None:
            while not done():
                message = await self.client.recv()
                if isinstance(message, Outputs):
                    self.num_outputs += 1
                    self.ear.take(message.deltas)
                    if message.stats is not None:
                        self.stats.append(message.stats)
                elif isinstance(message, Reply):
                    self.replies[message.call_id] = message
                elif isinstance(message, Failed):
                    self.failed = message

        await asyncio.wait_for(hear(), PATIENCE_S)

    def is_done(self, *ids: str) -> bool:
        return all(i in self.ear and self.ear[i].finish is not None for i in ids)


@asynccontextmanager
async def serve(
    addresses: Addresses, *, stop: bool = True, **options: Any
) -> AsyncIterator[tuple[Running, Callable[[], Awaitable[int]]]]:
    heartbeat = options.pop("heartbeat", None)
    engine, worker = make_engine(**options)
    endpoint = EngineEndpoint(*addresses)
    stop_read, stop_write = os.pipe()
    code: list[int] = []
    names = {"stop_fd": stop_read} if stop else {"death_fd": stop_read}

    def main() -> None:
        code.append(run_engine(engine, endpoint, READY, heartbeat=heartbeat, **names))
        endpoint.close()

    client = ClientEndpoint(addresses)
    thread = threading.Thread(target=main)
    thread.start()
    running = Running(client)
    closed = False

    async def end() -> int:
        nonlocal closed
        if not closed:
            os.close(stop_write)
            closed = True
        await asyncio.to_thread(thread.join, PATIENCE_S)
        return code[0]

    try:
        assert await asyncio.wait_for(client.recv(), PATIENCE_S) == READY
        yield running, end
    finally:
        await end()
        if stop and running.failed is None:
            while engine.has_work():
                engine.pump(None)
            check_idle(engine)
        os.close(stop_read)
        client.close()
        worker.close()


async def test_requests_stream_through_the_loop(addresses: Addresses) -> None:
    async with serve(addresses) as (running, end):
        requests = [ask(f"r{i}", [i + 2, 5, 6], 10) for i in range(9)]
        for request in requests:
            running.client.send(Add(request))
        await running.listen(lambda: running.is_done(*(r.id for r in requests)))
        for request in requests:
            assert running.ear[request.id].token_ids == expected(request, (0,), VOCAB, 64).token_ids
        assert running.num_outputs < sum(len(heard.deltas) for heard in running.ear.values()), (
            "deltas travel together"
        )
        await running.listen(lambda: bool(running.stats) and running.stats[-1].running == 0)
        assert sum(sum(stats.step_tokens) for stats in running.stats) == 9 * 12
        assert await end() == 0


async def test_calls_are_answered_and_nonsense_does_no_harm(addresses: Addresses) -> None:
    async with serve(addresses) as (running, _):
        client = running.client
        client._out.send(b"nonsense")
        for i, method in enumerate(("stats", "describe", "reset_prefix_cache", "exit")):
            client.send(Call(i, method))
        client.send(Add(ask("twice", [3], 40)))
        client.send(Add(ask("twice", [4], 40)))
        client.send(Add(ask("bad", [])))
        await running.listen(lambda: len(running.replies) == 4 and running.is_done("twice", "bad"))
        stats, description, reset = (decode_value(running.replies[i].result) for i in range(3))
        assert isinstance(stats, dict) and stats["kv_blocks_total"] == 64
        assert isinstance(description, dict) and description["block_size"] == 4
        assert reset is True
        assert running.replies[3].error is not None and "no engine call 'exit'" in running.replies[3].error
        assert running.ear["twice"].token_ids == expected(ask("x", [3], 40), (0,), VOCAB, 64).token_ids
        assert running.ear["bad"].finish is FinishReason.ERROR


async def test_each_api_process_hears_of_its_own_requests_only(addresses: Addresses) -> None:
    others = Addresses(*(address + "-1" for address in addresses))
    engine, worker = make_engine(engine_options={"gates": [OnlyRuns("run")]})
    endpoints = [EngineEndpoint(*addresses), EngineEndpoint(*others)]
    stop_read, stop_write = os.pipe()
    clients = [ClientEndpoint(addresses), ClientEndpoint(others)]
    thread = threading.Thread(target=run_engine, args=(engine, endpoints, READY, stop_read))
    thread.start()
    first, second = map(Running, clients)
    try:
        for client in clients:
            assert await asyncio.wait_for(client.recv(), PATIENCE_S) == READY
        for i, client in enumerate(clients):
            client.send(Add(ask(f"run-{i}", [3 + i], 20)))
            client.send(Add(ask(f"wait-{i}", [3], 20)))
        await first.listen(lambda: first.is_done("run-0"))
        await second.listen(lambda: second.is_done("run-1"))
        clients[0].send(Call(7, FORGET_LINE, [1]))
        await first.listen(lambda: 7 in first.replies and first.stats[-1].waiting_deferred == 1)
        assert set(first.ear) == {"run-0"}
        assert set(second.ear) == {"run-1"}
        clients[1].close()
        clients[1] = ClientEndpoint(others)  # the next process at that end
        successor = Running(clients[1])
        clients[1].send(Add(ask("run-2", [9], 20)))
        await successor.listen(lambda: successor.is_done("run-2"))
        assert set(successor.ear) == {"run-2"}
    finally:
        os.close(stop_write)
        await asyncio.to_thread(thread.join, PATIENCE_S)
        for end in (*endpoints, *clients):
            end.close()
        os.close(stop_read)
        worker.close()
    check_idle(engine)


class OnlyRuns:
    """A gate that lets those start whose id begins with `word`."""

    def __init__(self, word: str) -> None:
        self._word = word

    def check(self, request: Request) -> Verdict:
        return Verdict.GO if request.id.startswith(self._word) else Verdict.SKIP


class Closed:
    """A gate that lets nobody start."""

    def check(self, request: Request) -> Verdict:
        return Verdict.SKIP


async def test_aborts_in_the_loop(addresses: Addresses) -> None:
    async with serve(addresses, engine_options={"gates": [Closed()]}) as (running, _):
        for name in ("a", "b", "stays"):
            running.client.send(Add(ask(name, [3], 60)))
        running.client.send(Abort(["a", "b", "unknown"]))
        await running.listen(lambda: running.is_done("a", "b"))
        assert [running.ear[name].finish for name in ("a", "b")] == [FinishReason.ABORT] * 2
        assert "stays" not in running.ear


async def test_stop_ends_every_request_first(addresses: Addresses) -> None:
    async with serve(addresses, engine_options={"gates": [Closed()]}) as (running, end):
        running.client.send(Add(ask("waits", [3])))
        running.client.send(Call(0, "stats"))
        await running.listen(lambda: 0 in running.replies)
        assert await end() == 0
        await running.listen(lambda: running.is_done("waits"))
        assert running.ear["waits"].finish is FinishReason.ABORT


async def test_the_loop_dies_with_its_parent(addresses: Addresses) -> None:
    async with serve(addresses, stop=False) as (_, end):
        assert await end() == 0


async def test_a_fault_is_told_and_the_code_is_not_zero(addresses: Addresses) -> None:
    async with serve(addresses, worker_options={"fault_at": 2}) as (running, end):
        running.client.send(Add(ask("r", [3], 20)))
        await running.listen(lambda: running.failed is not None)
        assert running.failed == Failed("step 2 failed: glass breaks")
        assert await end() == 1


# ---- heartbeat ----------------------------------------------------------------------------------


async def test_the_heartbeat_follows_the_loop(addresses: Addresses, tmp_path: Path) -> None:
    path = str(tmp_path / "heartbeat")
    mine = Heartbeat.create(path)
    theirs = Heartbeat.open(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    before = mine.read()
    assert before[:2] == (0, False)
    async with serve(addresses, heartbeat=theirs) as (running, end):
        running.client.send(Add(ask("r", [3], 5)))
        await running.listen(lambda: running.is_done("r"))
        await end()
    after = mine.read()
    assert after.steps == 5 and not after.has_work
    assert before.progress_s < after.progress_s <= after.alive_s
    mine.close()
    theirs.close()


def test_busy_is_not_stalled_and_idle_is_neither() -> None:
    """P130."""
    assert Pulse(5, False, 10.0, 10.0).state(1e6, 30) == "idle"
    assert Pulse(5, True, 10.0, 10.0).state(39.0, 30) == "busy"
    assert Pulse(5, True, 10.0, 10.0).state(41.0, 30) == "stalled"


def test_only_progress_moves_the_time_of_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr("octavo.wire.heartbeat.time.monotonic_ns", lambda: now[0] * 10**9)
    heart = Heartbeat.create(str(tmp_path / "heart"))
    for now_s, steps, has_work, progress_s in (
        (1, 0, True, 1),  # work arrives
        (5, 0, True, 1),  # a long step
        (6, 1, True, 6),  # it ended
        (9, 1, True, 6),
        (10, 1, False, 10),
        (50, 1, True, 50),  # idle time is no stall
    ):
        now[0] = now_s
        heart.beat(steps, has_work=has_work)
        assert (heart.read().progress_s, heart.read().alive_s) == (progress_s, now_s)
    heart.close()


def test_zmq_queues_have_no_limit(addresses: Addresses) -> None:
    endpoint = EngineEndpoint(*addresses)
    assert endpoint._out.get_hwm() == 0 and endpoint._in.get_hwm() == 0
    assert endpoint._out.getsockopt(zmq.LINGER) > 0, "last words are delivered"
    endpoint._out.setsockopt(zmq.LINGER, 0)
    endpoint.close()
