"""More than a thousand connections that are idle, half sent, or too many: the server answers, and gets rid of them.

What the clients hold is counted, never timed; ends are waited for.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from tests.multi.launched import START_TIMEOUT_S, Launched, launched

COUNT = 1_200
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
PING = b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
#: What a client sends before it falls silent, and how its connection ends.
SILENCES = {
    "after an answer": (PING, b""),
    "in a head": (b"GET /heal", b"HTTP/1.1 408 "),
    "in a body": (HEAD + b"Content-Length: 1000\r\n\r\n{", b"HTTP/1.1 408 "),
    "from the start": (b"", b""),
}


@pytest.fixture(autouse=True)
def _room() -> Iterator[None]:
    """File descriptors for the clients, which this process is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def num_files(server: Launched) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@contextmanager
def connections(server: Launched, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        held = []
        for _ in range(count):
            held.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port))))
            held[-1].settimeout(START_TIMEOUT_S)
        yield held


def said(client: socket.socket) -> bytes:
    """All that the server says until it hangs up; b"reset" for one that it threw out unread."""
    found = b""
    try:
        while data := client.recv(4096):
            found += data
    except ConnectionResetError:
        return found or b"reset"
    return found


def answer(client: socket.socket) -> bytes:
    """One answer on a connection that stays."""
    client.sendall(PING)
    found = b""
    while b"}" not in found:
        data = client.recv(4096)
        assert data, found
        found += data
    return found


def test_silent_connections_end_and_leave_nothing(smollm2_path: str) -> None:
    timeouts = ("--http-timeout-receive", "3", "--http-timeout-keep-alive", "3")
    with launched(smollm2_path, *timeouts, max_files=4096) as server:
        server.completion(prompt="One, two,", max_tokens=1)
        before = num_files(server)
        with connections(server, COUNT) as held:
            kinds = [*SILENCES] * (COUNT // len(SILENCES))
            for kind, client in zip(kinds, held, strict=True):
                client.sendall(SILENCES[kind][0])
            assert server.request("GET", "/health")[0] == 200
            assert server.completion(prompt="One, two,", max_tokens=2)
            for kind, client in zip(kinds, held, strict=True):
                text = said(client)
                if kind == "after an answer":
                    assert text.startswith(b"HTTP/1.1 200 ")
                    text = text.partition(b"}")[2]
                assert text.startswith(SILENCES[kind][1]) if SILENCES[kind][1] else not text, kind
            until(lambda: num_files(server) <= before, "the files come back")
        assert server.completion(prompt="One, two,", max_tokens=2)


def test_at_the_limit_of_files_the_rest_is_refused_and_the_server_goes_on(smollm2_path: str) -> None:
    """The limit leaves room for what a server opens: a template worker, an engine that replaces a killed one."""
    timeouts = ("--http-timeout-receive", "60", "--http-timeout-keep-alive", "60")
    with launched(smollm2_path, *timeouts, max_files=1024) as server:
        (engine,) = server.engine_pids()
        before = num_files(server)
        with connections(server, 1) as (first,):
            assert b" 200 " in answer(first)
            with connections(server, COUNT) as held:
                until(lambda: num_files(server) <= 1024 - 64, "connections beyond the limit are closed")
                os.kill(engine, 9)
                server.wait_for_line("the engine is back")
                assert b" 200 " in answer(first)
                # A refused client is told so, or its connection is reset before it has read it.
                held_open = 1024 - 128 - 1
                ends = Counter(said(client)[:13] for client in held[held_open + 100 :])
                assert set(ends) <= {b"HTTP/1.1 503 ", b"reset"}
                assert ends[b"HTTP/1.1 503 "] > 0
            until(lambda: num_files(server) <= before + 8, "the files come back")
        assert server.completion(prompt="One, two,", max_tokens=2)
