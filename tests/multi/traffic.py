"""Many requests at once to a launched server, each folded to one comparable `Answer`, and its /metrics as numbers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tests.multi.launched import START_TIMEOUT_S, Launched

Body = dict[str, Any]


@dataclass
class Choice:
    """Everything that a client was told of one choice. Equal choices had equal tokens and logprobs."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    prompt_logprobs: list[Any] | None = None
    finish: list[str] = field(default_factory=list)  # more than one would be a fault
    stop_reason: int | str | None = None
    pieces: list[str] = field(default_factory=list, compare=False)  # the text as it came


@dataclass
class Answer:
    """A streamed answer after its end, or a whole one; both in the same form, so that they compare."""

    status: int = 0
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: tuple[int, int, int] | None = None
    error: dict[str, Any] | None = None
    prompt_ids: list[int] | None = field(default=None, compare=False)
    num_cached: int = field(default=0, compare=False)

    @property
    def only(self) -> Choice:
        (choice,) = self.choices.values()
        return choice

    @property
    def num_tokens(self) -> int:
        return sum(len(c.token_ids) for c in self.choices.values())


class Traffic:
    """Requests of one test. `num_chunks` counts what all streams have received so far."""

    def __init__(self, server: Launched, http: httpx.AsyncClient) -> None:
        self.server = server
        self.http = http
        self.num_chunks = 0
        self._num_back = 0

    async def send(self, body: Body, path: str | None = None) -> Answer:
        """One request to its end, streamed when the body says so. Token ids come along."""
        path = path or ("/v1/chat/completions" if "messages" in body else "/v1/completions")
        body = {"return_token_ids": True, **body}
        if body.get("stream"):
            body = {"stream_options": {"include_usage": True}, **body}
            return await self._stream(path, body)
        reply = await self.http.post(path, json=body)
        answer = Answer(reply.status_code)
        _fold(answer, reply.json())
        return answer

    async def all(self, bodies: list[Body]) -> list[Answer]:
        return await asyncio.gather(*(self.send(b) for b in bodies))

    async def _stream(self, path: str, body: Body) -> Answer:
        is_done = False
        async with self.http.stream("POST", path, json=body) as reply:
            answer = Answer(reply.status_code)
            if reply.status_code != 200:
                _fold(answer, json.loads(await reply.aread()))
                return answer
            async for line in reply.aiter_lines():
                if not line.startswith("data: "):
                    continue
                assert not is_done, f"{line} after [DONE]"
                is_done = line == "data: [DONE]"
                if not is_done:
                    self.num_chunks += 1
                    _fold(answer, json.loads(line[6:]))
        assert is_done, f"a stream ended without [DONE]: {answer}"
        return answer

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, f"it did not happen:\n{self.server.log}"
            await asyncio.sleep(0.002)

    async def until_chunks(self, more: int) -> None:
        """Until all streams together have received so many chunks more."""
        goal = self.num_chunks + more
        await self.until(lambda: self.num_chunks >= goal)

    async def health(self) -> tuple[int, str]:
        reply = await self.http.get("/health")
        return reply.status_code, reply.json()["status"]

    async def until_back(self) -> None:
        """Until there is an engine again, after `kill_engine`; what waited for it has been given to it."""
        await self.until(lambda: self.server.log.count("the engine is back") > self._num_back)

    async def until_health(self, status: int, state: str | None = None) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            seen = await self.health()
            if seen[0] == status and state in (None, seen[1]):
                return
            assert time.monotonic() < deadline, f"/health stays {seen}:\n{self.server.log}"
            await asyncio.sleep(0.01)

    async def metrics(self) -> dict[str, float]:
        return parse_metrics((await self.http.get("/metrics")).text)

    async def idle(self) -> dict[str, float]:
        """The metrics once nothing runs, waits or is about to end.

        Gauges are as old as the engine's last word, and records follow the answers; hence two equal scrapes.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        last: dict[str, float] = {}
        while True:
            load = (await self.http.get("/load")).json()["server_load"]
            seen = await self.metrics()
            is_busy = load or seen["vllm:num_requests_running"] or seen["vllm:num_requests_waiting"]
            if not is_busy and seen == last:
                return seen
            last = {} if is_busy else seen
            assert time.monotonic() < deadline, f"{load} open; {self.server.log}"
            await asyncio.sleep(0.05)

    def kill_engine(self) -> int:
        return self.signal_engine(signal.SIGKILL)

    def signal_engine(self, number: int) -> int:
        (pid,) = self.server.engine_pids()
        self._num_back = self.server.log.count("the engine is back")
        os.kill(pid, number)
        return pid


@asynccontextmanager
async def traffic(server: Launched) -> AsyncIterator[Traffic]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{server.port}", timeout=START_TIMEOUT_S, limits=limits, trust_env=False
    ) as http:
        yield Traffic(server, http)


def _fold(answer: Answer, piece: dict[str, Any]) -> None:
    """Adds a chunk, or the whole body, to an answer."""
    if piece.get("error"):
        answer.error = piece["error"]
    if piece.get("usage"):
        assert answer.usage is None, "usage came twice"
        usage = piece["usage"]
        answer.usage = (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])
        answer.num_cached = usage["prompt_tokens_details"]["cached_tokens"]
    answer.prompt_ids = piece.get("prompt_token_ids") or answer.prompt_ids
    for given in piece.get("choices", []):
        choice = answer.choices.setdefault(given["index"], Choice())
        news = given.get("delta") or given.get("message")
        text = (news.get("content") or "") if news is not None else given.get("text", "")
        choice.text += text
        choice.pieces.append(text)
        answer.prompt_ids = given.get("prompt_token_ids") or answer.prompt_ids
        choice.token_ids += given.get("token_ids") or []
        choice.logprobs += _rows(given.get("logprobs"))
        if scored := given.get("prompt_logprobs") or piece.get("prompt_logprobs"):
            assert choice.prompt_logprobs is None, "prompt_logprobs came twice"
            choice.prompt_logprobs = scored
        if given.get("finish_reason"):
            choice.finish.append(given["finish_reason"])
            choice.stop_reason = given.get("stop_reason")


def _rows(logprobs: dict[str, Any] | None) -> list[Any]:
    """One row a token, of either dialect."""
    if logprobs is None:
        return []
    if "content" in logprobs:
        return list(logprobs["content"])
    columns = (logprobs[name] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"))
    return list(zip(*columns, strict=True))


def parse_metrics(text: str) -> dict[str, float]:
    """Series by name; labels that are the same everywhere are dropped, others stay: `name{reason=stop}`."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, _, value = line.rpartition(" ")
        name, _, labels = name.partition("{")
        pairs = dict(p.split("=", 1) for p in labels.rstrip("}").split(",") if p)
        kept = [f"{k}={v.strip(chr(34))}" for k, v in pairs.items() if k not in ("engine", "model_name")]
        found[f"{name}{{{','.join(kept)}}}" if kept else name] = float(value)
    return found


def change(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after[name] - before.get(name, 0.0)


def success(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Requests that ended between two scrapes, by reason; only reasons that occurred."""
    prefix = "vllm:request_success_total{finished_reason="
    counts = {n[len(prefix) : -1]: change(before, after, n) for n in after if n.startswith(prefix)}
    return {reason: count for reason, count in counts.items() if count}


def rss_bytes(pid: int) -> int:
    """Private memory of a process: what is mapped from files (weights) does not count."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no RssAnon of {pid}")
