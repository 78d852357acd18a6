"""Around Anthropic's messages: counting, keys, the shape of errors wherever they arise, headers, silence."""

from __future__ import annotations

import pytest
from tests.api.test_messages import ASK, HISTORY, ask, refused
from tests.fakes.api_world import world
from tests.fakes.dialect_worlds import ANTHROPIC_TOOLS, named_events

from octavo.api.limits import Limits
from octavo.errors import CapacityError


async def test_count_tokens_counts_the_very_prompt() -> None:
    body = {"system": "be brief", "messages": HISTORY, "tools": ANTHROPIC_TOOLS}
    async with world() as w:
        message = await ask(w, **body)
        count = (await w.post("/v1/messages/count_tokens", {"model": "toy", **body})).json()
        assert count == {"input_tokens": message["usage"]["input_tokens"]}
        # a history that ends with a call cannot be answered, but it can be counted
        half = await w.post("/v1/messages/count_tokens", {"model": "toy", "messages": HISTORY[:2]})
        assert half.json()["input_tokens"] > 0
        assert len(w.engine.seen) == 1


async def test_keys_come_in_either_header() -> None:
    async with world(server={"api_keys": ("secret", "other")}) as w:
        for headers in ({"x-api-key": "secret"}, {"authorization": "Bearer other"}):
            assert (await w.post("/v1/messages", ASK, **headers)).status_code == 200
        both = {"x-api-key": "secret", "authorization": "Bearer wrong"}
        assert (await w.post("/v1/messages", ASK, **both)).status_code == 200
        for headers in ({}, {"x-api-key": "wrong"}, {"authorization": "secret"}, {"x-api-key": ""}):
            answer = await w.post("/v1/messages", ASK, **headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "authentication_error"
            assert answer.headers["request-id"]


async def test_errors_have_anthropics_types_wherever_they_arise() -> None:
    async with world(limits=Limits(max_body_bytes=2_000)) as w:
        gone = await w.post("/v1/messages", {**ASK, "model": "gone"})
        large = await w.post("/v1/messages", {**ASK, "system": "x" * 3_000})
        nowhere = await w.post("/v1/messages/batches", {})
        method = await w.http.get("/v1/messages")
        kind = await w.http.post("/v1/messages", content=b"{}", headers={"content-type": "text/plain"})
        chat = await w.chat(model="gone")
    found = [(a.status_code, a.json()["error"]["type"]) for a in (gone, large, nowhere, method, kind)]
    assert found == [
        (404, "not_found_error"),
        (413, "request_too_large"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (400, "invalid_request_error"),
    ]
    assert chat.json()["error"]["type"] == "NotFoundError"  # other routes keep their shape


async def test_a_full_server_is_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(count: int) -> None:
        raise CapacityError("the queue is full")

    async with world() as w:
        monkeypatch.setattr(w.state.admission, "check", full)
        answer = await w.post("/v1/messages", ASK)
    assert answer.status_code == 529
    assert answer.json()["error"]["type"] == "overloaded_error"


async def test_faults_of_the_engine_are_api_errors_streamed_and_not() -> None:
    async with world("Hello world ok ok ok", fail_at=3) as w:
        whole = await w.post("/v1/messages", ASK)
        events = named_events((await w.post("/v1/messages", {**ASK, "stream": True})).text)
    assert (whole.status_code, whole.json()["error"]["type"]) == (500, "api_error")
    assert [e["type"] for e in events][-2:] == ["content_block_delta", "error"]
    assert events[-1]["error"]["type"] == "api_error"
    assert "/srv/" not in events[-1]["error"]["message"]


async def test_the_version_is_a_date_and_betas_are_not_looked_at() -> None:
    async with world() as w:
        headers = {
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "context-1m-2025-08-07,oauth-2025-04-20",
        }
        assert (await w.http.post("/v1/messages?beta=true", json=ASK, headers=headers)).status_code == 200
        bad = await w.http.post("/v1/messages", json=ASK, headers={"anthropic-version": "latest"})
        assert bad.status_code == 400
        assert "anthropic-version" in bad.json()["error"]["message"]


async def test_unknown_fields_are_warned_of_and_refused_when_strict() -> None:
    async with world() as w:
        answer = await w.post("/v1/messages", {**ASK, "fancy": 1, "metadata": {"user_id": "u"}})
        assert "'fancy' is not known" in answer.headers["x-octavo-warnings"]
        assert "metadata" not in answer.headers["x-octavo-warnings"]
    async with world(strict=True) as w:
        assert "'fancy' is not known" in await refused(w, fancy=1)


async def test_silence_is_filled_with_pings() -> None:
    async with world("Hello world", limits=Limits(sse_keep_alive_s=0.01), delay_s=0.05) as w:
        text = (await w.post("/v1/messages", {**ASK, "stream": True})).text
    events = named_events(text)
    assert [e["type"] for e in events].count("ping") > 1
    assert ":" not in {line[:1] for line in text.splitlines()}  # no comment lines
    assert events[-1]["type"] == "message_stop"


async def test_prefixes_are_kept_apart_by_key_and_salt() -> None:
    async with world(server={"api_keys": ("a", "b")}) as w:
        await w.post("/v1/messages", ASK, **{"x-api-key": "a"})
        await w.post("/v1/messages", ASK, authorization="Bearer a")
        await w.post("/v1/messages", ASK, **{"x-api-key": "b"})
        await w.post("/v1/messages", {**ASK, "cache_salt": "s"}, **{"x-api-key": "a"})
        salts = [r.salt for r in w.engine.seen]
    assert salts[0] == salts[1]
    assert len(set(salts)) == 3
