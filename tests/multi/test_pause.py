"""Pause and resume of a real server: streams freeze and go on to the same text, new requests queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.multi.launched import Launched, launched
from tests.multi.traffic import Body, Traffic, traffic

BODY: Body = {"prompt": "Once upon a time", "max_tokens": 300, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(smollm2_path: str) -> Iterator[Launched]:
    with launched(smollm2_path, OCTAVO_SERVER_DEV_MODE="1") as running:
        yield running


@pytest.fixture
async def calls(server: Launched) -> AsyncIterator[Traffic]:
    async with traffic(server) as running:
        yield running
        await running.http.post("/resume")


async def is_paused(calls: Traffic) -> bool:
    answer = (await calls.http.get("/is_paused")).json()["is_paused"]
    assert isinstance(answer, bool)
    return answer


async def test_a_frozen_stream_goes_on_to_the_same_text(calls: Traffic) -> None:
    expected = await calls.send(BODY)
    running = asyncio.ensure_future(calls.send({**BODY, "stream": True}))
    await calls.until_chunks(5)
    answer = await calls.http.post("/pause", params={"mode": "keep"})
    assert (answer.status_code, answer.json()) == (200, {"status": "paused"})
    assert await is_paused(calls)
    late = asyncio.ensure_future(calls.send({**BODY, "max_tokens": 3}))
    await calls.until_health(200, "paused")
    assert not running.done() and not late.done()
    assert (await calls.http.post("/resume")).json() == {"status": "resumed"}
    assert (await running).choices == {0: expected.only}
    assert expected.only.text.startswith((await late).only.text)
    assert not await is_paused(calls)


async def test_abort_ends_what_runs_and_says_so(calls: Traffic) -> None:
    running = asyncio.ensure_future(calls.send({**BODY, "stream": True}))
    await calls.until_chunks(5)
    assert (await calls.http.post("/pause")).status_code == 200
    assert (await running).only.finish == ["abort"]


async def test_wait_lets_what_runs_end(calls: Traffic) -> None:
    running = asyncio.ensure_future(calls.send({**BODY, "stream": True}))
    await calls.until_chunks(5)
    assert (await calls.http.post("/pause", params={"mode": "wait"})).status_code == 200
    assert (await running).only.finish == ["length"]


async def test_prefixes_are_forgotten_when_asked(calls: Traffic) -> None:
    prompt = "The same long beginning of a prompt, once more and again. " * 8
    body = {"prompt": prompt, "max_tokens": 2, "temperature": 0}

    async def cached() -> int:
        usage = (await calls.http.post("/v1/completions", json=body)).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    await cached()
    assert await cached() > 0
    assert (await calls.http.post("/reset_prefix_cache")).json() == {"success": True}
    assert await cached() == 0


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/pause?mode=nap", "mode is 'nap'; allowed are abort, wait, keep"),
        ("/pause?clear_cache=perhaps", "clear_cache is 'perhaps'; allowed are true, 1, false, 0"),
        ("/pause?level=1", "there is no parameter 'level' here; allowed are mode, clear_cache"),
        ("/reset_prefix_cache?reset_external=true", "there is no parameter 'reset_external' here"),
    ],
)
async def test_what_cannot_act_is_refused(calls: Traffic, path: str, words: str) -> None:
    answer = await calls.http.post(path)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert not await is_paused(calls)
