"""--api-server-count: several API processes at one address, one engine; law 4 for the requests of each."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from tests.multi.launched import START_TIMEOUT_S, Launched, launched, run_to_end
from tests.multi.traffic import Answer, Body, Traffic, change, success, traffic

COUNT = 3
ADDRESSES = itertools.count(2)


@pytest.fixture(scope="module")
def server(smollm2_path: str) -> Iterator[Launched]:
    with launched(smollm2_path, "--api-server-count", str(COUNT)) as running:
        yield running


@pytest.fixture
async def calls(server: Launched) -> AsyncIterator[Traffic]:
    async with traffic(server) as running:
        yield running


def api_pids(server: Launched) -> list[int]:
    """The API processes beside the first one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if "octavo.launch.api_child" in words and str(server.process.pid) in words:
            found.append(int(folder.name))
    return found


def owner_of(port: int, server: Launched, client_port: int) -> int:
    """Which process holds the server's end of a connection."""
    wanted = f"{port:04X} "
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, remote, inode = line.split()[1], line.split()[2], line.split()[9]
        if local.endswith(wanted.strip()) and remote.endswith(f":{client_port:04X}"):
            for pid in (server.process.pid, *api_pids(server)):
                for fd in Path(f"/proc/{pid}/fd").iterdir():
                    try:
                        if os.readlink(fd) == f"socket:[{inode}]":
                            return pid
                    except OSError:
                        continue
    raise AssertionError(f"nobody holds the connection from port {client_port}")


def bodies(count: int, **more: object) -> list[Body]:
    return [
        {
            "prompt": f"Number {i}: a story about",
            "max_tokens": 24,
            "temperature": 0,
            "ignore_eos": True,
            **more,
        }
        for i in range(count)
    ]


async def on_every_process(server: Launched, clients: list[Traffic]) -> dict[int, Traffic]:
    """Connections until each API process has one: (process, a client that keeps to it)."""
    found: dict[int, Traffic] = {}
    while len(found) < COUNT:
        local = f"127.0.{next(ADDRESSES)}.1"  # a source address of its own, so that the connection is known
        one = httpx.Limits(max_connections=1)
        transport = httpx.AsyncHTTPTransport(local_address=local, limits=one)
        http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{server.port}", transport=transport, timeout=START_TIMEOUT_S
        )
        client = Traffic(server, http)
        clients.append(client)
        assert (await http.get("/health")).status_code == 200
        (port,) = [
            int(line.split()[1].split(":")[1], 16)
            for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
            if line.split()[2].endswith(f":{server.port:04X}")
            and line.split()[1].startswith(socket.inet_aton(local)[::-1].hex().upper())
            and line.split()[3] == "01"
        ]
        found.setdefault(owner_of(server.port, server, port), client)
    return found


@pytest.fixture
async def each(server: Launched) -> AsyncIterator[dict[int, Traffic]]:
    """A client for every API process, by its pid; each keeps one connection."""
    clients: list[Traffic] = []
    try:
        yield await on_every_process(server, clients)
    finally:
        for client in clients:
            await client.http.aclose()


async def test_every_process_answers_the_same_and_counts_for_all(
    calls: Traffic, each: dict[int, Traffic]
) -> None:
    before = await calls.idle()
    (body,) = bodies(1)
    answers = [await client.send({**body, "stream": i % 2 == 0}) for i, client in enumerate(each.values())]
    assert answers[0].num_tokens == 24
    assert all(answer == answers[0] for answer in answers)
    await calls.idle()
    scrapes = [await client.metrics() for client in each.values()]
    for after in scrapes:
        assert change(before, after, "vllm:generation_tokens_total") == 24 * COUNT
        assert success(before, after) == {"length": COUNT}
        assert change(before, after, "vllm:e2e_request_latency_seconds_count") == COUNT
    steps = {
        after["vllm:iteration_tokens_total_sum"] - before["vllm:iteration_tokens_total_sum"]
        for after in scrapes
    }
    assert len(steps) == 1  # counted once, not once a process
    for client in each.values():
        assert await client.health() == (200, "idle")


