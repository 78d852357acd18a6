"""Over a real socket: the unmodified openai client, disconnects, keep-alive, restarts and drains in mid-stream."""

from __future__ import annotations

import asyncio
import logging

import httpx
import openai
import pytest
from tests.fakes.api_world import USER, World, on_socket, sse, world
from tests.fakes.scripted_engine import ScriptedEngine
from tests.fakes.toy_codec import BYTE_0, ToyCodec

from octavo.api.limits import Limits
from octavo.wire.messages import EngineRequest

ENDLESS = [BYTE_0 + ord("a")] * 1900


async def until(condition: object, tries: int = 4000) -> None:
    for _ in range(tries):
        if condition():  # type: ignore[operator]
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not happen")


async def test_openai_client_streams_a_chat_with_usage() -> None:
    async with (
        world("Hello world 😀 ok") as w,
        on_socket(w.app) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as client,
    ):
        stream = await client.chat.completions.create(
            model="toy",
            messages=USER,
            stream=True,
            stream_options={"include_usage": True},  # type: ignore[arg-type]
        )
        text, reasons, usage = "", [], None
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasons += [choice.finish_reason] if choice.finish_reason else []
            usage = chunk.usage or usage
    assert text == "Hello world 😀 ok"
    assert reasons == ["stop"]
    assert usage is not None
    assert usage.completion_tokens == len(ToyCodec().encode(text, False)) + 1
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 0


async def test_openai_client_gets_choices_logprobs_stops_and_errors() -> None:
    def script(request: EngineRequest) -> list[int]:
        return ToyCodec().encode("Hello" + " ok" * (request.seed % 3), False)

    async with (
        world(script) as w,
        on_socket(w.app) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
    ):
        chat = client.chat.completions
        three = await chat.create(model="toy", messages=USER, n=3, seed=3)  # type: ignore[arg-type]
        assert [c.message.content for c in three.choices] == ["Hello", "Hello ok", "Hello ok ok"]
        scored = await chat.create(model="toy", messages=USER, logprobs=True, top_logprobs=2)  # type: ignore[arg-type]
        assert scored.choices[0].logprobs is not None
        assert scored.choices[0].logprobs.content is not None
        assert scored.choices[0].logprobs.content[0].token == "Hello"
        stopped = await chat.create(model="toy", messages=USER, seed=5, stop=["ok"])  # type: ignore[arg-type]
        assert stopped.choices[0].message.content == "Hello "
        legacy = await client.completions.create(model="toy", prompt="Hello", logprobs=2, echo=True, seed=3)
        assert legacy.choices[0].text == "HelloHello"
        assert [m.id async for m in client.models.list()] == ["toy", "alias"]
        with pytest.raises(openai.NotFoundError):
            await chat.create(model="gone", messages=USER)  # type: ignore[arg-type]
        with pytest.raises(openai.BadRequestError) as caught:
            await chat.create(model="toy", messages=USER, temperature=3)  # type: ignore[arg-type]
        assert caught.value.param == "temperature"


async def test_openai_client_sees_a_fault_in_the_stream() -> None:
    """BB-117."""
    async with (
        world("Hello world ok ok ok", fail_at=3) as w,
        on_socket(w.app) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as client,
    ):
        stream = await client.chat.completions.create(model="toy", messages=USER, stream=True)  # type: ignore[arg-type]
        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass


@pytest.mark.parametrize("stream", [True, False])
async def test_bb_108_bb_030_a_client_that_leaves_is_aborted_and_counted(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "octavo.request")
    async with (
        world(lambda _: ENDLESS, delay_s=0.002) as w,
        on_socket(w.app) as url,
        httpx.AsyncClient() as http,
    ):
        body = {"messages": USER, "stream": stream, "ignore_eos": True, "max_tokens": 1900}
        await _leave_early(http, url, body, w)
        await until(lambda: w.engine.num_running == 0)
        await until(lambda: w.state.logs.num_ending == 0 and w.state.logs.num_open == 0)
        made = w.engine.generated
        await asyncio.sleep(0.02)
        assert w.engine.generated == made
        assert len(w.engine.aborted) == 1
        series = await w.metrics()
        assert series['vllm:request_success_total{finished_reason="abort"}'] == 1
        assert series["vllm:generation_tokens_total"] == made
        assert series["vllm:num_requests_running"] == 0
    (line,) = [r.getMessage() for r in caplog.records if r.name == "octavo.request"]
    assert "abort" in line
    assert f"{made} generated" in line


