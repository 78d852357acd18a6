"""CPU microseconds that the API process spends on a streamed token, with many streams at once.

    PYTHONPATH=src:. python -m benchmarks.api_cost --streams 64 --model smollm2

Three processes over real sockets: a scripted engine that sends every stream a token at each step, the API
process as `serve` makes it (uvicorn, the whole application, the model's own tokenizer and template), and a
client that reads bytes. Answers of two lengths are measured and their difference is taken, so that what
a request costs once is not charged to its tokens. Time is CPU time of the API process, so other work on
the machine disturbs little. `--profile FILE` writes what cProfile saw of the longer answers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import json
import os
import select
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

TEXT = "The lighthouse keeper climbed the stairs every evening and lit the lamp for the ships at sea. " * 8


def main(argv: list[str]) -> int:
    if argv[:1] == ["--engine"]:
        return engine(argv[1], argv[2], float(argv[3]), [int(i) for i in argv[4].split(",")])
    if argv[:1] == ["--client"]:
        return client(int(argv[1]), int(argv[2]), [int(n) for n in argv[3].split(",")], json.loads(argv[4]))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="whose tokenizer (default: %(default)s)")
    parser.add_argument("--streams", type=int, default=64, help="at once (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=200, help="of the longer answer (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of answers (default: %(default)s)")
    parser.add_argument("--step-ms", type=float, default=15.0, help="pause between steps")
    parser.add_argument("--body", default="{}", help="more fields of every request, as JSON")
    parser.add_argument("--profile", help="file for the profile of the longer answers")
    given = parser.parse_args(argv)
    import uvloop

    print(json.dumps(uvloop.run(measure(given))))
    return 0


async def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Serves both lengths `rounds` times to the client child; microseconds per token of each pair."""
    from octavo.api.app import create_app
    from octavo.launch.http import http_server
    from octavo.wire.addresses import new_addresses
    from octavo.wire.sockets import ClientEndpoint

    lengths = [8, given.tokens] * given.rounds
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        addresses = new_addresses(folder, "engine")
        state = make_state(given.model)
        ids = state.codec.encode(TEXT, False)
        endpoint = ClientEndpoint(addresses)
        stack.callback(endpoint.close)
        words = (addresses.to_engine, addresses.from_engine, str(given.step_ms), ",".join(map(str, ids)))
        start_child(stack, "--engine", *words)
        state.client.on_engine_up(endpoint)
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        server = http_server(create_app(state), state.server)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        port = str(listener.getsockname()[1])
        lines = ",".join(map(str, lengths))
        child = start_child(stack, "--client", port, str(given.streams), lines, given.body)
        cpu_s, profile = await follow(child, lengths, cProfile.Profile() if given.profile else None)
        if profile is not None:
            profile.dump_stats(given.profile)
        server.should_exit = True
        await serving
    tokens = given.streams * (given.tokens - 8)
    own, kernel = (
        [1e6 * (long[i] - short[i]) / tokens for short, long in zip(cpu_s[::2], cpu_s[1::2], strict=True)]
        for i in (0, 1)
    )
    both = [a + b for a, b in zip(own, kernel, strict=True)]
    return {
        "what": "CPU of the API process",
        "streams": given.streams,
        "us_per_token": round(statistics.median(both), 1),
        "of_these_in_the_kernel": round(statistics.median(kernel), 1),
        "least_us_per_token": round(min(both), 1),
        "us_per_request": round(1e6 * statistics.median(map(sum, cpu_s[::2])) / given.streams),
    }


