"""Loads an OpenAI-compatible server with the cases of `cases.py`; prints one JSON line a case.

    python -m benchmarks.serve_load --base http://127.0.0.1:8000 --model NAME [--cases c1,c2] [--seed 1]

Greedy, `ignore_eos`, a fixed number of tokens out. The client shares the machine with the server, so it
does as little as it can: plain sockets, a clock reading for each event; JSON is read after the load has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from benchmarks.cases import CASES, Case, Sent, case, warm_up
from benchmarks.figures import Seen, of_case

TIMEOUT_S = 1200.0
MAX_LINE_BYTES = 1 << 22
Clock = Callable[[], float]  # seconds


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


async def ask(target: Target, sent: Sent, clock: Clock = time.perf_counter) -> Seen:
    """Sends one request and follows its stream to the end."""
    request = target.request(sent)
    seen = Seen(clock())
    events: list[tuple[float, bytes]] = []
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(*target.address(), limit=MAX_LINE_BYTES)
            try:
                writer.write(request)
                status = await reader.readline()
                head = b""
                while (line := await reader.readline()).strip():
                    head += line.lower()
                if b" 200 " not in status:
                    answer = await reader.read(300)
                    seen.error = f"{status.decode('latin-1').strip()}: {answer.decode('utf-8', 'replace')}"
                    return seen
                pieces = chunked(reader) if b"transfer-encoding: chunked" in head else plain(reader)
                async for line in lines(pieces):
                    if line.startswith(b"data:"):
                        events.append((clock(), line))
                        if line[5:].strip() == b"[DONE]":
                            break
            finally:
                writer.close()
    except (OSError, EOFError, TimeoutError, ValueError) as error:
        seen.error = f"{type(error).__name__}: {error}"
    read_events(seen, events)
    return seen


async def chunked(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The pieces of a body in chunked transfer (RFC 9112, section 7.1)."""
    while size := int((await reader.readline()).partition(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readline()


async def plain(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while piece := await reader.read(1 << 16):
        yield piece


async def lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines, wherever the pieces are cut."""
    held = b""
    async for piece in pieces:
        *whole, held = (held + piece).split(b"\n")
        for line in whole:
            yield line


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

    async def one(sent: Sent) -> Seen:
        if sent.at_s:
            await asyncio.sleep(sent.at_s)
        async with free:
            return await ask(target, sent)

    start = time.perf_counter()
    seen = await asyncio.gather(*(one(sent) for sent in work.sent))
    return list(seen), time.perf_counter() - start


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
    unknown = set(given.cases.split(",")) - set(CASES)
    if unknown:
        parser.error(f"--cases has {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
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
