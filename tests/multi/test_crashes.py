"""Law 4 on real processes: the engine is killed under load, and no client can tell (but for the wait)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.multi.launched import Launched, launched
from tests.multi.traffic import Answer, Body, Traffic, change, success, traffic

TOPICS = ("the sea", "a small town", "bread", "the moon", "trains", "a garden", "music", "winter")
TOKENS = 32


@pytest.fixture(scope="module")
def server(smollm2_path: str) -> Iterator[Launched]:
    with launched(smollm2_path) as running:
        yield running


@pytest.fixture
async def calls(server: Launched) -> AsyncIterator[Traffic]:
    async with traffic(server) as running:
        yield running


def sixteen(subject: str) -> list[Body]:
    """Greedy and sampled, chat and plain, streamed and not; logprobs, n, penalties, stop strings on some."""
    kinds: list[Body] = [
        {"temperature": 0},
        {"temperature": 0, "logprobs": 3},
        {"temperature": 1.0, "seed": 11},
        {"temperature": 0.9, "seed": 12, "top_p": 0.9, "top_k": 40, "logprobs": 2},
        {"temperature": 1.0, "seed": 13, "n": 2},
        {"temperature": 0, "stop": [" the ", "."], "ignore_eos": False},
        {
            "temperature": 1.2,
            "seed": 14,
            "frequency_penalty": 0.8,
            "repetition_penalty": 1.1,
            "min_tokens": 9,
        },
        {"temperature": 0, "stream": False, "logprobs": 1, "prompt_logprobs": 1, "bad_words": ["and"]},
    ]
    bodies: list[Body] = []
    for i in range(16):
        kind = kinds[i % 8]
        said = f"Number {i}: tell me about {TOPICS[(i * 3) % 8]} and {subject}."
        body: Body = {"max_tokens": TOKENS, "ignore_eos": True, "stream": True, **kind}
        if i < 8:
            body |= {"prompt": said * (1 + i % 3)}
        else:
            body |= {"messages": [{"role": "user", "content": said}]}
            if "logprobs" in kind:
                body |= {"logprobs": True, "top_logprobs": kind["logprobs"]}
        bodies.append(body)
    return bodies


async def undisturbed(calls: Traffic, bodies: list[Body]) -> list[Answer]:
    answers = await calls.all(bodies)
    for body, answer in zip(bodies, answers, strict=True):
        assert answer.status == 200
        assert answer.error is None
        for choice in answer.choices.values():
            assert len(choice.finish) == 1
            assert (choice.prompt_logprobs is not None) == bool(body.get("prompt_logprobs"))
        assert answer.usage is not None
        assert answer.usage[1] == answer.num_tokens > 0
    return answers


@pytest.mark.parametrize("moment", ["prefill", "first tokens", "mid-decode", "near the end"])
async def test_sixteen_answers_are_the_same_when_the_engine_is_killed(calls: Traffic, moment: str) -> None:
    bodies = [{**b, "cache_salt": "new"} for b in sixteen(moment)]
    expected = await undisturbed(calls, [{**b, "cache_salt": "old"} for b in bodies])
    total_chunks = calls.num_chunks
    before = await calls.idle()
    running = asyncio.ensure_future(calls.all(bodies))
    if moment == "prefill":
        while await num_open(calls) < 16:
            await asyncio.sleep(0.001)
    else:
        share = {"first tokens": 0.0, "mid-decode": 0.5, "near the end": 0.85}[moment]
        await calls.until_chunks(1 + int(share * total_chunks))
    assert await num_open(calls) >= (12 if moment in ("prefill", "first tokens") else 1)
    calls.kill_engine()
    assert await running == expected
    after = await calls.idle()
    assert change(before, after, "octavo:engine_restarts_total") == 1
    check_counters(before, after, expected)


async def num_open(calls: Traffic) -> int:
    return int((await calls.http.get("/load")).json()["server_load"])


def check_counters(before: dict[str, float], after: dict[str, float], answers: list[Answer]) -> None:
    """Everything was counted once, whatever was computed twice."""
    usages = [a.usage or (0, 0, 0) for a in answers]
    choices = [c for a in answers for c in a.choices.values()]
    assert sum(success(before, after).values()) == len(choices)
    assert set(success(before, after)) <= {"stop", "length"}
    assert change(before, after, "vllm:generation_tokens_total") == sum(u[1] for u in usages)
    counted = change(before, after, "vllm:time_to_first_token_seconds_count")
    assert counted == change(before, after, "vllm:e2e_request_latency_seconds_count") == len(choices)
    prompts = sum(u[0] * len(a.choices) for a, u in zip(answers, usages, strict=True))
    assert change(before, after, "vllm:prompt_tokens_total") == prompts


async def test_killed_twice_in_a_row_with_other_requests(calls: Traffic) -> None:
    first, second = sixteen("rain")[:8], sixteen("snow")[8:]
    expected = await undisturbed(calls, first + second)
    for bodies, wanted in ((first, expected[:8]), (second, expected[8:])):
        running = asyncio.ensure_future(calls.all(bodies))
        await calls.until_chunks(12)
        calls.kill_engine()
        assert await running == wanted


LONG: Body = {"prompt": "For ever and ever, " * 150, "max_tokens": 200, "temperature": 0, "ignore_eos": True}


async def test_bb_117_two_crashes_without_a_token_between_end_a_request_and_the_others_live(
    calls: Traffic,
) -> None:
    """Both deaths find two long requests computing their prompts; others see one of them."""
    late = sixteen("fog")[8:]
    expected = await undisturbed(calls, late)
    before = await calls.idle()
    streamed = asyncio.ensure_future(calls.send({**LONG, "stream": True}))
    await calls.until_chunks(3)
    whole = asyncio.ensure_future(calls.send({**LONG, "cache_salt": "other"}))
    while await num_open(calls) < 2:
        await asyncio.sleep(0.001)
    calls.kill_engine()
    await calls.until_back()
    second = asyncio.ensure_future(calls.all(late))
    while await num_open(calls) < 10:
        await asyncio.sleep(0.001)
    calls.kill_engine()
    assert await second == expected
    cut, failed = await streamed, await whole
    assert cut.error is not None
    assert "2 times" in cut.error["message"]
    assert cut.only.token_ids
    assert cut.only.finish == []
    assert failed.status == 500
    assert failed.error is not None
    after = await calls.idle()
    assert success(before, after)["error"] == 2
    assert change(before, after, "octavo:engine_restarts_total") == 2
    longer = await calls.send({**LONG, "max_tokens": len(cut.only.token_ids)})
    assert longer.only.token_ids == cut.only.token_ids  # what came before the error was right


async def test_a_request_that_moves_on_between_two_crashes_lives(calls: Traffic) -> None:
    """It was in flight at both, and caused neither."""
    early, late = sixteen("wind")[:8], sixteen("fog")[8:]
    lasting: Body = {"prompt": "For ever and ever", "max_tokens": 700, "temperature": 0, "ignore_eos": True}
    expected = await undisturbed(calls, [*early, *late, lasting])
    before = await calls.idle()
    streamed = asyncio.ensure_future(calls.send({**lasting, "stream": True}))
    for bodies, wanted in ((early, expected[:8]), (late, expected[8:16])):
        running = asyncio.ensure_future(calls.all(bodies))
        await calls.until_chunks(30)
        calls.kill_engine()
        assert await running == wanted
    assert await streamed == expected[16]
    after = await calls.idle()
    assert "error" not in success(before, after)
    assert change(before, after, "octavo:engine_restarts_total") == 2


async def test_requests_that_arrive_while_the_engine_is_down_wait_for_the_next(calls: Traffic) -> None:
    bodies = sixteen("hail")[:6]
    expected = await undisturbed(calls, bodies)
    running = asyncio.ensure_future(calls.send(bodies[0]))
    await calls.until_chunks(1)
    calls.kill_engine()
    await calls.until_health(503, "down")
    waiting = asyncio.ensure_future(calls.all(bodies[1:]))
    assert (await calls.http.get("/server_info")).json()["state"] == "down"
    await calls.metrics()
    assert [await running, *await waiting] == expected
    assert (await calls.health())[0] == 200
    after = await calls.idle()
    assert after["vllm:kv_cache_usage_perc"] == 0


async def test_an_engine_that_dies_while_it_starts_is_no_second_crash(calls: Traffic) -> None:
    """No request was in it, so none is quarantined for it."""
    bodies = sixteen("ice")[:4]
    expected = await undisturbed(calls, bodies)
    running = asyncio.ensure_future(calls.all(bodies))
    await calls.until_chunks(4)
    dead = calls.kill_engine()
    await calls.until(lambda: calls.server.engine_pids() not in ([], [dead]))
    calls.kill_engine()
    assert await running == expected
    assert "did not start again" in calls.server.log
    await calls.until_health(200)


async def test_a_client_that_leaves_while_the_engine_is_down_is_an_abort(calls: Traffic) -> None:
    before = await calls.idle()
    body: Body = {"prompt": "Wait for", "max_tokens": 500, "temperature": 0, "ignore_eos": True}
    left = asyncio.ensure_future(calls.send({**body, "stream": True}))
    stays = asyncio.ensure_future(calls.send({**body, "max_tokens": 40}))
    await calls.until_chunks(3)
    calls.kill_engine()
    await calls.until_health(503, "down")
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    answer = await stays
    assert answer.only.finish == ["length"]
    after = await calls.idle()
    assert success(before, after) == {"abort": 1, "length": 1}


async def test_a_full_pool_and_a_signal_to_end_change_nothing(smollm2_path: str) -> None:
    """Killed while requests are preempted; then killed and told to end at once: the drain waits for the next engine."""
    bodies: list[Body] = [
        {
            "prompt": f"{i} and {i * i} make " * 38,
            "max_tokens": 64,
            "temperature": i % 2,
            "seed": i,
            "logprobs": 1,
            "ignore_eos": True,
            "stream": i % 3 > 0,
        }
        for i in range(6)
    ]
    with launched(smollm2_path, "--num-blocks", "64", "--max-num-seqs", "6") as server:
        async with traffic(server) as calls:
            expected = [(await undisturbed(calls, [b]))[0] for b in bodies]
            running = asyncio.ensure_future(calls.all(bodies))
            await calls.until_chunks(40)
            calls.kill_engine()
            assert await running == expected
            assert (await calls.idle())["vllm:num_preemptions_total"] > 0
            running = asyncio.ensure_future(calls.all(bodies[:3]))
            await calls.until_chunks(10)
            calls.kill_engine()
            server.process.send_signal(signal.SIGTERM)
            assert await running == expected[:3]
        assert await asyncio.to_thread(server.wait) == 0
        assert server.engine_pids() == []


async def test_engines_that_end_before_any_step_are_not_replaced_for_ever(smollm2_path: str) -> None:
    """A finished step forgets the deaths before it; the one death too many ends the server, with an error."""
    body: Body = {"prompt": "One", "max_tokens": 2, "temperature": 0}
    with launched(smollm2_path, "--max-engine-restarts", "1") as server:
        async with traffic(server) as calls:
            calls.kill_engine()
            await calls.until_back()
            assert (await calls.send(body)).status == 200
            for _ in range(2):  # the first engine of these two had finished a step
                calls.kill_engine()
                await calls.until_back()
            calls.kill_engine()
        assert server.wait() == 1
        assert "ended 2 times in a row without a finished step" in server.log
        assert "--max-engine-restarts allows 1" in server.log
