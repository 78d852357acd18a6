"""POST /v1/chat/completions/batch: as many answers as conversations, each what the chat route would say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.fakes.api_world import World, world
from tests.fakes.toy_codec import ToyCodec

from octavo.wire.messages import EngineRequest

CODEC = ToyCodec()
TALKS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Say it."}],
    [{"role": "user", "content": "Another"}, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "!"}],
    [{"role": "system", "content": "short"}, {"role": "user", "content": "ABC"}],
]  # fmt: skip


def says(request: EngineRequest) -> list[int]:
    return CODEC.encode(f"Hello {sum(request.prompt)} ok", False)


async def batch(w: World, **body: Any) -> Any:
    return await w.post("/v1/chat/completions/batch", {"messages": TALKS, **body})


async def test_each_choice_is_what_the_chat_route_answers() -> None:
    options = {
        "max_tokens": 12,
        "logprobs": True,
        "top_logprobs": 1,
        "return_token_ids": True,
        "stop": [" ok"],
    }
    async with world(says, num_cached=2) as w:
        alone = [(await w.chat(**{**options, "messages": talk})).json() for talk in TALKS]
        together = (await batch(w, **options, cache_salt="x")).json()
    assert together["object"] == "chat.completion"
    assert [c["index"] for c in together["choices"]] == [0, 1, 2]
    for one, choice in zip(alone, together["choices"], strict=True):
        wanted = one["choices"][0] | {"prompt_token_ids": one["prompt_token_ids"], "index": choice["index"]}
        assert choice == wanted
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert together["usage"][name] == sum(one["usage"][name] for one in alone)
    assert together["usage"]["prompt_tokens_details"]["cached_tokens"] == 6


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"n": 2}, "n"),
        ({"stream": True}, "stream"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"early_stopping": True}, "early_stopping"),
        ({"best_of": 2}, "best_of"),
        ({"messages": []}, "messages"),
        ({"messages": TALKS[0]}, "messages[0]"),
        ({"messages": [TALKS[0], []]}, "messages[1]"),
        ({"messages": [TALKS[0], [{"role": "nobody", "content": "x"}]]}, "messages[1][0].role"),
        ({"messages": TALKS * 400}, "messages"),
        ({"temperature": 9}, "temperature"),
    ],
)
async def test_refused_by_name_before_anything_runs(given: dict[str, Any], param: str) -> None:
    async with world(says) as w:
        answer = await batch(w, **given)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
        assert w.engine.seen == []


async def test_what_asks_for_nothing_is_fine() -> None:
    neutral = {
        "n": 1,
        "stream": False,
        "tools": [],
        "tool_choice": "none",
        "best_of": None,
        "early_stopping": False,
    }
    async with world(says) as w:
        answer = await batch(w, **neutral, use_beam_search=False, max_tokens=3)
        odd = await batch(w, guided_decoding_backend="auto", max_tokens=3)
    assert answer.status_code == 200
    assert "warnings" not in answer.json()
    assert any("guided_decoding_backend" in w for w in odd.json()["warnings"])


async def test_more_conversations_than_rows_and_a_failure_that_ends_all() -> None:
    async with world(says) as w:
        many = (await batch(w, messages=TALKS * 10, max_tokens=2)).json()
    assert [c["index"] for c in many["choices"]] == list(range(30))
    async with world(says, fail_at=2) as w:
        failed = await batch(w, max_tokens=5)
        assert failed.status_code == 500
        await asyncio.sleep(0)
        assert w.client.num_unfinished == 0
