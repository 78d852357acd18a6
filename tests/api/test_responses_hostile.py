"""Bodies of /v1/responses made to hurt: each is a 4xx that names a field, or an answer; the server goes on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.fakes.api_world import encode_json, world

from octavo.api.schema.responses import PASSED, REFUSED, ResponseBody

MANY = 200_000
USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": [1] * MANY}, "input"),
        ({"input": [{}] * 16_000}, "input[0].type"),
        ({"input": [USER | {"content": [{"type": "a"}] * MANY}]}, "input[0].content"),
        ({"input": [{"type": "reasoning", "summary": [1] * MANY}]}, "input[0].summary"),
        ({"input": [{"id": "x" * 10_000_000}]}, "input[0].id"),
        ({"input": "x", "tools": [1] * MANY}, "tools"),
        ({"input": "x", "tools": [{"type": "x" * 1_000_000}]}, "tools[0].type"),
        ({"input": "x", "tool_choice": {str(i): 1 for i in range(MANY)}}, "tool_choice"),
        ({"input": "x", "include": [1] * MANY}, "include"),
        ({"input": "x", "metadata": {str(i): "x" for i in range(MANY)}}, "metadata"),
        ({"input": "x", "text": {str(i): 1 for i in range(MANY)}}, "text"),
        ({"input": "x", "reasoning": {str(i): 1 for i in range(MANY)}}, "reasoning"),
        ({"input": "x", "previous_response_id": "x" * 1_000_000}, "previous_response_id"),
        ({"input": "x", "max_output_tokens": 2**70}, "max_output_tokens"),
        ({"input": "x", "request_id": "../../etc"}, "request_id"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
async def test_a_bad_field_is_refused_at_its_first_error(body: dict[str, Any], param: str) -> None:
    async with world() as w:
        started = time.process_time()
        answer = await w.post("/v1/responses", body)
        elapsed_s = time.process_time() - started
        assert answer.status_code in (400, 404)
        assert answer.json()["error"]["param"].startswith(param)
        assert len(answer.text) < 8_000
        assert elapsed_s < 1.5  # the client's own encoding included
        assert (await w.post("/v1/responses", {"input": "x"})).status_code == 200


async def test_deep_json_is_answered() -> None:
    async with world() as w:
        deep = (
            b'{"input": "x", "tools": [{"type": "function", "name": "f", "parameters": '
            + b'{"a":' * 900
            + b"1"
            + b"}" * 901
            + b"]}"
        )
        for data in (deep, b'{"input":' + b"[" * 100_000):
            answer = await w.http.post(
                "/v1/responses", content=data, headers={"Content-Type": "application/json"}
            )
            assert answer.status_code < 500
        assert (await w.post("/v1/responses", {"input": "x"})).status_code == 200


async def test_a_long_chain_is_read_in_linear_time() -> None:
    """Turns of a conversation are shared: a hundred short ones take no hundred copies."""
    async with world("ok", template="{{ messages[-1].content }}") as w:
        name = None
        for _ in range(100):
            answer = await w.post(
                "/v1/responses", {"input": "x", **({"previous_response_id": name} if name else {})}
            )
            name = answer.json()["id"]
        first = w.state.responses
        assert len(first) == 100
        assert first.num_bytes < 100 * 5_000


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just("function")
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(
                st.sampled_from(
                    "type role content text id call_id name arguments output summary format schema mode tools".split()
                ),
                st.text(max_size=4),
            ),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=12,
)
KINDS = [
    "message",
    "function_call",
    "function_call_output",
    "reasoning",
    "item_reference",
    "function",
    "json_schema",
]
ITEMS = st.dictionaries(
    st.sampled_from("type role content id call_id name arguments output summary status".split()),
    st.one_of(VALUES, st.sampled_from([*KINDS, "user", "assistant", "input_text"])),
    max_size=6,
)
BODIES = st.fixed_dictionaries(
    {"input": st.one_of(st.text(max_size=20), st.lists(ITEMS, max_size=4), VALUES)},
    optional={
        name: st.one_of(VALUES, st.lists(ITEMS, max_size=2), ITEMS)
        for name in [*ResponseBody.model_fields, *PASSED, *REFUSED]
        if name not in ("input", "background", "chat_template")
    },
)


@given(st.lists(BODIES, min_size=8, max_size=8))
@settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[
        HealthCheck.data_too_large,
        HealthCheck.too_slow,
    ],  # bodies of every field are large
)
def test_no_body_is_a_fault_of_the_server(bodies: list[dict[str, Any]]) -> None:
    async def run() -> None:
        async with world() as w:
            for body in bodies:
                try:
                    data = encode_json(body)
                except UnicodeEncodeError:
                    continue  # a lone surrogate is no JSON
                answer = await w.http.post(
                    "/v1/responses", content=data, headers={"Content-Type": "application/json"}
                )
                if "breaks its own grammar" in answer.text:
                    continue  # a script follows no grammar; the answer is held back, as it should be
                assert answer.status_code in (200, 400, 404), (body, answer.text)
            assert (await w.post("/v1/responses", {"input": "x"})).status_code == 200

    asyncio.run(run())


async def test_ids_in_paths() -> None:
    async with world() as w:
        for name in ("resp_gone", "x" * 10_000, "%00", "a%2Fb", "..", "input_tokens", "💥"):
            for method, tail in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
                answer = await w.http.request(method, f"/v1/responses/{name}{tail}")
                assert 400 <= answer.status_code < 500
                assert len(answer.text) < 4_000
        odd = await w.post("/v1/responses", {"input": "x"}, **{"X-Request-Id": "a/b"})
        assert odd.status_code == 200
        assert (await w.http.get(f"/v1/responses/{odd.json()['id']}")).status_code == 200
        assert "X-Request-Id" in odd.json()["warnings"][0]
