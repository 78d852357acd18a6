"""Responses that run in the background: polled, streamed from any point, cancelled, bounded; over a real socket."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest
from tests.fakes.api_world import World, on_socket, world
from tests.fakes.response_events import check_response, fold, plain, read_events, types
from tests.fakes.toy_codec import BYTE_0

BACKGROUND = {"input": "x", "background": True}
ENDLESS = [BYTE_0 + ord("a")] * 1900


async def ended(w: World, response_id: str) -> dict[str, Any]:
    for _ in range(4000):
        found: dict[str, Any] = (await w.http.get(f"/v1/responses/{response_id}")).json()
        if found["status"] not in ("queued", "in_progress"):
            return found
        await asyncio.sleep(0.001)
    raise AssertionError("it did not end")


async def until(condition: Any) -> None:
    for _ in range(4000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not happen")


async def test_it_is_queued_polled_and_as_a_foreground_one_in_the_end() -> None:
    async with world("Hello world") as w:
        w.engine.hold.clear()
        first = (await w.post("/v1/responses", BACKGROUND)).json()
        assert (first["status"], first["background"], first["output"]) == ("queued", True, [])
        check_response(first)
        waiting = (await w.http.get(f"/v1/responses/{first['id']}")).json()
        assert waiting["status"] == "queued"
        refused = await w.post("/v1/responses", {"input": "y", "previous_response_id": first["id"]})
        assert refused.status_code == 400
        assert "queued" in refused.json()["error"]["message"]
        w.engine.hold.set()
        last = await ended(w, first["id"])
        check_response(last)
        whole = (await w.post("/v1/responses", {"input": "x"})).json()
        assert plain(last) == {**plain(whole), "background": True}
        follow = await w.post("/v1/responses", {"input": "y", "previous_response_id": first["id"]})
        assert follow.status_code == 200


async def test_unfinished_text_is_seen_while_it_runs() -> None:
    async with world(lambda _: ENDLESS, delay_s=0.001) as w:
        first = (
            await w.post("/v1/responses", {**BACKGROUND, "ignore_eos": True, "max_output_tokens": 1500})
        ).json()
        await until(lambda: w.engine.generated > 5)
        now = (await w.http.get(f"/v1/responses/{first['id']}")).json()
        assert now["status"] == "in_progress"
        assert now["output"][0]["status"] == "in_progress"
        assert now["output"][0]["content"][0]["text"].startswith("aaa")
        await w.http.post(f"/v1/responses/{first['id']}/cancel")


async def test_its_events_can_be_read_again_from_any_point() -> None:
    async with world("Hello world ok") as w:
        text = (await w.post("/v1/responses", {**BACKGROUND, "stream": True})).text
        events = read_events(text)
        response = fold(events)
        assert types(events)[:3] == ["created", "queued", "in_progress"]
        assert [e["response"]["status"] for e in events[:3]] == ["queued", "queued", "in_progress"]
        path = f"/v1/responses/{response['id']}"
        assert (await w.http.get(path, params={"stream": "true"})).text == text
        for after in (0, 4, len(events) - 2):
            got = await w.http.get(path, params={"stream": "true", "starting_after": after})
            assert read_events(got.text) == events[after + 1 :]
        past = await w.http.get(path, params={"stream": "true", "starting_after": 10_000})
        assert past.text == ""
        for bad in (
            {"starting_after": "1"},
            {"starting_after": "-1", "stream": "true"},
            {"stream": "maybe"},
            {"wibble": "1"},
            {"include": "message.output_text.logprobs"},
            {"include_obfuscation": "true"},
        ):
            answer = await w.http.get(path, params=bad)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(bad)))
        foreground = (await w.post("/v1/responses", {"input": "x"})).json()
        answer = await w.http.get(f"/v1/responses/{foreground['id']}", params={"stream": "true"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")


async def test_it_survives_its_client_and_others_may_listen_late() -> None:
    async with (
        world(lambda _: ENDLESS, delay_s=0.001) as w,
        on_socket(w.app) as url,
        httpx.AsyncClient() as http,
    ):
        body = {**BACKGROUND, "stream": True, "ignore_eos": True, "max_output_tokens": 400}
        async with http.stream("POST", f"{url}/v1/responses", json=body) as answer:
            lines = []
            async for line in answer.aiter_lines():
                lines.append(line)
                if len(lines) > 30:
                    break
        response_id = w.state.responses.running[0].id
        assert w.engine.aborted == []
        late = await http.get(
            f"{url}/v1/responses/{response_id}", params={"stream": "true", "starting_after": 5}, timeout=60
        )
        events = read_events(late.text)
        assert events[0]["sequence_number"] == 6
        assert events[-1]["response"]["status"] == "incomplete"
        assert events[-1]["response"]["usage"]["output_tokens"] == 400
        assert w.engine.aborted == []


async def test_cancel_ends_the_work_and_says_so_to_those_who_listen() -> None:
    async with world(lambda _: ENDLESS, delay_s=0.001) as w:
        body = {**BACKGROUND, "stream": True, "ignore_eos": True, "max_output_tokens": 1500}
        listening = asyncio.create_task(w.post("/v1/responses", body))
        await until(lambda: w.engine.generated > 5)
        response_id = w.state.responses.running[0].id
        answer = await w.http.post(f"/v1/responses/{response_id}/cancel")
        cancelled = answer.json()
        assert (answer.status_code, cancelled["status"]) == (200, "cancelled")
        check_response(cancelled)
        assert cancelled["output"][0]["status"] == "incomplete"
        await until(lambda: w.engine.num_running == 0)
        assert len(w.engine.aborted) == 1
        events = read_events((await listening).text)
        assert types(events)[-1] == "incomplete"
        assert fold(events) == cancelled
        again = await w.http.post(f"/v1/responses/{response_id}/cancel")
        assert (again.status_code, again.json()) == (200, cancelled)
        refused = await w.post("/v1/responses", {"input": "y", "previous_response_id": response_id})
        assert refused.status_code == 400


async def test_cancel_before_it_has_begun_and_of_others() -> None:
    async with world("ok") as w:
        w.engine.hold.clear()
        first = (await w.post("/v1/responses", BACKGROUND)).json()
        answer = await w.http.post(f"/v1/responses/{first['id']}/cancel")
        assert answer.json()["status"] == "cancelled"
        await until(lambda: w.engine.num_running == 0 and w.state.logs.num_open == 0)
        w.engine.hold.set()
        foreground = (await w.post("/v1/responses", {"input": "x"})).json()
        refused = await w.http.post(f"/v1/responses/{foreground['id']}/cancel")
        assert refused.status_code == 400
        assert "background" in refused.json()["error"]["message"]
        done = (await w.post("/v1/responses", BACKGROUND)).json()
        last = await ended(w, done["id"])
        late = await w.http.post(f"/v1/responses/{done['id']}/cancel")
        assert (late.status_code, late.json()) == (200, last)


async def test_deleting_a_running_one_ends_it() -> None:
    async with world("ok") as w:
        w.engine.hold.clear()
        first = (await w.post("/v1/responses", BACKGROUND)).json()
        await until(lambda: w.engine.num_running == 1)
        assert (await w.http.delete(f"/v1/responses/{first['id']}")).json()["deleted"] is True
        await until(lambda: w.engine.num_running == 0)
        assert (await w.http.get(f"/v1/responses/{first['id']}")).status_code == 404
        assert len(w.state.responses) == 0
        assert w.state.responses.num_bytes == 0


async def test_only_so_many_run_at_a_time() -> None:
    async with world("ok", server={"max_background_responses": 2}) as w:
        w.engine.hold.clear()
        first, second = [(await w.post("/v1/responses", BACKGROUND)).json() for _ in range(2)]
        answer = await w.post("/v1/responses", BACKGROUND)
        assert answer.status_code == 503
        assert "--max-background-responses" in answer.json()["error"]["message"]
        assert int(answer.headers["retry-after"]) > 0
        await w.http.post(f"/v1/responses/{first['id']}/cancel")
        assert (await w.post("/v1/responses", BACKGROUND)).status_code == 200
        w.engine.hold.set()
        assert (await ended(w, second["id"]))["status"] == "completed"
    async with world("ok", server={"max_background_responses": 0}) as w:
        assert (await w.post("/v1/responses", BACKGROUND)).status_code == 400
    async with world("ok", server={"response_store_bytes": 5_000}) as w:
        large = await w.post("/v1/responses", {**BACKGROUND, "instructions": "x" * 1_000})
        assert large.status_code == 400
        assert "--response-store-bytes" in large.json()["error"]["message"]


async def test_a_fault_is_kept() -> None:
    async with world("Hello world ok ok", fail_at=3) as w:
        first = (await w.post("/v1/responses", BACKGROUND)).json()
        last = await ended(w, first["id"])
        assert last["status"] == "failed"
        assert last["error"]["code"] == "server_error"
        assert "0x7f0123" not in last["error"]["message"]
        events = read_events(
            (await w.http.get(f"/v1/responses/{first['id']}", params={"stream": "true"})).text
        )
        assert fold(events) == last


async def test_running_ones_end_with_the_server() -> None:
    async with world("ok") as w:
        w.engine.hold.clear()
        await w.post("/v1/responses", BACKGROUND)
        (stored,) = w.state.responses.running
        await w.state.responses.close()
        assert stored.status == "cancelled"
        assert w.state.responses.running == []


async def test_openai_client_polls_listens_and_cancels() -> None:
    async with (
        world(lambda r: ENDLESS if r.max_tokens > 100 else [BYTE_0 + ord("k")], delay_s=0.001) as w,
        on_socket(w.app) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
    ):
        started = await client.responses.create(model="toy", input="x", background=True, max_output_tokens=5)
        assert started.status == "queued"
        found = started
        for _ in range(4000):
            found = await client.responses.retrieve(started.id)
            if found.status == "completed":
                break
            await asyncio.sleep(0.001)
        assert found.output_text == "k"
        stream = await client.responses.retrieve(started.id, stream=True, starting_after=2)
        seen = [event.sequence_number async for event in stream]
        assert seen == list(range(3, 3 + len(seen)))
        endless = await client.responses.create(
            model="toy", input="x", background=True, max_output_tokens=1500, extra_body={"ignore_eos": True}
        )
        cancelled = await client.responses.cancel(endless.id)
        assert cancelled.status == "cancelled"
        await client.responses.delete(started.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(started.id)
        with pytest.raises(openai.BadRequestError):
            await client.responses.cancel(
                (await client.responses.create(model="toy", input="x", max_output_tokens=2)).id
            )
