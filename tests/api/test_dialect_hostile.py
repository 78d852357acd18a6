"""Bodies of other APIs that are made to hurt: refused at the first error, in the API's shape, and nothing breaks."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.api_world import USER, world
from tests.fakes.dialect_worlds import ANTHROPIC_TOOLS

MANY = 200_000
MESSAGES, COHERE, TOKENS = "/v1/messages", "/cohere/v2/chat", "/inference/v1/generate"
BASES: dict[str, dict[str, Any]] = {
    MESSAGES: {"model": "toy", "max_tokens": 9, "messages": USER},
    COHERE: {"model": "toy", "max_tokens": 9, "messages": USER},
    TOKENS: {"token_ids": [20], "sampling_params": {"max_tokens": 9}},
}


def message_of(body: dict[str, Any]) -> str:
    return str(body["message"] if "message" in body else body["error"]["message"])


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        (MESSAGES, "messages", [1] * MANY),
        (MESSAGES, "messages", [{"role": "user", "content": ["a"] * MANY}]),
        (MESSAGES, "messages", [{"role": "user", "content": [{"type": "x"}] * 16_000}]),
        (MESSAGES, "tools", [1] * MANY),
        (MESSAGES, "tools", [{"name": "a"}] * 1_000),
        (MESSAGES, "stop_sequences", [1] * MANY),
        (MESSAGES, "system", [1] * MANY),
        (MESSAGES, "context_management", {"edits": [{}] * MANY}),
        (COHERE, "messages", [1] * MANY),
        (COHERE, "documents", [1] * MANY),
        (COHERE, "tools", [1] * MANY),
        (COHERE, "stop_sequences", [1] * MANY),
        (TOKENS, "token_ids", ["a"] * MANY),
        (TOKENS, "token_ids", [-1] * MANY),
        (TOKENS, "sampling_params", {"stop_token_ids": ["a"] * MANY}),
    ],
)
async def test_a_bad_field_is_refused_at_its_first_error(path: str, field: str, value: Any) -> None:
    async with world() as w:
        started = time.process_time()
        answer = await w.post(path, {**BASES[path], field: value})
        elapsed_s = time.process_time() - started
        assert answer.status_code == 400
        assert {"sampling_params": "stop_token_ids"}.get(field, field) in message_of(answer.json())
        assert len(answer.content) < 5_000
        assert elapsed_s < 1.5  # the client's own encoding included
        assert (await w.post(path, BASES[path])).status_code == 200


@pytest.mark.parametrize("depth", [60, 400, 900, 990, 5_000])
async def test_deep_values_are_answered_or_refused(depth: int) -> None:
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    bodies = {
        MESSAGES: [
            b'"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":%b},{"type":"text","text":"x"}]},{"role":"user","content":"x"}]',
            b'"messages":[{"role":"user","content":"x"}],"tools":[{"name":"f","input_schema":%b}]',
            b'"messages":[{"role":"user","content":"x"}],"output_config":{"format":{"type":"json_schema","schema":%b}}',
        ],
        COHERE: [
            b'"messages":[{"role":"tool","tool_call_id":"a","content":[{"type":"document","document":{"data":%b}}]}]',
            b'"messages":[{"role":"user","content":"x"}],"documents":[{"data":%b}]',
        ],
    }
    async with world() as w:
        for path, texts in bodies.items():
            for text in texts:
                data = b'{"model":"toy","max_tokens":9,' + text % deep + b"}"
                answer = await w.http.post(path, content=data, headers={"content-type": "application/json"})
                assert answer.status_code in (200, 400), answer.text[:300]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)
KEYS = {
    MESSAGES: "messages system tools tool_choice thinking stop_sequences temperature top_k metadata stream "
    "output_config context_management cache_control max_tokens service_tier chat_template_kwargs",
    COHERE: "messages tools tool_choice documents response_format thinking stop_sequences k p stream "
    "citation_options safety_mode strict_tools logprobs priority chat_template_kwargs",
    TOKENS: "token_ids sampling_params output_mode stream stream_options return_token_ids cache_salt features",
}
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "thinking", "image", "redacted_thinking"])},
    optional=dict.fromkeys(
        "text id name input tool_use_id content thinking signature data is_error".split(), JSON
    ),
)


@pytest.mark.parametrize("path", list(KEYS))
def test_any_json_is_answered_or_refused(path: str) -> None:
    odd = st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS[path].split(), JSON))

    @given(st.lists(odd, min_size=30, max_size=30))
    @settings(max_examples=3, deadline=None, database=None)
    def run(bodies: list[dict[str, Any]]) -> None:
        async def go() -> None:
            async with world() as w:
                for body in bodies:
                    data = msgspec.json.encode({**BASES[path], **body})
                    answer = await w.http.post(
                        path, content=data, headers={"content-type": "application/json"}
                    )
                    assert answer.status_code in (200, 400), (body, answer.text)

        asyncio.run(go())

    run()


@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant"]), st.lists(BLOCK, max_size=3)), min_size=1, max_size=4
    )
)
@settings(max_examples=8, deadline=None, database=None)
def test_any_blocks_are_answered_or_refused(turns: list[tuple[str, list[dict[str, Any]]]]) -> None:
    async def go() -> None:
        async with world() as w:
            for cut in range(1, len(turns) + 1):
                messages = [{"role": role, "content": blocks} for role, blocks in turns[:cut]]
                body = {**BASES[MESSAGES], "messages": messages, "tools": ANTHROPIC_TOOLS}
                data = msgspec.json.encode(body)
                answer = await w.http.post(
                    MESSAGES, content=data, headers={"content-type": "application/json"}
                )
                assert answer.status_code in (200, 400), (body, answer.text)

    asyncio.run(go())
