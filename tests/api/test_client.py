"""The engine client: tokens survive the death of an engine (law 4), aborts arrive, nothing is left behind."""

from __future__ import annotations

import asyncio

import pytest
from tests.fakes.scripted_engine import ScriptedEngine, random_groups
from tests.fakes.toy_codec import ToyCodec

from octavo.api.client import MAX_CRASHES, EngineClient
from octavo.errors import EngineDead
from octavo.wire.messages import EngineRequest, FinishReason, RequestRecord, TokenDelta
from octavo.wire.sampling import SamplingParams

CODEC = ToyCodec()
TEXT = "Hello world ABC DEFGHIJ KLM ok ok the end"


def request(name: str, **more: object) -> EngineRequest:
    params = SamplingParams(logprobs=1, prompt_logprobs=0)
    return EngineRequest(id=name, prompt=[20, 21], params=params, max_tokens=100, seed=0, eos_ids=[2], **more)  # type: ignore[arg-type]


async def collect(client: EngineClient, name: str) -> list[TokenDelta]:
    return [delta async for delta in client.submit(request(name))]


def tokens(deltas: list[TokenDelta]) -> list[int]:
    return [i for d in deltas for i in d.token_ids]


async def until(condition: object) -> None:
    while not condition():  # type: ignore[operator]
        await asyncio.sleep(0.001)


async def test_streams_go_on_after_a_death_with_the_same_tokens() -> None:
    client = EngineClient()
    first = ScriptedEngine(CODEC, TEXT, delay_s=0.001, group=random_groups(1))
    client.on_engine_up(first)
    streams = [asyncio.create_task(collect(client, f"r{i}")) for i in range(16)]
    await until(lambda: first.generated >= 100)
    first.kill()
    client.on_engine_down()
    assert client.num_unfinished > 0
    second = ScriptedEngine(CODEC, TEXT)
    client.on_engine_up(second)
    wanted = [*CODEC.encode(TEXT, False), 2]
    for deltas in await asyncio.gather(*streams):
        assert tokens(deltas) == wanted
        assert [d.finish for d in deltas if d.finish is not None] == [FinishReason.STOP]
        assert sum(d.prompt_logprobs is not None for d in deltas) == 1
        assert sum(d.num_cached is not None for d in deltas) == 1
    assert all(r.crashes == 1 for r in second.seen)
    assert all(r.forced == wanted[: len(r.forced)] for r in second.seen)
    assert any(r.forced for r in second.seen)
    assert client.num_unfinished == client.num_ending == 0
    await first.close()
    await second.close()
    client.close()


async def test_two_crashes_end_a_request_and_spare_the_others() -> None:
    client = EngineClient()
    first = ScriptedEngine(CODEC, TEXT)
    first.hold.clear()
    client.on_engine_up(first)
    poison = asyncio.create_task(collect(client, "poison"))
    await until(lambda: len(first.seen) == 1)
    client.on_engine_down()
    second = ScriptedEngine(CODEC, TEXT)
    second.hold.clear()
    client.on_engine_up(second)
    other = asyncio.create_task(collect(client, "other"))
    await until(lambda: len(second.seen) == 2)
    client.on_engine_down()
    (error,) = await poison
    assert error.finish == FinishReason.ERROR
    assert "2 times" in (error.error or "")
    waiting = asyncio.create_task(collect(client, "waiting"))
    await asyncio.sleep(0)
    third = ScriptedEngine(CODEC, TEXT)
    client.on_engine_up(third)
    assert tokens(await other) == tokens(await waiting)
    assert {r.id: r.crashes for r in third.seen} == {"other": 1, "waiting": 0}
    for engine in (first, second, third):
        await engine.close()
    client.close()


async def test_a_request_that_moves_on_between_crashes_is_not_blamed_for_them() -> None:
    """But none takes down engines without end."""
    client = EngineClient()
    deltas: list[TokenDelta] = []

    async def consume() -> None:
        async for delta in client.submit(request("long")):
            deltas.append(delta)  # noqa: PERF401  (read while it grows)

    stream = asyncio.create_task(consume())
    for _ in range(MAX_CRASHES):
        engine, seen = ScriptedEngine(CODEC, lambda _: [20] * 90, delay_s=0.001), len(deltas)
        client.on_engine_up(engine)
        await until(lambda seen=seen: len(deltas) > seen)
        engine.kill()
        client.on_engine_down()
        await engine.close()
    await stream
    assert deltas[-1].finish == FinishReason.ERROR
    assert f"{MAX_CRASHES} times" in (deltas[-1].error or "")
    assert len(tokens(deltas)) >= MAX_CRASHES
    client.close()


async def test_leaving_aborts_and_the_record_still_comes() -> None:
    records: list[tuple[str, RequestRecord | None]] = []
    client = EngineClient(on_end=lambda i, r: records.append((i, r)))
    engine = ScriptedEngine(CODEC, lambda _: [20] * 90, delay_s=0.001)
    client.on_engine_up(engine)
    stream = client.submit(request("a"))
    await anext(stream)
    await stream.aclose()
    assert client.num_unfinished == 0
    assert client.num_ending == 1
    await until(lambda: records)
    assert engine.aborted == ["a"]
    assert records[0][1] is not None
    assert records[0][1].num_generated >= 1
    assert client.num_ending == 0
    await engine.close()
    client.close()


async def test_leaving_while_the_engine_is_down_leaves_nothing() -> None:
    records = []
    client = EngineClient(on_end=lambda i, r: records.append((i, r)))
    task = asyncio.create_task(collect(client, "a"))
    await asyncio.sleep(0)
    assert client.num_unfinished == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert records == [("a", None)]
    engine = ScriptedEngine(CODEC)
    client.on_engine_up(engine)
    await asyncio.sleep(0.01)
    assert engine.seen == []
    client.close()


async def test_a_closed_client_ends_everything() -> None:
    client = EngineClient()
    task = asyncio.create_task(collect(client, "a"))
    await asyncio.sleep(0)
    client.close()
    assert (await task)[0].finish == FinishReason.ERROR
    with pytest.raises(EngineDead):
        await collect(client, "b")


async def test_calls_are_answered_or_fail() -> None:
    client = EngineClient()
    with pytest.raises(EngineDead):
        await client.call("reset_prefix_cache")
    engine = ScriptedEngine(CODEC)
    client.on_engine_up(engine)
    assert await client.call("reset_prefix_cache") is True
    client.close()


async def test_counters_add_up_over_engines() -> None:
    client = EngineClient()
    for _ in range(2):
        engine = ScriptedEngine(CODEC, "Hello")
        client.on_engine_up(engine)
        await collect(client, "a")
        client.on_engine_down()
        await engine.close()
    assert client.total("steps") == 4
    client.close()