async def follow(
    child: subprocess.Popen[str], lengths: list[int], profile: cProfile.Profile | None
) -> tuple[list[tuple[float, float]], cProfile.Profile | None]:
    """CPU seconds of this process (own, in the kernel) for each batch: the child says when it begins, and when it has all."""
    loop = asyncio.get_running_loop()
    assert child.stdout is not None and child.stdin is not None
    spent: list[tuple[float, float]] = []
    for length in lengths:
        is_profiled = profile is not None and length > 8
        before = os.times()
        if is_profiled and profile is not None:
            profile.enable()
        child.stdin.write("go\n")
        child.stdin.flush()
        came = loop.create_future()
        loop.add_reader(child.stdout.fileno(), came.set_result, None)
        await came
        loop.remove_reader(child.stdout.fileno())
        if is_profiled and profile is not None:
            profile.disable()
        after = os.times()
        spent.append((after.user - before.user, after.system - before.system))
        said = child.stdout.readline()
        if said != "done\n":
            raise SystemExit(f"the client failed: {said}")
    return spent, profile


def make_state(model: str) -> Any:
    """The state of an API process, as launch makes it, with logs of requests off."""
    from msgspec.structs import replace

    from octavo.api.client import EngineClient
    from octavo.api.state import ApiState
    from octavo.config.asked import Asked
    from octavo.config.model import ModelAsked
    from octavo.launch.plan import make_plan
    from octavo.launch.text import chat_template, generation_config, load_codec

    asked = Asked(model=ModelAsked(model=model))
    planned = make_plan(asked)
    return ApiState.build(
        client=EngineClient(),
        tokenizer=load_codec(planned.source, asked),
        server=replace(planned.resolved.server, access_log=False),
        engine=planned.resolved.engine,
        generation_config=generation_config(planned.source, asked),
        chat_template=chat_template(planned.source, asked),
    )


def start_child(stack: contextlib.ExitStack, *words: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.api_cost", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    stack.callback(child.wait)
    stack.callback(child.kill)
    return child


# ---- the engine child -----------------------------------------------------------------------------


def engine(address_in: str, address_out: str, step_ms: float, script: list[int]) -> int:
    """Every `step_ms`, one message with a token for each request; with `max_tokens` it ends."""
    from octavo.wire.messages import (
        Add,
        FinishReason,
        Outputs,
        RequestRecord,
        TokenDelta,
        TokenLogprobs,
    )
    from octavo.wire.sockets import EngineEndpoint

    endpoint = EngineEndpoint(address_in, address_out)
    running: dict[str, tuple[Any, int]] = {}
    while True:
        select.select([endpoint.fd], [], [], step_ms / 1000 if running else 0.05)
        for message in endpoint.recv():
            if isinstance(message, Add):
                running[message.request.id] = (message.request, 0)
        time.sleep(step_ms / 1000)
        deltas = []
        for request_id, (request, made) in list(running.items()):
            token = script[made % len(script)]
            delta = TokenDelta(id=request_id, token_ids=[token])
            if (top := request.params.logprobs) is not None:
                delta.logprobs = [TokenLogprobs(token, -0.25, 1, script[:top], [-0.5] * top)]
            if not made:
                delta.num_cached = 0
            running[request_id] = (request, made + 1)
            if made + 1 == request.max_tokens:
                delta.finish = FinishReason.LENGTH
                delta.record = RequestRecord(num_prompt=len(request.prompt), num_generated=made + 1)
                del running[request_id]
            deltas.append(delta)
        if deltas:
            endpoint.send(Outputs(deltas=deltas))


# ---- the client child -----------------------------------------------------------------------------


def client(port: int, streams: int, lengths: list[int], more: dict[str, Any]) -> int:
    """For each length, at "go": so many chats at once, read to their ends."""
    for length in lengths:
        if not sys.stdin.readline():
            return 1
        selector = selectors.DefaultSelector()
        for i in range(streams):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(request_bytes(f"Story number {i}.", length, more))
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ, bytearray())
        left = streams
        while left:
            for key, _ in selector.select():
                data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                key.data.extend(data)
                if not data:
                    left -= 1
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                    if not (b" 200 " in key.data[:20] and b"data: [DONE]" in key.data[-40:]):
                        print(f"answer {bytes(key.data[-400:])!r}", flush=True)
                        return 1
        print("done", flush=True)
    sys.stdin.readline()
    return 0


def request_bytes(text: str, length: int, more: dict[str, Any]) -> bytes:
    body = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": length,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        **more,
    }
    data = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + data


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
