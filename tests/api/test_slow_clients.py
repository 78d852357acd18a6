"""Clients that send nothing, or too slowly, lose their connection; those that move on, or wait for us, do not.

Ends are waited for, never timed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.fakes.api_world import World, on_socket, world
from tests.fakes.scripted_engine import Script

from octavo.launch.http import LEAST_BODY_RATE, BoundedHttp

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
BODY = b'{"prompt": "Hello", "max_tokens": 3}'


class Impatient(BoundedHttp):
    receive_timeout_s = 0.05


class Patient(BoundedHttp):
    receive_timeout_s = 0.0


@asynccontextmanager
async def connected(
    protocol: type[BoundedHttp], script: Script | str = "Hello"
) -> AsyncIterator[tuple[World, asyncio.StreamReader, asyncio.StreamWriter]]:
    async with world(script) as w, on_socket(w.app, http=protocol) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        try:
            yield w, reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Everything until the server hangs up."""
    return await asyncio.wait_for(reader.read(), 30)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /heal",
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-",
        HEAD + b"Content-Length: 36\r\n\r\n{",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
)
async def test_a_request_that_stops_in_the_middle_is_a_408(sent: bytes) -> None:
    async with connected(Impatient) as (w, reader, writer):
        writer.write(sent)
        assert (await rest(reader)).startswith(b"HTTP/1.1 408 ")
        assert w.engine.seen == []


async def test_a_byte_now_and_then_is_no_progress() -> None:
    """By a plain socket: a byte that goes out behind the end resets the connection, and a stream reader would then
    forget what had come before."""
    loop = asyncio.get_running_loop()
    async with world("Hello") as w, on_socket(w.app, http=Impatient) as url:
        with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) as client:
            client.setblocking(False)
            await loop.sock_sendall(client, HEAD + b"Content-Length: 100000\r\n\r\n")
            answer = asyncio.ensure_future(loop.sock_recv(client, 4096))
            while not answer.done():
                with contextlib.suppress(ConnectionError):
                    await loop.sock_sendall(client, b" ")
                await asyncio.sleep(0.005)
            assert (await answer).startswith(b"HTTP/1.1 408 ")


async def test_a_connection_that_says_nothing_ends_without_a_word() -> None:
    async with connected(Impatient) as (_, reader, _writer):
        assert await rest(reader) == b""


async def test_blank_lines_do_not_hold_a_connection() -> None:
    async with connected(Impatient) as (_, reader, writer):
        writer.write(b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\r\n")
        await rest(reader)


async def test_the_time_of_an_answer_is_not_the_clients() -> None:
    """The engine is held far longer than a request may take to arrive."""
    async with connected(Impatient) as (w, reader, writer):
        w.engine.hold.clear()
        writer.write(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
        while not w.engine.seen:
            await asyncio.sleep(0.001)
        await asyncio.sleep(4 * Impatient.receive_timeout_s)
        w.engine.hold.set()
        assert (await rest(reader)).startswith(b"HTTP/1.1 200 ")


async def test_bytes_buy_time() -> None:
    """A body's pieces move its end back by what they would take at the least rate."""
    made: list[BoundedHttp] = []

    class Watched(BoundedHttp):
        receive_timeout_s = 1_000.0

        def on_body(self, body: bytes) -> None:
            before = self._due_s
            super().on_body(body)
            assert self._due_s == pytest.approx(before + len(body) / LEAST_BODY_RATE)
            made.append(self)

    async with connected(Watched) as (_, reader, writer):
        writer.write(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY[:9])
        while not made:
            await asyncio.sleep(0.001)
        writer.write(BODY[9:])
        assert (await rest(reader)).startswith(b"HTTP/1.1 200 ")
    assert len(made) >= 2
    assert all(protocol._timer is None for protocol in made)


async def test_zero_is_no_bound() -> None:
    async with connected(Patient) as (_, reader, writer):
        writer.write(HEAD)
        await asyncio.sleep(4 * Impatient.receive_timeout_s)
        writer.write(b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
        assert (await rest(reader)).startswith(b"HTTP/1.1 200 ")
