"""Loads an OpenAI-compatible server with the cases of `cases.py`; prints one JSON line a case.

    python -m benchmarks.serve_load --base http://127.0.0.1:8000 --model NAME [--cases c1,c2] [--seed 1]

Greedy, `ignore_eos`, a fixed number of tokens out. The client shares the machine with the server, so it
does as little as it can: a clock reading for each piece that comes; HTTP and JSON are read after the load has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from benchmarks.cases import CASES, TRY, Case, Sent, case, warm_up
from benchmarks.figures import Seen, of_case

TIMEOUT_S = 1200.0
DONE = b"data: [DONE]"
LAST_BYTES = 64  # in which the end of a stream is looked for, chunked or not
Clock = Callable[[], float]  # seconds
Piece = tuple[float, bytes]  # when it came, and what


@dataclass(frozen=True)
class Target:
    base: str  # with or without /v1
    model: str

    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.base)
        if parts.scheme != "http" or not parts.hostname:
            sys.exit(f"--base is {self.base!r}: give one like http://127.0.0.1:8000")
        return parts.hostname, parts.port or 80

    def request(self, sent: Sent) -> bytes:
        """The bytes of a completion request; `n_predict` is llama.cpp's own name of max_tokens."""
        body = json.dumps(
            {
                "model": self.model,
                "prompt": sent.prompt,
                "max_tokens": sent.num_out,
                "n_predict": sent.num_out,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        host, port = self.address()
        path = urlsplit(self.base).path.rstrip("/").removesuffix("/v1") + "/v1/completions"
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body


class Stream(asyncio.Protocol):
    """Keeps what comes over one connection, and when; looks at nothing but the end of a stream."""

    def __init__(self, request: bytes, clock: Clock) -> None:
        self._request, self._clock = request, clock
        self.sent_s = clock()
        self.pieces: list[tuple[float, bytes]] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.pieces.append((self._clock(), data))
        self._tail = (self._tail + data)[-LAST_BYTES:]
        if DONE in self._tail:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def close(self) -> None:
        self._transport.close()


async def ask(target: Target, sent: Sent, clock: Clock = time.perf_counter) -> Seen:
    """Sends one request and follows its stream to the end. Reads what came only then."""
    stream = await follow(target, sent, clock)
    return read(stream) if isinstance(stream, Stream) else stream


async def follow(target: Target, sent: Sent, clock: Clock) -> Seen | Stream:
    """One request to the end of its stream, unread; what was seen when there was no connection."""
    loop = asyncio.get_running_loop()
    stream = Stream(target.request(sent), clock)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await loop.create_connection(lambda: stream, *target.address())
            await stream.over
    except (OSError, TimeoutError) as error:
        if stream.pieces:
            stream.close()
        return Seen(stream.sent_s, error=f"{type(error).__name__}: {error}")
    return stream


def read(stream: Stream) -> Seen:
    """The head, then the events of a stream; an answer that is none becomes an error."""
    seen = Seen(stream.sent_s)
    whole = b"".join(piece for _, piece in stream.pieces)
    head, _, body = whole.partition(b"\r\n\r\n")
    status = head.partition(b"\r\n")[0]
    if b" 200 " not in status:
        said = body[:300].decode("utf-8", "replace")
        seen.error = f"{status.decode('latin-1').strip() or 'no answer'}: {said}"
        return seen
    try:
        texts = list(timed(stream.pieces, len(head) + 4))
        if b"transfer-encoding: chunked" in head.lower():
            texts = list(chunked(texts))
        read_events(seen, [event for event in lines(texts) if event[1].startswith(b"data:")])
    except ValueError as error:
        seen.error = f"{type(error).__name__}: {error}"
    return seen


def timed(pieces: Iterable[Piece], skip: int) -> Iterator[Piece]:
    """The pieces without the first `skip` bytes."""
    for at_s, piece in pieces:
        if skip < len(piece):
            yield at_s, piece[skip:]
        skip = max(skip - len(piece), 0)


def chunked(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The content of a body in chunked transfer (RFC 9112, section 7.1), each byte with the time it came at."""
    held, left = b"", 0  # of a size line or the end of a chunk; of the chunk's content and its line end
    for at_s, piece in pieces:
        held += piece
        while held:
            if left > 2:
                content, held = held[: left - 2], held[left - 2 :]
                left -= len(content)
                yield at_s, content
            elif left:
                cut = min(left, len(held))
                held, left = held[cut:], left - cut
            else:
                size, found, rest = held.partition(b"\r\n")
                if not found:
                    break
                held, left = rest, int(size.partition(b";")[0], 16) + 2


def lines(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Whole lines, wherever the pieces are cut, each with the time of its last byte."""
    held = b""
    for at_s, piece in pieces:
        *whole, held = (held + piece).split(b"\n")
        for line in whole:
            yield at_s, line


def read_events(seen: Seen, events: Iterable[tuple[float, bytes]]) -> None:
    """Fills times and counts from the lines of a stream.

    An event with an empty text is no chunk, unless none has text.
    """
    texts: list[float] = []
    others: list[float] = []
    usage: dict[str, Any] = {}
    for at_s, line in events:
        data = line[5:].strip()
        if data == b"[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            seen.error = seen.error or f"error event: {event['error']}"
        usage = event.get("usage") or usage
        if choices := event.get("choices"):
            (texts if choices[0].get("text") else others).append(at_s)
    seen.chunks_s = texts or others
    seen.num_prompt = int(usage.get("prompt_tokens", 0))
    seen.num_out = int(usage.get("completion_tokens", 0))
    if not usage and not seen.error:
        seen.error = "the stream brought no usage"


async def load(target: Target, work: Case) -> tuple[list[Seen], float]:
    """All requests of a case: (what each saw, seconds from the first to the last event)."""
    for sent in work.first:
        await ask(target, sent)
    free = asyncio.Semaphore(work.at_once)

    async def one(sent: Sent) -> Seen | Stream:
        if sent.at_s:
            await asyncio.sleep(sent.at_s)
        async with free:
            return await follow(target, sent, time.perf_counter)

    start = time.perf_counter()
    found = await asyncio.gather(*(one(sent) for sent in work.sent))
    wall_s = time.perf_counter() - start
    return [read(each) if isinstance(each, Stream) else each for each in found], wall_s


def run_case(target: Target, name: str, seed: int, label: str) -> dict[str, Any]:
    seen, wall_s = asyncio.run(load(target, case(name, seed)))
    return of_case(name, label, seen, wall_s)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", default="http://127.0.0.1:8000", help="default: %(default)s")
    parser.add_argument("--model", required=True, help="a name that the server answers to")
    parser.add_argument("--cases", default=",".join(CASES), help="default: %(default)s")
    parser.add_argument("--label", default="octavo", help="name of the server in the results")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts: another one in every run")
    parser.add_argument("--bare", action="store_true", help="figures only, without machine and commit")
    given = parser.parse_args()
    unknown = set(given.cases.split(",")) - {*CASES, TRY}
    if unknown:
        parser.error(f"--cases has {', '.join(sorted(unknown))}; there are {', '.join((*CASES, TRY))}")
    if given.bare:
        about: dict[str, Any] = {}
    else:
        from benchmarks.machine import facts

        about = facts()
    target = Target(given.base, given.model)
    asyncio.run(load(target, warm_up(given.seed)))
    failed = 0
    for name in given.cases.split(","):
        figures = run_case(target, name, given.seed, given.label)
        failed += figures["errors"]
        print(json.dumps(figures | ({"seed": given.seed} | about)), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
