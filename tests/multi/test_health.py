"""/health tells progress from standstill on real processes: a stopped engine, a long prefill, a client that leaves."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.multi.launched import Launched, launched
from tests.multi.traffic import Answer, Body, Traffic, change, success, traffic

ENDLESS: Body = {"prompt": "On and on", "max_tokens": 900, "temperature": 0, "ignore_eos": True}
LONG_PROMPT = "word and another word, " * 190


@pytest.fixture(scope="module")
def server(smollm2_path: str) -> Iterator[Launched]:
    with launched(smollm2_path, "--max-num-seqs", "4") as running:
        yield running


@pytest.fixture
async def calls(server: Launched) -> AsyncIterator[Traffic]:
    async with traffic(server) as running:
        yield running


async def test_bb_112_a_stopped_engine_is_unhealthy_until_it_goes_on(calls: Traffic) -> None:
    body = {**ENDLESS, "max_tokens": 48}
    expected = await calls.send(body)
    assert await calls.health() == (200, "idle")
    running = asyncio.ensure_future(calls.send({**body, "stream": True}))
    await calls.until_chunks(5)
    calls.signal_engine(signal.SIGSTOP)
    try:
        await calls.until_health(503, "stalled")
        assert (await calls.http.get("/ping")).status_code == 503
        assert not running.done()
    finally:
        calls.signal_engine(signal.SIGCONT)
    await calls.until_health(200)
    answer = await running
    assert answer.choices == {0: expected.only}
    assert (await calls.idle())["octavo:engine_restarts_total"] == 0


async def test_bb_112_an_idle_engine_that_is_stopped_shows_with_the_first_request(calls: Traffic) -> None:
    """Idle is healthy: nothing has to move. The first request that does not move is what tells."""
    await calls.idle()
    calls.signal_engine(signal.SIGSTOP)
    try:
        running = asyncio.ensure_future(calls.send({"prompt": "Hello", "max_tokens": 2}))
        await calls.until_health(503, "stalled")
    finally:
        calls.signal_engine(signal.SIGCONT)
    assert (await running).status == 200
    await calls.until_health(200)


async def test_bb_112_a_long_prefill_that_moves_is_healthy(calls: Traffic) -> None:
    prompts: list[Body] = [
        {"prompt": f"{i} {LONG_PROMPT}", "max_tokens": 1, "cache_salt": "prefill"} for i in range(4)
    ]
    running = asyncio.ensure_future(calls.all(prompts))
    seen = set()
    while not running.done():
        seen.add((await calls.health())[0])
        await asyncio.sleep(0.02)
    assert [a.status for a in await running] == [200] * 4
    assert seen == {200}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["waiting", "prefill", "decode"])
async def test_bb_108_bb_030_a_client_that_leaves_frees_its_place(
    calls: Traffic, phase: str, stream: bool
) -> None:
    """Slots and blocks return at once, nothing more is made, and what was made is counted as aborted."""
    before = await calls.idle()
    company: list[asyncio.Future[Answer]] = []
    if phase == "waiting":  # four others hold all slots
        company = [asyncio.ensure_future(calls.send({**ENDLESS, "stream": True})) for _ in range(4)]
        await calls.until_chunks(8)
    body = {**ENDLESS, "stream": stream}
    if phase == "prefill":
        body |= {"prompt": LONG_PROMPT, "max_tokens": 20, "cache_salt": f"abort {stream}"}
    leaving = asyncio.ensure_future(calls.send(body))
    chunks = calls.num_chunks
    if phase == "decode" and stream:
        await calls.until_chunks(5)
    else:
        await until_open(calls, len(company) + 1)
        if phase == "decode":
            await until_running(calls)
    if phase == "prefill" and stream:
        assert calls.num_chunks == chunks
    for task in (leaving, *company):
        task.cancel()
    await asyncio.gather(leaving, *company, return_exceptions=True)
    after = await calls.idle()
    assert success(before, after) == {"abort": 1 + len(company)}
    assert after["vllm:kv_cache_usage_perc"] == 0
    made = after["vllm:generation_tokens_total"]
    assert change(before, after, "vllm:generation_tokens_total") < 900
    await asyncio.sleep(0.2)
    assert (await calls.metrics())["vllm:generation_tokens_total"] == made
    assert sum(aborted(calls)[-1 - len(company) :]) == change(before, after, "vllm:generation_tokens_total")


async def until_open(calls: Traffic, count: int) -> None:
    while (await calls.http.get("/load")).json()["server_load"] < count:
        await asyncio.sleep(0.002)


async def until_running(calls: Traffic) -> None:
    while (await calls.metrics())["vllm:num_requests_running"] < 1:
        await asyncio.sleep(0.01)


def aborted(calls: Traffic) -> list[int]:
    """Tokens that were made for each aborted request, from the log's line about it."""
    lines = [line for line in calls.server.lines if ": abort," in line]
    return [int(found[1]) for line in lines if (found := re.search(r"(\d+) generated", line))]
