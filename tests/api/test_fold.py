"""Streamed or not, the answer is the same: text, ids, logprobs, reasons, usage; however tokens were grouped."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.api_world import fold_chat, sse, world
from tests.fakes.scripted_engine import random_groups
from tests.fakes.toy_codec import ToyCodec

from octavo.wire.messages import EngineRequest

SIZE = ToyCodec().vocab_size
BODIES = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 30), "seed": st.integers(0, 50)},
    optional={
        "n": st.integers(1, 3),
        "stop": st.lists(
            st.sampled_from(["o", " w", "EFGH", "ing", "中", "\n", "x"]), max_size=4, unique=True
        ),
        "min_tokens": st.integers(0, 1),
        "ignore_eos": st.booleans(),
        "include_stop_str_in_output": st.booleans(),
        "skip_special_tokens": st.booleans(),
        "stop_token_ids": st.lists(st.integers(16, SIZE - 1), max_size=3),
        "return_token_ids": st.just(True),
        "stream_interval": st.integers(1, 4),
    },
)


def scripted(ids: list[int]) -> Any:
    def script(request: EngineRequest) -> list[int]:
        shift = request.seed % len(ids)
        return ids[shift:] + ids[:shift]

    return script


@given(
    st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=25),
    BODIES,
    st.integers(0, 100),
    st.one_of(st.none(), st.integers(0, 3)),
)
@settings(max_examples=12, deadline=None)
def test_chat_stream_folds_to_the_answer(
    ids: list[int], body: dict[str, Any], seed: int, top: int | None
) -> None:
    if top is not None:
        body |= {"logprobs": True, "top_logprobs": top}

    async def run() -> None:
        async with world(scripted(ids), group=random_groups(seed), template="{{ messages[0].content }}") as w:
            whole = (await w.chat(**body)).json()
            options = {"stream_options": {"include_usage": True}, "stream": True}
            chunks, done = sse((await w.chat(**body, **options)).text)
        assert done
        folded = fold_chat(chunks)
        assert len(folded) == len(whole["choices"])
        for choice in whole["choices"]:
            part = folded[choice["index"]]
            assert part["text"] == choice["message"]["content"]
            assert part["finish"] == [choice["finish_reason"]]
            assert part["stop_reason"] == choice["stop_reason"]
            assert part["token_ids"] == choice.get("token_ids", [])
            assert part["logprobs"] == (choice["logprobs"] or {"content": []})["content"]
        assert chunks[-1]["usage"] == whole["usage"]

    asyncio.run(run())


@given(
    st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=25),
    BODIES,
    st.integers(0, 100),
    st.one_of(st.none(), st.integers(0, 3)),
    st.booleans(),
)
@settings(max_examples=12, deadline=None)
def test_completion_stream_folds_to_the_answer(
    ids: list[int], body: dict[str, Any], seed: int, top: int | None, echo: bool
) -> None:
    body |= {"prompt": ["Hello ok", "abc"], "echo": echo}
    if top is not None:
        body["logprobs"] = top

    async def run() -> None:
        async with world(scripted(ids), group=random_groups(seed), template=None) as w:
            whole = (await w.complete(**body)).json()
            options = {"stream_options": {"include_usage": True}, "stream": True}
            chunks, done = sse((await w.complete(**body, **options)).text)
        assert done
        for choice in whole["choices"]:
            parts = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == choice["index"]]
            assert "".join(p["text"] for p in parts) == choice["text"]
            assert [p["finish_reason"] for p in parts if p["finish_reason"]] == [choice["finish_reason"]]
            assert parts[-1]["stop_reason"] == choice["stop_reason"]
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                joined = [x for p in parts if p["logprobs"] for x in p["logprobs"][name]]
                assert joined == (choice["logprobs"] or {name: []})[name]
        assert chunks[-1]["usage"] == whole["usage"]

    asyncio.run(run())
