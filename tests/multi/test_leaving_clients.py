"""Clients of every dialect that leave in every phase, do not read what they asked for, or only hold a connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fakes.corpus import SCHEMA
from tests.fakes.folds import DIALECTS
from tests.multi.launched import Launched, launched
from tests.multi.traffic import Body, rss_bytes, traffic

SAID: list[Any] = [{"role": "user", "content": "Count to a hundred, slowly."}]
LONG: dict[str, Body] = {
    "chat": {"messages": SAID, "max_tokens": 200},
    "completions": {"prompt": "One, two,", "max_tokens": 200, "ignore_eos": True},
    "tokens": {"token_ids": [20, 21, 22], "sampling_params": {"max_tokens": 200, "ignore_eos": True}},
    "messages": {"model": "m", "messages": SAID, "max_tokens": 200},
    "cohere": {"model": "m", "messages": SAID, "max_tokens": 200},
    "responses": {"input": "Count to a hundred, slowly.", "max_output_tokens": 200},
}
SHAPED: Body = {
    "prompt": "x",
    "max_tokens": 200,
    "structured_outputs": {"json": {"type": "array", "items": SCHEMA, "minItems": 30}},
}
PLAIN: Body = {"prompt": "One, two,", "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def server(smollm2_path: str) -> Iterator[Launched]:
    with launched(smollm2_path, "--num-blocks", "128", "--served-model-name", "m") as running:
        yield running


def raw(path: str, body: Body) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data


async def leave(port: int, sent: bytes, num_bytes: int) -> None:
    """Goes away after so many bytes of the answer: 0 = at once, while the request waits or its prompt runs."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    await writer.drain()
    if num_bytes:
        await asyncio.wait_for(reader.readexactly(num_bytes), 60)
    writer.transport.abort()


async def test_whoever_leaves_leaves_nothing_behind(server: Launched) -> None:
    """In the middle of its body, before an answer, in the middle of one; streamed and not; with a grammar."""
    async with traffic(server) as calls:
        expected = await calls.send(PLAIN)
        await calls.idle()
        bodies = [(DIALECTS[name].path, body) for name, body in LONG.items()] + [("/v1/completions", SHAPED)]
        tasks = []
        for path, body in bodies:
            whole, streamed = raw(path, body), raw(path, {**body, "stream": True})
            tasks += [leave(server.port, whole[:-9], 0), leave(server.port, whole, 0)]
            tasks += [leave(server.port, streamed, size) for size in (0, 15, 500, 1_500)]
        await asyncio.gather(*tasks)
        after = await calls.idle()
        assert after["vllm:kv_cache_usage_perc"] == 0
        assert await calls.send(PLAIN) == expected


async def test_clients_that_never_read_and_idle_connections_cost_little(server: Launched) -> None:
    """Answers nobody reads are bounded by their length, idle connections by their time; others are served."""
    async with traffic(server) as calls:
        expected = await calls.send(PLAIN)
        await calls.idle()
        before = rss_bytes(server.process.pid)
        idle = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", server.port) for _ in range(300)))
        deaf = []
        for name, body in LONG.items():
            for _ in range(3):
                _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=64)
                writer.write(raw(DIALECTS[name].path, {**body, "stream": True}))
                await writer.drain()
                deaf.append(writer)
        assert await calls.send(PLAIN) == expected
        await calls.idle()
        assert rss_bytes(server.process.pid) - before < 64 << 20
        for writer in [*deaf, *(w for _, w in idle)]:
            writer.transport.abort()
        assert await calls.send(PLAIN) == expected
