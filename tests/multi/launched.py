"""A real server as a child process of a test: started, talked to, ended. No timing is asserted."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "src"
START_TIMEOUT_S = 120.0


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(SOURCE), "OCTAVO_LOG_LEVEL": "info"} | more


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "octavo.cli.main", *argv]


def run_to_end(*argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A command that is expected to end by itself."""
    return subprocess.run(
        command(*argv),
        capture_output=True,
        text=True,
        check=False,
        timeout=START_TIMEOUT_S,
        env=environment(**more),
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Launched:
    """`octavo serve` on a port of its own."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_for_line(self, word: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not any(word in line for line in list(self.lines)):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"no line with {word!r}:\n{self.log}")
            time.sleep(0.02)

    def engine_pids(self) -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_text().split("\0")
            except OSError:
                continue
            if "octavo.launch.engine" in words and str(self.process.pid) in words:
                found.append(int(folder.name))
        return found

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=START_TIMEOUT_S)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        finally:
            connection.close()

    def completion(self, **body: Any) -> str:
        status, text = self.request("POST", "/v1/completions", body)
        assert status == 200, text
        return str(json.loads(text)["choices"][0]["text"])

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(START_TIMEOUT_S)
        self._reader.join(10)
        return code


class Stream(threading.Thread):
    """A streamed completion, read in a thread; `text`, `is_done` and `finish` say how it went."""

    def __init__(self, server: Launched, **body: Any) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._body = {**body, "stream": True}
        self.text = ""
        self.finish: str | None = None
        self.is_done = False
        self.has_begun = threading.Event()
        self.start()

    def run(self) -> None:
        connection = HTTPConnection("127.0.0.1", self._server.port, timeout=START_TIMEOUT_S)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(self._body), headers)
        for raw in connection.getresponse():
            line = raw.decode().strip()
            if line == "data: [DONE]":
                self.is_done = True
                break
            if line.startswith("data:"):
                for choice in json.loads(line[5:]).get("choices", []):
                    self.text += choice["text"]
                    self.finish = choice["finish_reason"] or self.finish
                self.has_begun.set()
        connection.close()


@contextmanager
def launched(model: str, *argv: str, max_files: int = 0, **more: str) -> Iterator[Launched]:
    """A server that is ready; whatever is left of it at the end is killed. `max_files`: its `ulimit -n`."""
    port = free_port()
    small = ("--max-model-len", "1024", "--max-num-seqs", "16", "--threads", "1", "--port", str(port))
    limited = ["bash", "-c", f'ulimit -n {max_files} && exec "$@"', "bash"] if max_files else []
    process = subprocess.Popen(
        [*limited, *command("serve", model, *small, *argv)],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**more),
    )
    server = Launched(process, port)
    try:
        server.wait_for_line("octavo: ready:")
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        server.wait()
        assert process.stderr is not None
        process.stderr.close()
