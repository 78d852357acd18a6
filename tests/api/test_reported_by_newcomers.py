"""What a newcomer stumbled over in the HTTP API: each test is one report."""

from __future__ import annotations

import logging
import re

import httpx
import pytest
from tests.fakes.api_world import USER, sse, world

from octavo.api.prompt import room
from octavo.errors import InvalidRequest
from octavo.wire.messages import RequestRecord

KEYS = {"api_keys": ("first-key",)}


# ---- temperature --------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [{"temperature": -3}, {"temperature": -1e-9}, {"temperature": -3, "n": 2}])
async def test_a_negative_temperature_is_refused_with_the_range(body: dict[str, object]) -> None:
    async with world() as w:
        for answer in (await w.chat(**body), await w.complete(**body)):
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "temperature"
            assert "0 to 2" in answer.json()["error"]["message"]


async def test_a_temperature_that_is_taken_as_greedy_is_reported() -> None:
    async with world() as w:
        tiny = (await w.chat(temperature=1e-6)).json()
        assert w.engine.seen[0].params.is_greedy
        assert "warnings" not in (await w.chat(temperature=0)).json()
        several = await w.chat(temperature=1e-6, n=2)
    assert "1e-06 was taken as 0" in tiny["warnings"][0]
    assert "temperature 1e-06" in several.json()["error"]["message"]


# ---- messages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["system", "developer", "user", "tool"])
@pytest.mark.parametrize("content", [{}, {"content": None}])
async def test_a_message_without_content_is_refused(role: str, content: dict[str, object]) -> None:
    messages = [*USER, {"role": role, **content}]
    async with world() as w:
        for answer in (await w.chat(messages=messages), await w.post("/tokenize", {"messages": messages})):
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "messages[1].content"
            assert w.engine.seen == []


async def test_an_unknown_role_is_refused_with_the_known_ones() -> None:
    async with world() as w:
        answer = await w.chat(messages=[{"role": "robot", "content": "Hello"}])
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "messages[0].role"
    assert "'robot'" in error["message"]
    assert "system, developer, user, assistant, tool" in error["message"]


# ---- what errors advise -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"max_tokens": "many"}, "max_tokens is a string; it must be an integer"),
        ({"n": 0}, "n is 0; it must be at least 1"),
        ({"stream": "yes"}, "stream is a string; it must be a boolean"),
        ({"messages": "my secret"}, "messages is a string; it must be an array"),
        ({"messages": None}, "messages is missing"),
        ({"messages": []}, "messages: list should have at least 1 item, not 0"),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content is 5; it must be a string or an array",
        ),
    ],
)
async def test_a_value_of_the_wrong_type_is_named_by_its_type(body: dict[str, object], message: str) -> None:
    async with world() as w:
        assert (await w.chat(**body)).json()["error"]["message"] == message


async def test_tokenize_without_anything_names_both_fields() -> None:
    async with world() as w:
        message = (await w.post("/tokenize", {})).json()["error"]["message"]
    assert message == "neither prompt nor messages is given: send one of them"


@pytest.mark.parametrize(
    ("path", "near"),
    [("/v1/chat/completion", "/v1/chat/completions"), ("/v1/complete", "/v1/completions"), ("/zzz", None)],
)
async def test_an_unknown_route_names_the_routes(path: str, near: str | None) -> None:
    async with world() as w:
        message = (await w.http.post(path, json={})).json()["error"]["message"]
    assert (f"did you mean {near}?" in message) == (near is not None)
    for known in ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/tokenize"):
        assert known in message


async def test_the_error_of_a_missing_key_names_the_options_of_the_clients() -> None:
    async with world(server=KEYS) as w:
        message = (await w.chat()).json()["error"]["message"]
    assert "Authorization: Bearer" in message
    assert "--api-key" in message
    assert "OCTAVO_API_KEY" in message


@pytest.mark.parametrize(("model_max_len", "is_advised"), [(0, False), (16, False), (32, True)])
def test_a_longer_context_is_advised_only_if_the_model_has_one(model_max_len: int, is_advised: bool) -> None:
    with pytest.raises(InvalidRequest) as caught:
        room(16, None, None, 16, model_max_len)
    assert ("--max-model-len (up to 32)" in str(caught.value)) == is_advised


async def test_strict_does_not_say_that_an_unknown_field_was_ignored() -> None:
    async with world(strict=True) as w:
        refused = (await w.chat(temperatur=1)).json()["error"]["message"]
    async with world() as w:
        warned = (await w.chat(temperatur=1)).json()["warnings"][0]
    assert "is not known" in refused
    assert "ignored" not in refused
    assert warned == "field 'temperatur' is not known and was ignored"


async def test_the_root_of_a_model_is_what_the_operator_named() -> None:
    async with world(server={"model": "some/model"}) as w:
        cards = (await w.http.get("/v1/models")).json()["data"]
    assert [(card["id"], card["root"]) for card in cards] == [("toy", "some/model"), ("alias", "some/model")]


# ---- the log ------------------------------------------------------------------------------------


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "octavo.request"]


