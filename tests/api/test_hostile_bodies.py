"""Bodies made to hurt: each is answered soon, with a 400 that names the field, and the server goes on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest
from tests.fakes.api_world import USER, on_socket, world

from octavo.api.limits import Limits
from octavo.launch.http import BoundedHttp

MANY = 200_000  # bad entries; an error for each would take seconds


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "x", "stop": [1] * MANY}, "stop"),
        ("/v1/completions", {"prompt": [None] * MANY}, "prompt"),
        ("/v1/completions", {"prompt": [[1, "a"]] * MANY}, "prompt"),
        ("/v1/completions", {"prompt": "x", "bad_words": [1] * MANY}, "bad_words"),
        ("/v1/completions", {"prompt": "x", "stop_token_ids": ["a"] * MANY}, "stop_token_ids"),
        ("/v1/completions", {"prompt": "x", "allowed_token_ids": ["a"] * MANY}, "allowed_token_ids"),
        ("/v1/completions", {"prompt": "x", "logit_bias": {str(i): "a" for i in range(MANY)}}, "logit_bias"),
        ("/v1/completions", {"prompt": "x", "logit_bias": {str(i): 1 for i in range(1 << 19)}}, "logit_bias"),
        ("/v1/completions", {"prompt": "x", "stream_options": {str(i): 1 for i in range(MANY)}}, "stream_options"),
        ("/v1/chat/completions", {"messages": [1] * MANY}, "messages"),
        ("/v1/chat/completions", {"messages": [{}] * 16_000}, "messages[0].role"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": ["a"] * MANY}]}, "messages[0].content"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "tool_calls": [1] * MANY}]}, "messages[0].tool_calls"),
        ("/v1/chat/completions", {"messages": USER, "tools": [1] * MANY}, "tools"),
        ("/detokenize", {"tokens": [-1] * MANY}, "tokens"),
        ("/v1/completions", {"prompt": "x", "stream_interval": 10**18}, "stream_interval"),
        ("/v1/completions", {"prompt": "x", "repetition_penalty": 1e-46}, "repetition_penalty"),
        ("/v1/completions", {"prompt": "x", "repetition_penalty": 1e300}, "repetition_penalty"),
    ],
)  # fmt: skip
async def test_a_bad_field_is_refused_at_its_first_error(path: str, body: dict[str, Any], param: str) -> None:
    async with world() as w:
        started = time.process_time()
        answer = await w.post(path, body)
        elapsed_s = time.process_time() - started
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith(param)
        assert elapsed_s < 15  # a second; work that grows with the square would be minutes
        assert (await w.complete()).status_code == 200


async def test_arguments_of_tool_calls_that_are_nested_too_deeply_are_kept_as_text() -> None:
    call = {"function": {"name": "f", "arguments": "[" * 100_000}}
    async with world() as w:
        answer = await w.chat(messages=[{"role": "assistant", "tool_calls": [call]}, *USER])
        assert answer.status_code == 200


async def test_any_top_k_reaches_the_engine() -> None:
    async with world() as w:
        assert (await w.complete(temperature=1, top_k=2**63 - 1)).status_code == 200


async def test_what_choices_carry_is_bounded_in_all() -> None:
    bias = {str(i): 1 for i in range(64)}
    async with world(limits=Limits(max_listed_ids=1_000, max_prompt_scores=1_000)) as w:
        answer = await w.complete(temperature=1, n=16, logit_bias=bias)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
        assert (await w.complete(temperature=1, n=15, logit_bias=bias)).status_code == 200
        answer = await w.complete(prompt=["x" * 50] * 10, prompt_logprobs=5)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt_logprobs")
        assert (await w.complete(prompt="x" * 300, prompt_logprobs=5)).status_code == 200


async def test_the_engine_gets_the_choices_of_a_large_request_a_few_at_a_time() -> None:
    """The world's engine runs 8 at once: one more is kept ready, the others wait on this side."""
    async with world() as w:
        w.engine.hold.clear()
        large = asyncio.create_task(w.complete(temperature=1, n=100, max_tokens=3))
        while len(w.engine.seen) < 9:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        assert len(w.engine.seen) == 9
        assert w.client.num_unfinished == 100  # admission and draining count all of them
        small = asyncio.create_task(w.complete(max_tokens=3))
        while len(w.engine.seen) < 10:
            await asyncio.sleep(0.001)
        w.engine.hold.set()
        assert (await small).status_code == 200
        answer = await large
        assert [c["index"] for c in answer.json()["choices"]] == list(range(100))
        assert all(c["text"] == answer.json()["choices"][0]["text"] for c in answer.json()["choices"])
        metrics = await w.metrics()
        assert sum(v for k, v in metrics.items() if k.startswith("vllm:request_success_total")) == 101
        assert w.client.num_unfinished == w.client.num_ending == 0


