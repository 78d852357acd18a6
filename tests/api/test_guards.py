"""Keys, sizes, templates, error texts: one request cannot hurt another, and nothing is open by accident."""

from __future__ import annotations

import asyncio
import json
import re
import time

import pytest
from tests.fakes.api_world import SMOLLM2_TEMPLATE, USER, on_socket, world

from octavo.api.limits import Limits
from octavo.api.prompt import RESERVED_KWARGS

KEYS = {"api_keys": ("first-key", "second-key")}
GUARDED = [
    ("POST", "/"), ("GET", "/v1/models"), ("POST", "/tokenize"), ("POST", "/detokenize"), ("POST", "/invocations"),
    ("GET", "/metrics"), ("POST", "/abort"), ("POST", "/v1/completions"), ("POST", "//v1/completions"),
    ("POST", "/%2e%2e/v1/completions"), ("POST", "/health/../v1/completions"), ("GET", "/health/"), ("GET", "/HEALTH"),
    ("GET", "/server_info"), ("GET", "/version"), ("GET", "/load"), ("OPTIONS", "/v1/models"), ("GET", "/ping/x"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), GUARDED)
async def test_bb_121_every_route_needs_a_key(method: str, path: str) -> None:
    async with world(server=KEYS) as w:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "first-key"}):
            answer = await w.http.request(method, path, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == 401


async def test_bb_121_raw_request_lines_do_not_pass_the_guard() -> None:
    async with world(server=KEYS) as w, on_socket(w.app) as url:
        port = int(url.rsplit(":", 1)[1])
        lines = [
            "GET http://127.0.0.1/health/../v1/models HTTP/1.1\r\nHost: /health",
            "GET //health/../v1/models HTTP/1.1\r\nHost: x",
            "GET //v1/models HTTP/1.1\r\nHost: x",
            "GET /../v1/models HTTP/1.1\r\nHost: x",
            "GET /./v1/models HTTP/1.1\r\nHost: x",
            "GET /v1/models?/health HTTP/1.1\r\nHost: x/health",
            "GET /v1/models#/health HTTP/1.1\r\nHost: x",
        ]
        for line in lines:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{line}\r\nConnection: close\r\n\r\n".encode())
            data = await asyncio.wait_for(reader.read(), 10)
            writer.close()
            await writer.wait_closed()
            assert b" 200 " not in data.split(b"\r\n", 1)[0]


async def test_open_routes_and_every_key() -> None:
    async with world(server=KEYS) as w:
        assert (await w.http.get("/health")).status_code == 200
        assert (await w.http.get("/ping")).status_code == 200
        assert (await w.http.get("/")).status_code == 401
        for key in KEYS["api_keys"]:
            assert (
                await w.http.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
            ).status_code == 200


async def test_prefixes_of_different_keys_are_apart() -> None:
    async with world(server=KEYS) as w:
        for key in KEYS["api_keys"]:
            for salt in ({}, {"cache_salt": "A"}):
                await w.post(
                    "/v1/chat/completions", {"messages": USER, **salt}, Authorization=f"Bearer {key}"
                )
        salts = [r.salt for r in w.engine.seen]
        assert len(set(salts)) == 4
        assert None not in salts
        assert not any("first-key" in (s or "") for s in salts)
    async with world() as w:
        await w.chat()
        await w.chat(cache_salt="A")
        assert [r.salt for r in w.engine.seen] == [None, "salt:A"]


async def test_preflights_need_no_key_when_cors_is_on() -> None:
    async with world(server={**KEYS, "allowed_origins": ("http://page",)}) as w:
        headers = {"Origin": "http://page", "Access-Control-Request-Method": "POST"}
        answer = await w.http.options("/v1/chat/completions", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "http://page"


async def test_large_bodies_are_refused() -> None:
    async with world(limits=Limits(template_workers=1, max_body_bytes=1000)) as w:
        said = await w.complete(prompt="a" * 2000)

        async def pieces():  # type: ignore[no-untyped-def]  # no content-length
            for _ in range(50):
                yield b" " * 100

        proved = await w.http.post(
            "/v1/completions", content=pieces(), headers={"Content-Type": "application/json"}
        )
    for answer in (said, proved):
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == 413


@pytest.mark.parametrize(
    "name", ["tokenize", "chat_template", "messages", "add_generation_prompt", "bos_token"]
)
async def test_bb_122_reserved_template_variables_are_refused(name: str) -> None:
    assert name in RESERVED_KWARGS
    async with world() as w:
        answer = await w.chat(chat_template_kwargs={name: True})
    assert answer.status_code == 400
    assert name in answer.json()["error"]["message"]


async def test_bb_122_templates_of_requests_are_off_by_default() -> None:
    async with world() as w:
        answer = await w.chat(chat_template="{{ 1 }}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "chat_template"


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10**11 }}",
        "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ ''.__class__.__mro__ }}{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception('not today') }}",
        "{% if %}",
    ],
)
async def test_bb_122_hostile_templates_hurt_nobody(template: str) -> None:
    limits = Limits(template_workers=1, max_template_seconds=0.5, max_template_chars=100_000)
    async with world(limits=limits, server={"trust_request_chat_template": True}) as w:
        task = asyncio.create_task(w.chat(chat_template=template))
        ticks = 0
        while not task.done():
            began = time.perf_counter()
            await asyncio.sleep(0.01)
            ticks += time.perf_counter() - began > 1.0
        answer = await task
        assert ticks == 0
        assert answer.status_code == 400
        assert (await w.chat()).status_code == 200


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "0x7f00deadbeef"},
        {"image_url": "x"},
        5,
    ],
)
async def test_bb_124_media_is_refused_without_addresses(part: object) -> None:
    async with world() as w:
        answer = await w.chat(messages=[{"role": "user", "content": [part]}])
    assert answer.status_code == 400
    assert not re.search(r"0x[0-9a-f]{6,}", answer.text)
    assert "messages[0].content[0]" in answer.json()["error"]["param"]


