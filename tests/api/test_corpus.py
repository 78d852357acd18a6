"""Three hundred requests in six dialects: what a stream adds up to is the answer that is not streamed."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.fakes.api_world import World, world
from tests.fakes.corpus import CORPUS, EACH, Case
from tests.fakes.dialect_worlds import THINK_TEMPLATE
from tests.fakes.folds import DIALECTS, compare

from octavo.wire.messages import EngineRequest, FinishReason, TokenDelta


async def play(w: World, case: Case) -> int:
    ids = w.engine.codec.encode(case.script, False)
    w.engine.script, w.engine.group = lambda _: ids, case.group
    return await compare(w.post, case.dialect, case.body)


@pytest.mark.parametrize("name", DIALECTS)
async def test_the_fold_of_the_stream_is_the_answer(name: str) -> None:
    cases = [case for case in CORPUS if case.dialect == name]
    assert len(cases) == EACH
    async with world(template=THINK_TEMPLATE, num_cached=3) as w:
        refused = [case for case in cases if await play(w, case) != 200]
        assert len(refused) <= 2, refused
        assert w.client.num_unfinished == w.engine.num_running == 0


def test_the_corpus_holds_what_it_says() -> None:
    text = [json.dumps(case.body) for case in CORPUS]
    for word in (
        "tools",
        "tool_choice",
        "schema",
        "stop",
        '"n"',
        "enable_thinking",
        "truncat",
        "echo",
        "logprobs",
    ):
        assert sum(word in one for one in text) >= 5, word
    assert len(CORPUS) == 300
    assert len(set(text)) > 280


async def test_a_script_that_fails_is_an_answer_and_no_silence() -> None:
    def script(request: EngineRequest) -> list[int]:
        raise ZeroDivisionError

    async with world(script) as w:
        answer = await w.chat()
        assert answer.status_code == 500
        assert "the script of this test failed" in answer.text


async def test_what_leaves_no_token_is_the_requests_own_doing() -> None:
    """Found out while drawing: a 400, streamed or not; a fault of the engine stays a 500."""
    async with world("Hello") as w:
        for refused, status in ((True, 400), (False, 500)):
            for stream in (True, False):
                w.engine.hold.clear()
                task = asyncio.create_task(w.complete(stream=stream))
                while not w.engine.num_running:
                    await asyncio.sleep(0.001)
                (request_id,) = w.engine._running
                w.engine._running.pop(request_id).cancel()
                record = w.engine._record(w.engine.seen[-1], 0)
                end = TokenDelta(
                    id=request_id, finish=FinishReason.ERROR, error="none", is_refused=refused, record=record
                )
                w.engine._emit(end)
                assert (await task).status_code == status
