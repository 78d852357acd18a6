"""Many requests of mixed kinds: nothing grows, nothing leaks, and the last answer is what the first one was."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.multi.launched import Launched, launched
from tests.multi.traffic import Answer, Body, Traffic, change, rss_bytes, success, traffic

WAVE = 300
WAVES = 6
CONCURRENT = 24
FRESH: Body = {
    "prompt": "The capital of France is",
    "max_tokens": 24,
    "temperature": 0,
    "ignore_eos": True,
    "logprobs": 2,
}


@pytest.fixture(scope="module")
def server(smollm2_path: str) -> Iterator[Launched]:
    """The pool is small, so that every block of it has been touched, and evicted, early on."""
    with launched(smollm2_path, "--num-blocks", "128", "--max-num-seqs", "32") as running:
        yield running


@pytest.fixture
async def calls(server: Launched) -> AsyncIterator[Traffic]:
    async with traffic(server) as running:
        yield running


def mixed(rng: random.Random, i: int, most_tokens: int) -> Body:
    """Request `i` of some kind; a few are refused."""
    text = f"{i}: " + "tell me more about it " * rng.randint(0, 6)
    ask: Body = {"messages": [{"role": "user", "content": text}]} if i % 3 == 0 else {"prompt": text}
    ask |= {"max_tokens": rng.randint(1, most_tokens), "stream": i % 2 == 0}
    kinds: list[Body] = [
        {"temperature": 0},
        {"temperature": 1.0, "seed": i},
        {"temperature": 1.0, "n": 2, "top_p": 0.9},
        {"temperature": 0, "logprobs": True, "top_logprobs": 3} if "messages" in ask else {"logprobs": 3},
        {"temperature": 0.7, "stop": ["e", "zz"], "frequency_penalty": 0.5, "cache_salt": f"s{i % 50}"},
        {"tools": [{"type": "function", "function": {"name": "f"}}]}
        if "messages" in ask
        else {"guided_json": {"const": i}},
        {"response_format": {"type": "json_object"}},
        {"temperature": 1.3, "top_k": 20, "bad_words": ["no"], "min_tokens": 1, "logit_bias": {"30": -5}},
        {"prompt_logprobs": 1, "stream": False},
    ]
    return ask | kinds[rng.randrange(len(kinds))]


async def some_leave(calls: Traffic, rng: random.Random, body: Body, mean_s: float) -> Answer | None:
    """An answer, or None when the client left before it."""
    task = asyncio.ensure_future(calls.send(body))
    if rng.random() < 0.2:
        await asyncio.wait({task}, timeout=rng.expovariate(1 / mean_s))
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return None
    return await task


def check(answer: Answer | None) -> None:
    if answer is None:
        return
    assert answer.status in (200, 400), answer
    if answer.status == 200:
        assert answer.error is None
        assert all(len(c.finish) == 1 for c in answer.choices.values())
        assert answer.usage is not None


@pytest.mark.timeout(900)
async def test_bb_110_memory_does_not_climb(calls: Traffic) -> None:
    """Eighteen hundred requests: both processes are as large after all of them as after a sixth."""
    expected = await calls.send(FRESH)
    (engine,) = calls.server.engine_pids()
    pids = (calls.server.process.pid, engine)
    rng = random.Random(110)
    sizes, files = [], []
    for wave in range(WAVES):
        gate = asyncio.Semaphore(CONCURRENT)

        async def one(i: int, gate: asyncio.Semaphore = gate) -> None:
            async with gate:
                check(await some_leave(calls, rng, mixed(rng, i, 3), 0.1))

        await asyncio.gather(*(one(wave * WAVE + i) for i in range(WAVE)))
        await calls.idle()
        sizes.append([rss_bytes(pid) for pid in pids])
        files.append([len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids])
    for early, late in zip(sizes[0], sizes[-1], strict=True):
        assert late <= 1.1 * early, sizes
    for early, late in zip(files[0], files[-1], strict=True):
        assert late <= early + CONCURRENT, files  # connections that are kept alive
    assert await calls.send(FRESH) == expected


async def test_sixty_four_clients_that_come_and_go_leave_nothing_behind(calls: Traffic) -> None:
    solo = await calls.send(FRESH)
    before = await calls.idle()
    kept = 0

    async def client(number: int) -> None:
        nonlocal kept
        rng = random.Random(number)
        for i in range(6):
            answer = await some_leave(calls, rng, mixed(rng, number * 100 + i, 32), 0.5)
            check(answer)
            kept += answer is not None and answer.status == 200

    await asyncio.gather(*(client(i) for i in range(64)))
    after = await calls.idle()
    assert after["vllm:kv_cache_usage_perc"] == 0
    ended = success(before, after)
    assert set(ended) <= {"stop", "length", "abort"}
    assert ended["stop"] + ended["length"] >= kept > 0
    ended_by_histogram = change(before, after, "vllm:e2e_request_latency_seconds_count")
    assert sum(ended.values()) == ended_by_histogram
    assert await calls.send(FRESH) == solo
    assert (await calls.health()) == (200, "idle")