async def test_a_refused_request_leaves_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "octavo.request")
    secret = "never in the log"
    async with world() as w:
        await w.post("/v1/completions", {"prompt": secret, "top_p": 7}, **{"X-Request-Id": "mine"})
        await w.chat(model="x" * 5000)
        await w.http.get("/nope%0A123")
        await w.http.get("/v1/completions")
        await w.post("/v1/completions", {"prompt": secret, "bad\nname": [{}] * 20, "top_k": "a\nb"})
    found = lines(caplog)
    assert found[0] == (
        "request mine refused: POST /v1/completions, status 400, param top_p: "
        "top_p is 7; allowed is more than 0 and at most 1"
    ).replace(" 7;", " 7.0;")
    assert [re.search(r"status (\d+)", line).group(1) for line in found] == [
        "400",
        "404",
        "404",
        "405",
        "400",
    ]  # type: ignore[union-attr]
    assert all(len(line) < 700 and line.isprintable() for line in found)
    assert not any(secret in line for line in found)
    caplog.clear()
    async with world(server=KEYS) as w:
        await w.chat()
        await w.http.get("/health")
    (line,) = lines(caplog)
    assert "status 401" in line


async def test_a_line_has_the_one_id_that_the_client_sees(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "octavo.request")
    async with world(server={"log_requests": True}) as w:
        plain = (await w.chat()).json()["id"]
        own = (await w.post("/v1/completions", {"prompt": "a"}, **{"X-Request-Id": "mine"})).json()["id"]
        await w.metrics()  # waits for the lines
    found = lines(caplog)
    assert [line.split(" ")[1].rstrip(":") for line in found] == [plain, plain, own, own]
    assert own == "cmpl-mine"
    assert not any(re.search(r"[0-9a-f]{32}", line.replace(plain, "")) for line in found)
    assert all("1 prompt token " in line or "1 prompt token," in line for line in found[2:])


async def test_once_is_one_time(caplog: pytest.LogCaptureFixture) -> None:
    from octavo.api.records import RequestLog, Siblings

    record = RequestLog("a", "cmpl-b", 1, 2, 3, 4, 0.0, Siblings(1))
    record.engine = RequestRecord(queued=1.0, scheduled=2.0, num_preemptions=1)
    assert record.line().startswith(
        "request cmpl-b choice 1: abort, 3 prompt tokens (0 cached), 0 generated,"
    )
    assert record.line().endswith(", preempted 1 time")


# ---- foreign hosts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "LOCALHOST.", "127.0.0.1:1", "127.9.9.9", "[::1]", "[::1]:8000"]
)
async def test_hosts_of_this_machine_are_served(host: str) -> None:
    async with world() as w:
        assert (await w.http.get("/v1/models", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        "evil.test:8000",
        "localhost.evil.test",
        "127.0.0.1.evil.test",
        "10.0.0.1",
        "[::2]:1",
        "x@::1",
    ],
)
async def test_foreign_hosts_are_refused_without_a_key(host: str) -> None:
    async with world() as w:
        for path in ("/", "/v1/models", "/health"):
            answer = await w.http.get(path, headers={"Host": host})
            assert answer.status_code == 403
            assert answer.json()["error"]["type"] == "PermissionDeniedError"
            assert "--api-key" in answer.json()["error"]["message"]
        assert (await w.http.post("/v1/completions", headers={"Host": host}, json={})).status_code == 403


@pytest.mark.parametrize("server", [KEYS, {"host": "0.0.0.0"}, {"host": "::"}, {"uds": "/tmp/octavo.sock"}])
async def test_any_host_is_served_with_a_key_or_on_the_network(server: dict[str, object]) -> None:
    plan = {"host": "127.0.0.1", **server}
    async with world(server=plan) as w:
        headers = {"Host": "models.example", "Authorization": "Bearer first-key"}
        assert (await w.http.get("/v1/models", headers=headers)).status_code == 200


async def test_open_routes_are_open_below_a_root_path() -> None:
    async with world(server=KEYS) as w:
        below = httpx.ASGITransport(app=w.app, root_path="/llm")  # as uvicorn says it
        async with httpx.AsyncClient(transport=below, base_url="http://localhost/llm") as http:
            for path, status in (("/health", 200), ("/", 401), ("/version", 401), ("/x/health", 401)):
                assert (await http.get(path)).status_code == status, path


# ---- the page -----------------------------------------------------------------------------------


async def test_the_page_is_what_a_browser_shows_of_the_401_static_and_whole() -> None:
    async with world(server=KEYS) as w:
        answer = await w.http.get("/", headers={"Accept": "text/html,*/*"})
        assert (await w.http.get("/server_info", headers={"Accept": "text/html"})).status_code == 401
        key = {"Authorization": "Bearer first-key"}
        assert (await w.http.get("/", headers=key)).status_code == 200
    assert answer.status_code == 401
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = answer.text
    assert "first-key" not in page
    for needed in (
        "sessionStorage",
        "Authorization",
        'rel="icon" href="data:',
        '<label class="unseen" for="text">',
    ):
        assert needed in page
    for banned in (
        "innerHTML",
        "insertAdjacentHTML",
        "document.write",
        "localStorage",
        "eval(",
        "http://",
        "src=",
    ):
        assert banned not in page


async def test_what_the_page_sends_brings_no_warning() -> None:
    """Its wishes are all understood: the page shows `warnings`."""
    async with world(strict=True) as w:
        answer = await w.chat(stream=True, stream_options={"include_usage": True})
    chunks, is_done = sse(answer.text)
    assert is_done
    assert not any("warnings" in chunk for chunk in chunks)