async def _leave_early(http: httpx.AsyncClient, url: str, body: dict[str, object], w: World) -> None:
    if body["stream"]:
        async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
            seen = 0
            async for _ in answer.aiter_lines():
                seen += 1
                if seen > 10:
                    break
        return
    task = asyncio.create_task(http.post(f"{url}/v1/chat/completions", json=body))
    await until(lambda: w.engine.generated >= 5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_leaving_during_the_prefill_aborts() -> None:
    async with world() as w, on_socket(w.app) as url, httpx.AsyncClient() as http:
        w.engine.hold.clear()
        for stream in (True, False):
            body = {"messages": USER, "stream": stream}
            task = asyncio.create_task(http.post(f"{url}/v1/chat/completions", json=body))
            await until(lambda: w.engine.num_running == 1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await until(lambda: w.engine.num_running == 0)
        assert len(w.engine.aborted) == 2


async def test_all_choices_are_aborted_together() -> None:
    async with (
        world(lambda _: ENDLESS, delay_s=0.002) as w,
        on_socket(w.app) as url,
        httpx.AsyncClient() as http,
    ):
        body = {"messages": USER, "stream": True, "n": 3, "max_tokens": 1900}
        await _leave_early(http, url, body, w)
        await until(lambda: w.engine.num_running == 0)
        assert len(w.engine.aborted) == 3


async def test_streams_survive_the_death_of_the_engine() -> None:
    text = "Hello world ABC DEFGHIJ KLM ok ok the end 😀 and more words to come"
    async with world(text, delay_s=0.002) as w, on_socket(w.app) as url, httpx.AsyncClient() as http:
        bodies = [{"messages": USER, "stream": i % 2 == 0, "stop": ["never"]} for i in range(16)]
        tasks = [asyncio.create_task(http.post(f"{url}/v1/chat/completions", json=b)) for b in bodies]
        await until(lambda: w.engine.generated > 60)
        w.engine.kill()
        w.client.on_engine_down()
        assert (await http.get(f"{url}/health")).status_code == 503
        second = ScriptedEngine(w.engine.codec, text)
        w.client.on_engine_up(second)
        for body, answer in zip(bodies, await asyncio.gather(*tasks), strict=True):
            assert answer.status_code == 200
            if body["stream"]:
                chunks, done = sse(answer.text)
                assert done
                joined = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
            else:
                joined = answer.json()["choices"][0]["message"]["content"]
            assert joined == text
        await second.close()


async def test_bb_113_draining_refuses_new_work_and_finishes_old() -> None:
    async with (
        world("Hello world ok", delay_s=0.002) as w,
        on_socket(w.app) as url,
        httpx.AsyncClient() as http,
    ):
        w.engine.hold.clear()
        running = asyncio.create_task(
            http.post(f"{url}/v1/chat/completions", json={"messages": USER, "stream": True})
        )
        await until(lambda: w.engine.num_running == 1)
        w.state.drain()
        assert (await http.get(f"{url}/health")).status_code == 503
        refused = await http.post(f"{url}/v1/chat/completions", json={"messages": USER})
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        w.engine.hold.set()
        chunks, done = sse((await running).text)
    assert done
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_quiet_streams_are_kept_alive() -> None:
    limits = Limits(template_workers=1, sse_keep_alive_s=0.02)
    async with world("Hello world", limits=limits) as w, on_socket(w.app) as url, httpx.AsyncClient() as http:
        w.engine.hold.clear()
        running = asyncio.create_task(
            http.post(f"{url}/v1/chat/completions", json={"messages": USER, "stream": True})
        )
        await until(lambda: w.engine.num_running == 1)
        await asyncio.sleep(0.1)
        w.engine.hold.set()
        text = (await running).text
    assert ": keep-alive" in text
    assert sse(text)[1]


async def test_a_dead_engine_refuses_and_leaves_no_open_record() -> None:
    async with world() as w:
        w.engine.hold.clear()
        running = asyncio.create_task(w.chat())
        await until(lambda: w.engine.num_running == 1)
        w.client.close("the server was shut down before this request had ended")
        ended = await running
        assert ended.status_code == 503
        assert ended.json()["error"]["type"] == "ServiceUnavailableError"
        assert (await w.chat()).status_code == 503
        assert (await w.http.get("/health")).status_code == 503
        assert w.state.logs.num_ending == w.state.logs.num_open == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/completions"])
async def test_a_stream_that_the_end_of_the_server_cuts_says_503(path: str) -> None:
    """Also after the first piece: in the error event, since the status line has gone."""
    body = {"max_tokens": 100, "stream": True, "messages": USER, "prompt": "Hello"}
    del body["prompt" if "completions" not in path or "chat" in path else "messages"]
    async with world(lambda _: ENDLESS, delay_s=0.001) as w:
        pieces: list[str] = []
        async with (
            on_socket(w.app) as url,
            httpx.AsyncClient(timeout=30) as client,
            client.stream("POST", url + path, json=body) as answer,
        ):
            async for line in answer.aiter_lines():
                if not pieces:
                    w.client.close("the server was shut down before this request had ended")
                pieces.append(line)
    text = "\n".join(pieces)
    assert "the server was shut down" in text
    assert ('"code":503' in text) or ('"type":"overloaded_error"' in text)