async def test_a_large_request_that_is_dropped_leaves_nothing_behind() -> None:
    async with world() as w:
        w.engine.hold.clear()
        large = asyncio.create_task(w.complete(temperature=1, n=100))
        while len(w.engine.seen) < 9:
            await asyncio.sleep(0.001)
        large.cancel()
        await asyncio.gather(large, return_exceptions=True)
        w.engine.hold.set()
        while w.client.num_unfinished or w.client.num_ending:
            await asyncio.sleep(0.001)
        assert len(w.engine.seen) == 9
        metrics = await w.metrics()
        assert metrics['vllm:request_success_total{finished_reason="abort"}'] == 100


async def test_choices_that_wait_for_their_turn_survive_a_crash() -> None:
    async with world() as w:
        w.engine.hold.clear()
        large = asyncio.create_task(w.complete(temperature=1, n=40))
        while len(w.engine.seen) < 9:
            await asyncio.sleep(0.001)
        w.client.on_engine_down()
        w.engine.seen.clear()
        w.engine.hold.set()
        w.client.on_engine_up(w.engine)
        answer = await large
        assert answer.status_code == 200
        assert len(answer.json()["choices"]) == 40


async def _sent(port: int, *parts: bytes) -> bytes:
    """What the server says to raw bytes; empty when it hangs up without a word."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        return await asyncio.wait_for(reader.read(200), 10)
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_headers_and_trailers_end_or_the_connection_does() -> None:
    async with world() as w, on_socket(w.app, http=BoundedHttp) as url:
        port = int(url.rsplit(":", 1)[1])
        post = b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        endless = [b"a" * 20_000] * 20
        for head in (
            b"GET /",
            b"GET / HTTP/1.1\r\nX: ",
            post + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ",
        ):
            answer = await _sent(port, head, *endless)
            assert b" 200 " not in answer.split(b"\r\n")[0]
        lines = [b"X-%d: a\r\n" % i * 200 for i in range(400)]
        assert b" 200 " not in await _sent(port, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n", *lines)
        fine = (
            b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nX: "
            + b"a" * 40_000
            + b"\r\n\r\n"
        )
        assert b" 200 " in await _sent(port, fine)
        body = b'{"prompt": "' + b"x" * 300_000 + b'"}'
        large = post + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        assert (await _sent(port, large)).startswith(b"HTTP/1.1 ")


async def test_a_client_that_leaves_in_its_body_is_no_fault_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world() as w, on_socket(w.app) as url:
        port = int(url.rsplit(":", 1)[1])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        head += b"Content-Length: 99\r\n\r\n{"
        writer.write(head)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        await writer.wait_closed()
        series = 'http_requests_total{handler="/tokenize",method="POST",status="%s"}'
        while series % "4xx" not in (metrics := await w.metrics()):
            assert series % "5xx" not in metrics
            await asyncio.sleep(0.005)
        assert "unexpected error" not in caplog.text
