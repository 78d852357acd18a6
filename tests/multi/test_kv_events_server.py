"""A real server with KV events, logits for logprobs and repetition detection: flags to answers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from tests.multi.launched import Launched, free_port, launched

PATIENCE_MS = 60_000
PROMPT = "Shared words of a long prompt. " * 12
FLAG = "--kv-events-config"


@pytest.fixture(scope="module")
def addresses() -> list[str]:
    return [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]


@pytest.fixture(scope="module")
def server(smollm2_path: Path, addresses: list[str]) -> Iterator[Launched]:
    live, past = addresses
    keys = {"enable_kv_cache_events": "true", "endpoint": live, "replay_endpoint": past, "topic": "kv"}
    flags = [word for key, value in keys.items() for word in (f"{FLAG}.{key}", value)]
    with launched(str(smollm2_path), *flags, "--logprobs-mode", "raw_logits") as running:
        yield running


def complete(server: Launched, **body: Any) -> dict[str, Any]:
    status, text = server.request("POST", "/v1/completions", {"temperature": 0, **body})
    assert status == 200, text
    answer: dict[str, Any] = json.loads(text)
    return answer


def past_of(address: str) -> list[tuple[int, list[Any]]]:
    """All messages so far, by the replay: (sequence, events)."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(address)
    socket.send_multipart([b"", bytes(8)])
    found = []
    while True:
        assert socket.poll(PATIENCE_MS), "no answer"
        _, sequence, payload = socket.recv_multipart()
        number = int.from_bytes(sequence, "big", signed=True)
        if number < 0:
            break
        found.append((number, msgspec.msgpack.decode(payload)[1]))
    context.destroy(0)
    return found


def stored_tokens(messages: list[tuple[int, list[Any]]]) -> list[int]:
    return [i for _, events in messages for event in events if event[0] == "BlockStored" for i in event[3]]


def test_what_the_cache_holds_is_told_and_a_new_engine_begins_anew(
    server: Launched, addresses: list[str]
) -> None:
    live, past = addresses
    context = zmq.Context()
    follower = context.socket(zmq.SUB)
    follower.setsockopt(zmq.SUBSCRIBE, b"kv")
    follower.connect(live)
    answer = complete(server, prompt=PROMPT, max_tokens=1, return_token_ids=True)
    ids = answer["choices"][0]["prompt_token_ids"]
    messages = past_of(past)
    assert [number for number, _ in messages] == list(range(len(messages)))
    assert messages[0][1] == [["AllBlocksCleared"]]
    told = stored_tokens(messages)
    assert len(told) > 32 and told == ids[: len(told)]
    assert not any(event[0] == "BlockRemoved" for _, events in messages for event in events)

    before = server.engine_pids()
    os.kill(before[0], signal.SIGKILL)
    server.wait_for_line("the engine is back")
    again = complete(server, prompt=PROMPT, max_tokens=1)
    assert again["choices"][0]["text"] == answer["choices"][0]["text"]
    renewed = past_of(past)
    assert renewed[0] == (0, [["AllBlocksCleared"]]) and stored_tokens(renewed) == told

    for i in range(200):  # until the subscriber has found the new engine
        complete(server, prompt=f"{i} more, and long enough for a block or two. " * 4, max_tokens=1)
        if follower.poll(100):
            break
    topic, sequence, payload = follower.recv_multipart()
    assert topic == b"kv" and len(sequence) == 8 and msgspec.msgpack.decode(payload)[2] == 0
    context.destroy(0)
    status, text = server.request("GET", "/kv_event_sources")
    assert status == 200 and json.loads(text)["0"]["endpoint"] == live


def test_logprobs_are_logits_and_chosen_ids_are_shown(server: Launched) -> None:
    best = complete(server, prompt="The sky is", max_tokens=4, logprobs=5, return_tokens_as_token_ids=True)
    tops = best["choices"][0]["logprobs"]["top_logprobs"]
    assert all(max(top.values()) > 0.5 for top in tops), "logits, not logarithms of probabilities"
    ids = [int(name.removeprefix("token_id:")) for name in tops[0]]
    fields = {"logprob_token_ids": ids[::-1], "return_tokens_as_token_ids": True, "prompt_logprobs": 1}
    chosen = complete(server, prompt="The sky is", max_tokens=4, **fields)
    shown = chosen["choices"][0]["logprobs"]["top_logprobs"][0]
    assert shown == tops[0]
    scores = chosen["choices"][0]["prompt_logprobs"][1:]
    assert all(max(entry["logprob"] for entry in score.values()) > 0.5 for score in scores)


def test_an_answer_that_repeats_itself_ends(server: Launched) -> None:
    asked = {"max_pattern_size": 3, "min_count": 4}
    body = {"prompt": "x", "max_tokens": 30, "logit_bias": {"100": 100}, "repetition_detection": asked}
    choice = complete(server, **body)["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("repetition", "repetition_detected")
    again = complete(server, **body, return_token_ids=True)["choices"][0]
    assert again["token_ids"] == [100] * 4
    _, metrics = server.request("GET", "/metrics")
    assert 'finished_reason="repetition"' in metrics
