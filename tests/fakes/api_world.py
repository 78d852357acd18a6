"""An API process over a scripted engine: in process (httpx), or on a real socket (any client)."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import uvicorn
from starlette.applications import Starlette
from tests.fakes.scripted_engine import Script, ScriptedEngine
from tests.fakes.toy_codec import ToyCodec

from octavo.api.app import create_app
from octavo.api.client import EngineClient
from octavo.api.limits import Limits
from octavo.api.state import ApiState
from octavo.api.template_pool import TemplatePool
from octavo.config.plan import CachePlan, EnginePlan, ExecutorPlan, SchedulerPlan, ServerPlan


class _SharedPool(TemplatePool):
    """One template process for all worlds with ordinary limits; it ends with the test run."""

    def close(self) -> None:
        pass


_SHARED_POOL = _SharedPool(Limits(template_workers=1))
atexit.register(TemplatePool.close, _SHARED_POOL)

SMOLLM2_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USER = [{"role": "user", "content": "Say it."}]


def engine_plan(
    vocab_size: int, *, strict: bool = False, policy: str = "fcfs", max_model_len: int = 2048
) -> EnginePlan:
    return EnginePlan(
        model="toy",
        executor=ExecutorPlan(name="native", isa="generic", num_threads=1, weights="f32"),
        cache=CachePlan(block_size=16, num_blocks=128, dtype="f32"),
        scheduler=SchedulerPlan(
            max_num_seqs=8, max_num_batched_tokens=512, max_model_len=max_model_len, policy=policy
        ),
        seed=0,
        vocab_size=vocab_size,
        strict=strict,
        table=[["executor", "native", "the default"]],
    )


@dataclass
class World:
    engine: ScriptedEngine
    client: EngineClient
    state: ApiState
    app: Starlette
    http: httpx.AsyncClient

    async def post(self, path: str, body: Mapping[str, Any], **headers: str) -> httpx.Response:
        return await self.http.post(path, json=dict(body), headers=headers)

    async def chat(self, **body: Any) -> httpx.Response:
        return await self.post("/v1/chat/completions", {"messages": USER, **body})

    async def complete(self, **body: Any) -> httpx.Response:
        return await self.post("/v1/completions", {"prompt": "Hello", **body})

    async def metrics(self) -> dict[str, float]:
        """Series by name and labels, without model_name and engine."""
        text = (await self.http.get("/metrics")).text
        found = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = (
                    name.replace('engine="0",', "").replace('model_name="toy"', "").replace('engine="0"', "")
                )
                found[name.replace("{,", "{").replace(",}", "}").replace("{}", "")] = float(value)
        return found


@contextlib.asynccontextmanager
async def world(
    script: Script | str = "Hello",
    *,
    codec: ToyCodec | None = None,
    server: Mapping[str, Any] | None = None,
    strict: bool = False,
    policy: str = "fcfs",
    generation_config: Mapping[str, Any] | None = None,
    template: str | None = SMOLLM2_TEMPLATE,
    limits: Limits | None = None,
    max_model_len: int = 2048,
    **engine_options: Any,
) -> AsyncIterator[World]:
    codec = codec or ToyCodec()
    engine = ScriptedEngine(codec, script, **engine_options)
    client = EngineClient(progress=lambda: (engine.steps, False))
    client.on_engine_up(engine)
    state = ApiState.build(
        client=client,
        tokenizer=codec,
        server=ServerPlan(
            **{"host": "127.0.0.1", "port": 0, "served_names": ("toy", "alias"), **(server or {})}
        ),
        engine=engine_plan(codec.vocab_size, strict=strict, policy=policy, max_model_len=max_model_len),
        generation_config=generation_config,
        chat_template=template,
        limits=limits,
        pool=_SHARED_POOL if limits is None else None,
    )
    app = create_app(state)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as http,
    ):
        try:
            yield World(engine, client, state, app, http)
        finally:
            client.close()
            await engine.close()


class _Quiet(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def on_socket(app: Starlette, *, http: Any = "auto") -> AsyncIterator[str]:
    """Serves the app on a free port of this event loop; gives its base URL."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, http=http, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=2
    )
    server = _Quiet(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()


def sse(text: str) -> tuple[list[dict[str, Any]], bool]:
    """(messages, was [DONE] last)."""
    frames = [f for f in text.split("\n\n") if f.startswith("data: ")]
    is_done = bool(frames) and frames[-1] == "data: [DONE]"
    return [json.loads(f[6:]) for f in frames if f != "data: [DONE]"], is_done


def fold_chat(chunks: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """What a client gets by adding up the chunks of a chat stream."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            into = choices.setdefault(
                part["index"],
                {"text": "", "logprobs": [], "token_ids": [], "finish": [], "stop_reason": None},
            )
            into["text"] += part["delta"].get("content") or ""
            into["logprobs"] += (part["logprobs"] or {"content": []})["content"]
            into["token_ids"] += part.get("token_ids", [])
            if part["finish_reason"] is not None:
                into["finish"].append(part["finish_reason"])
                into["stop_reason"] = part["stop_reason"]
    return choices


def encode_json(value: Any) -> bytes:
    return msgspec.json.encode(value)
