"""The load driver against a fake server whose tokens come at known times; figures, ratios, the anatomy of a step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from benchmarks import cases, figures, serve_load
from benchmarks.cases import Sent
from benchmarks.figures import Seen
from benchmarks.serve_load import Target


@dataclass
class FakeServer:
    """Streams one completion; its clock is the client's too, and stands still until the client has read it."""

    times_ms: Sequence[int]
    texts: Sequence[str]
    usage: dict[str, int] | None
    cut: int = 0  # bytes of a frame of chunked transfer; 0 = a frame for an event
    now_s: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    _read: asyncio.Event = field(default_factory=asyncio.Event)

    def clock(self) -> float:
        self._read.set()
        return self.now_s

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        self.bodies.append(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for time_ms, text in zip(self.times_ms, self.texts, strict=True):
            await self._event(writer, time_ms, {"choices": [{"text": text}]})
        if self.usage is not None:
            await self._event(writer, self.times_ms[-1] + 500, {"choices": [], "usage": self.usage})
        await self._event(writer, self.times_ms[-1] + 900, None)
        writer.write(b"0\r\n\r\n")
        writer.close()

    async def _event(self, writer: asyncio.StreamWriter, time_ms: int, content: dict[str, Any] | None) -> None:
        data = b"data: " + (b"[DONE]" if content is None else json.dumps(content).encode()) + b"\n\n"
        self.now_s = time_ms / 1000
        self._read.clear()
        size = self.cut or len(data)
        for piece in (data[i : i + size] for i in range(0, len(data), size)):
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await self._read.wait()


async def asked(fake: FakeServer, sent: Sent) -> Seen:
    async with await asyncio.start_server(fake.serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        return await serve_load.ask(Target(f"http://127.0.0.1:{port}/v1", "m"), sent, fake.clock)


@pytest.mark.parametrize("cut", [0, 7])
async def test_ttft_is_no_gap_and_tokens_come_from_usage_bb144(cut: int) -> None:
    """Case BB-144. Four chunks; usage says four tokens, whatever the texts would re-tokenise to."""
    texts = ["many words in one chunk", "b", "c", "d"]
    fake = FakeServer([100, 110, 130, 160], texts, {"prompt_tokens": 7, "completion_tokens": 4}, cut)
    seen = await asked(fake, Sent("hello", 4))
    assert not seen.error
    assert seen.ttft_s == pytest.approx(0.100)
    assert seen.gaps_s == pytest.approx([0.010, 0.020, 0.030])
    assert seen.tpot_s == pytest.approx(0.020)
    assert (seen.num_prompt, seen.num_out) == (7, 4)
    got = figures.of_case("c1", "fake", [seen], 2.0)
    assert (got["ttft_p50_ms"], got["itl_p50_ms"], got["itl_p99_ms"]) == (100.0, 20.0, 30.0)
    assert (got["stream_tok_s"], got["output_tokens"], got["out_tok_s"]) == (50.0, 4, 2.0)
    body = fake.bodies[0]
    assert (body["temperature"], body["ignore_eos"], body["max_tokens"]) == (0, True, 4)


async def test_empty_texts_are_no_chunks_and_several_tokens_in_one_count_by_usage() -> None:
    fake = FakeServer([50, 90, 95], ["a", "b", ""], {"prompt_tokens": 1, "completion_tokens": 9})
    seen = await asked(fake, Sent("x", 9))
    assert seen.gaps_s == pytest.approx([0.040])
    assert seen.tpot_s == pytest.approx(0.005)


async def test_a_stream_without_usage_and_a_refused_connection_are_errors() -> None:
    seen = await asked(FakeServer([10], ["a"], None), Sent("x", 1))
    assert "usage" in seen.error
    seen = await serve_load.ask(Target("http://127.0.0.1:9", "m"), Sent("x", 1))
    assert seen.error
    got = figures.of_case("c2", "fake", [seen], 1.0)
    assert (got["n"], got["errors"], got["output_tokens"], got["first_error"]) == (1, 1, 0, seen.error)


def test_prompts_depend_on_the_seed_alone_and_share_only_what_a_case_means_to() -> None:
    for name in cases.CASES:
        again, other = cases.case(name, 3), cases.case(name, 4)
        assert again == cases.case(name, 3)
        mine = {sent.prompt for sent in again.sent}
        assert len(mine) == len(again.sent)
        assert not mine & {sent.prompt for sent in other.sent}
    shared = cases.case("c3", 0)
    heads = {sent.prompt.partition("\n")[0] for sent in shared.sent + shared.first}
    assert len(heads) == 1
    assert [len(cases.case(name, 0).sent) for name in cases.CASES] == [3, 64, 32, 3, 11, 128]