async def test_answers_of_all_processes_outlive_the_engine(calls: Traffic, each: dict[int, Traffic]) -> None:
    clients = list(each.values())
    asked = bodies(COUNT, stream=True)
    expected = [await clients[0].send(body) for body in asked]
    running = [asyncio.create_task(client.send(body)) for client, body in zip(clients, asked, strict=True)]
    await calls.until(lambda: sum(c.num_chunks for c in clients) > 25 * len(asked) + 3 * len(asked))
    calls.kill_engine()
    assert await asyncio.gather(*running) == expected
    assert "0 requests wait" not in calls.server.log
    await calls.until_back()
    for client in clients:
        assert await client.health() == (200, "idle")


async def test_the_end_of_one_process_is_not_felt_by_the_others(
    calls: Traffic, each: dict[int, Traffic]
) -> None:
    pid, victim = next((p, c) for p, c in each.items() if p != calls.server.process.pid)
    others = [client for p, client in each.items() if p != pid]
    asked = bodies(COUNT - 1, stream=True)
    expected = [await others[0].send(body) for body in asked]
    lost = asyncio.create_task(victim.send({**asked[0], "max_tokens": 900}))
    running: list[asyncio.Task[Answer]] = [
        asyncio.create_task(client.send(body)) for client, body in zip(others, asked, strict=True)
    ]
    await calls.until(lambda: victim.num_chunks > 2)
    os.kill(pid, signal.SIGKILL)
    assert await asyncio.gather(*running) == expected
    with pytest.raises(httpx.HTTPError):
        await lost
    await calls.until(lambda: "is back" in calls.server.log)
    assert pid not in api_pids(calls.server)
    assert len(api_pids(calls.server)) == COUNT - 1
    await calls.idle()  # the engine was told to drop what nobody reads: else 900 tokens would go on
    clients: list[Traffic] = []
    try:
        again = await on_every_process(calls.server, clients)
        assert [await client.send(asked[0]) for client in again.values()] == [expected[0]] * COUNT
    finally:
        for client in clients:
            await client.http.aclose()


async def test_a_signal_drains_every_process(smollm2_path: str) -> None:
    with launched(smollm2_path, "-asc", "2") as server:
        async with traffic(server) as calls:
            asked = bodies(12, stream=True)
            running = [asyncio.create_task(calls.send(body)) for body in asked]
            await calls.until_chunks(12)
            pids = api_pids(server)
            server.process.send_signal(signal.SIGTERM)
            answers = await asyncio.gather(*running)
        assert [answer.num_tokens for answer in answers] == [24] * 12
        assert server.wait() == 0
        assert len(pids) == 1
        assert not api_pids(server)
        assert not server.engine_pids()


def test_a_port_in_use_is_refused_before_anything_starts(smollm2_path: str) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as another such server would have it
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = run_to_end("serve", smollm2_path, "-asc", "2", "--port", str(taken.getsockname()[1]))
    assert ended.returncode == 2
    assert "cannot listen" in ended.stderr


def test_bounds_of_queues_are_divided(smollm2_path: str) -> None:
    from octavo.config.asked import Asked
    from octavo.config.model import ModelAsked
    from octavo.config.parallel import ParallelAsked
    from octavo.config.scheduler import SchedulerAsked
    from octavo.launch.plan import make_plan

    asked = Asked(
        model=ModelAsked(model=smollm2_path),
        parallel=ParallelAsked(api_server_count=4),
        scheduler=SchedulerAsked(max_num_queued_reqs=10),
    )
    plan = make_plan(asked).resolved.server
    assert (plan.api_server_count, plan.max_queued_requests, plan.max_queued_tokens) == (4, 3, -1)