async def test_text_parts_are_joined_for_templates_of_strings() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "input_text", "text": "two"}, "three"]
    async with world() as w:
        body = (
            await w.chat(messages=[{"role": "developer", "content": parts}], return_prompt_text=True)
        ).json()
    assert body["prompt_text"] == "<|im_start|>system\none\ntwo\nthree<|im_end|>\n<|im_start|>assistant\n"


async def test_text_parts_stay_parts_for_templates_of_parts() -> None:
    part = "[{{ p['type'] }}:{{ p['text'] }}]"
    template = "{% for m in messages %}{% for p in m['content'] %}" + part + "{% endfor %}{% endfor %}"
    async with world(template=template) as w:
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        lists = (await w.chat(messages=[{"role": "user", "content": parts}], return_prompt_text=True)).json()
        string = (await w.chat(return_prompt_text=True)).json()
    assert lists["prompt_text"] == "[text:one][text:two]"
    assert string["prompt_text"] == "[text:Say it.]"


async def test_continuing_the_last_message() -> None:
    messages = [*USER, {"role": "assistant", "content": "It is "}]
    async with world() as w:
        body = (await w.chat(messages=messages, continue_final_message=True, return_prompt_text=True)).json()
    assert body["prompt_text"].endswith("<|im_start|>assistant\nIt is ")


async def test_template_variables_that_nobody_reads_are_reported() -> None:
    async with world() as w:
        body = (await w.chat(chat_template_kwargs={"enable_thinking": False})).json()
    assert "enable_thinking" in body["warnings"][0]


async def test_a_model_without_a_template_says_so() -> None:
    async with world(template=None) as w:
        answer = await w.chat()
        assert (await w.complete()).status_code == 200
    assert answer.status_code == 400
    assert "no chat template" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "template",
    [SMOLLM2_TEMPLATE, "{{ messages | tojson }}{% generation %}a{% endgeneration %}\n{{ bos_token }}"],
)
async def test_rendering_equals_transformers(template: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": "system", "content": "Bé <b>"}, {"role": "user", "content": "中 \n 'q'"}]
    (wanted,), _ = render_jinja_template(
        [messages], chat_template=template, add_generation_prompt=True, bos_token="<|im_start|>"
    )
    async with world(template=template) as w:
        assert (await w.chat(messages=messages, return_prompt_text=True)).json()["prompt_text"] == wanted


async def test_unknown_routes_and_methods_answer_in_openais_shape() -> None:
    async with world() as w:
        for method, path, status in (
            ("GET", "/nope", 404),
            ("GET", "/v1/chat/completions", 405),
            ("POST", "/v1/nope", 404),
        ):
            answer = await w.http.request(method, path)
            assert answer.status_code == status
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_queue_bounds_refuse_with_retry_after() -> None:
    async with world(server={"max_queued_requests": 2}) as w:
        w.engine.hold.clear()
        running = [asyncio.create_task(w.chat()) for _ in range(2)]
        while w.client.num_unfinished < 2:
            await asyncio.sleep(0.001)
        refused = await w.chat()
        w.engine.hold.set()
        assert [a.status_code for a in await asyncio.gather(*running)] == [200, 200]
        assert (await w.chat()).status_code == 200
        assert (await w.chat(n=3)).status_code == 503
        series = await w.metrics()
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert series['vllm:admission_rejections_total{reason="max_num_queued_reqs"}'] == 2
    async with world(server={"max_queued_tokens": 10}) as w:
        w.engine.hold.clear()
        first = asyncio.create_task(w.chat())
        while w.client.num_unfinished < 1:
            await asyncio.sleep(0.001)
        assert (await w.complete(prompt="a")).status_code == 503
        w.engine.hold.set()
        assert (await first).status_code == 200


async def test_request_ids_come_back_only_if_they_are_safe() -> None:
    async with world() as w:
        plain = await w.chat()
        long = await w.post("/v1/chat/completions", {"messages": USER}, **{"X-Request-Id": "x" * 200})
        body = (await w.chat(request_id="mine")).json()
    assert "x-request-id" not in plain.headers
    assert "x-request-id" not in long.headers
    assert body["id"] == "chatcmpl-mine"
    async with world(server={"request_id_headers": True}) as w:
        assert (await w.chat()).headers["x-request-id"]


async def test_bodies_of_errors_are_json_whatever_was_sent() -> None:
    async with world() as w:
        for raw in (
            b'{"prompt": "\\ud800"}',
            b'{"prompt": "a", "logit_bias": {"x": 1}}',
            b'{"messages": "a"}',
        ):
            answer = await w.http.post(
                "/v1/completions", content=raw, headers={"Content-Type": "application/json"}
            )
            assert answer.status_code == 400
            assert json.loads(answer.content)["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_bb_094_an_adapter_by_name_is_an_unknown_model(stream: bool) -> None:
    """Also where the name is a salt that is in use: what has no adapter must not fall back to the model."""
    async with world() as w:
        assert (await w.chat(cache_salt="A")).status_code == 200
        for answer in (await w.chat(model="A", stream=stream), await w.complete(model="A", stream=stream)):
            assert answer.status_code == 404
            error = answer.json()["error"]
            assert error["param"] == "model" and "served are toy, alias" in error["message"]
        assert len(w.engine.seen) == 1
