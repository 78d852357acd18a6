"""Counters agree because one record feeds them; health tells progress; labels are closed."""

from __future__ import annotations

import asyncio
import logging

import pytest
from msgspec import structs
from tests.fakes.api_world import world
from tests.fakes.scripted_engine import ScriptedEngine, random_groups
from tests.fakes.toy_codec import ToyCodec

from octavo.api.client import EngineClient
from octavo.api.health import HealthWatch
from octavo.config.kv_events import KVEventsPlan
from octavo.wire.messages import EngineRequest
from octavo.wire.sampling import SamplingParams


async def test_bb_118_counts_agree(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "octavo.request")
    async with world("Hello world ok ok ok", group=random_groups(3)) as w:
        bodies = [{"max_tokens": 2}, {}, {"stop": ["world"]}, {"n": 3}, {"stream": True}] * 4
        answers = await asyncio.gather(*(w.chat(**b) for b in bodies))
        usage = [a.json()["usage"] for a in answers if a.headers["content-type"] == "application/json"]
        series = await w.metrics()
    choices = sum(b.get("n", 1) for b in bodies)  # type: ignore[misc]
    finished = sum(v for k, v in series.items() if k.startswith("vllm:request_success_total"))
    names = [
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_queue_time_seconds",
    ]
    assert {series[f"vllm:{n}_count"] for n in names} == {finished} == {choices}
    assert series["vllm:request_params_n_count"] == len(bodies)
    assert series["vllm:generation_tokens_total"] == series["vllm:request_generation_tokens_sum"]
    streamed = 4 * (len(ToyCodec().encode("Hello world ok ok ok", False)) + 1)
    assert series["vllm:generation_tokens_total"] == sum(u["completion_tokens"] for u in usage) + streamed
    assert series["vllm:request_max_num_generation_tokens_count"] == len(bodies)
    assert sum(r.name == "octavo.request" for r in caplog.records) == choices


async def test_bb_120_clients_cannot_make_series() -> None:
    async with world() as w:
        await w.chat()
        await w.http.get("/nope")
        before = None
        for i in range(40):
            await w.http.request(f"M{i}", f"/path/{i}")
            await w.http.request("GET", f"/v1/models/m{i}")
            await w.chat(model=f"m{i}")
            if i == 2:
                before = set(await w.metrics())
        assert set(await w.metrics()) == before


async def test_gauges_and_counters_of_the_engine_are_there() -> None:
    async with world() as w:
        await w.chat()
        series = await w.metrics()
    for name in (
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total",
        "vllm:prompt_tokens_total", "vllm:iteration_tokens_total_count", "vllm:inter_token_latency_seconds_count",
        'vllm:num_requests_waiting_by_reason{reason="capacity"}',
        'http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"}',
    ):  # fmt: skip
        assert name in series


async def test_models_info_version_load_and_page() -> None:
    async with world() as w:
        assert (await w.http.get("/v1/models/alias")).json()["max_model_len"] == 2048
        assert (await w.http.get("/v1/models/none")).status_code == 404
        info = (await w.http.get("/server_info")).json()
        assert info["table"] == [["executor", "native", "the default"]]
        assert (await w.http.get("/load")).json() == {"server_load": 0}
        page = (await w.http.get("/")).text
    assert "v1/chat/completions" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "src=" not in page


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_bb_112_health_tells_stalled_from_busy_and_idle() -> None:
    steps, pending, clock = 0, False, Clock()
    client = EngineClient(progress=lambda: (steps, pending))
    watch = HealthWatch(client, stall_limit_s=8.0, clock=clock)
    assert watch.state == "starting"
    client.on_engine_up(ScriptedEngine(ToyCodec()))

    def after(seconds: float) -> str:
        for _ in range(int(seconds * 4)):
            clock.now += 0.25
            watch.sample()
        return watch.state

    assert after(100) == "idle"
    pending = True
    assert after(5) == "progressing"
    assert after(5) == "stalled"
    steps += 1
    assert after(0.25) == "progressing"
    for _ in range(20):  # a long prefill that moves
        steps += 1
        assert after(6) == "progressing"
    pending = False
    assert after(60) == "idle"
    watch.is_draining = True
    assert not watch.is_healthy
    watch.is_draining = False
    client.on_engine_down()
    assert watch.state == "down"
    client.close()
    assert watch.state == "dead"


async def test_a_long_first_step_is_not_a_stall() -> None:
    clock = Clock()
    client = EngineClient(progress=lambda: (0, True))
    watch = HealthWatch(client, stall_limit_s=8.0, max_step_tokens=2048, clock=clock)
    engine = ScriptedEngine(ToyCodec())
    engine.hold.clear()
    client.on_engine_up(engine)
    request = EngineRequest(id="a", prompt=[20] * 5000, params=SamplingParams(), max_tokens=5, seed=0)
    stream = client.submit(request)
    task = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    watch.sample()
    clock.now = 20.0
    assert watch.state == "progressing"
    clock.now = 30.0
    assert watch.state == "stalled"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    client.close()
    await engine.close()


async def test_parameters_are_logged_when_asked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "octavo.request")
    async with world(server={"log_requests": True}) as w:
        await w.chat(temperature=0.25)
    assert "temperature=0.25" in caplog.records[0].getMessage()


async def test_where_kv_events_are_published() -> None:
    async with world() as w:
        assert (await w.http.get("/kv_event_sources")).json() == {}
        events = KVEventsPlan(publisher="zmq", topic="t")
        w.state.engine = structs.replace(
            w.state.engine, cache=structs.replace(w.state.engine.cache, events=events)
        )
        (rank, told) = next(iter((await w.http.get("/kv_event_sources")).json().items()))
    assert rank == "0" and told["topic"] == "t" and told["endpoint"] == "tcp://127.0.0.1:5557"
