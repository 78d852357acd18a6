"""Seconds from typing `octavo serve` to the first streamed token, over several starts.

    ./run bench start --runs 5 --model smollm2

Each run starts a server on a free port, asks for one token again and again until it comes, and ends
the server. Prints one JSON line: the whole time as a client saw it, and on Linux the CPU seconds that each of
the server's processes had taken by then, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path

POLL_S = 0.005
LIMIT_S = 120.0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="as for `octavo serve` (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="starts (default: %(default)s)")
    parser.add_argument("more", nargs="*", help="more flags of `octavo serve`, after --")
    given = parser.parse_args(argv)
    starts = [one_start(given.model, given.more) for _ in range(given.runs)]
    times = [seconds for seconds, _ in starts]
    figures = {
        "what": "start to first token",
        "model": given.model,
        "runs": given.runs,
        "min_s": round(min(times), 3),
        "median_s": round(statistics.median(times), 3),
        "max_s": round(max(times), 3),
        "cpu_s": {
            name: round(statistics.median(cpu.get(name, 0.0) for _, cpu in starts), 3)
            for name in starts[0][1]
        },
    }
    print(json.dumps(figures))
    return 0


def one_start(model: str, more: list[str]) -> tuple[float, dict[str, float]]:
    """Starts a server, waits for its first token, ends it. Returns the seconds that it took, and CPU seconds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "octavo.cli.main", "serve", model, "--port", str(port), *more]
    start = time.monotonic()
    # As installed: Python's compiled files are there, or are written by the first start.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        while not first_token(port):
            if process.poll() is not None or time.monotonic() - start > LIMIT_S:
                _, said = process.communicate() if process.poll() is not None else (None, "no token in time")
                raise SystemExit(f"the server did not start: {said.strip().splitlines()[-1]}")
            time.sleep(POLL_S)
        return time.monotonic() - start, cpu_seconds(process.pid)
    finally:
        process.terminate()
        process.communicate()


def cpu_seconds(pid: int) -> dict[str, float]:
    """CPU seconds so far of a server and of its children, by what they are."""
    found: dict[str, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(") ")[2].split()
            words = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if int(folder.name) == pid or int(fields[1]) == pid:
            names = ("launch.engine", "template_worker", "launch.api_child")
            name = next((n for n in names if n in words), "serve")
            seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            found[name] = found.get(name, 0.0) + seconds
    return found


def first_token(port: int) -> bool:
    """Whether a streamed chat brought its first piece of text."""
    body = {
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 1,
        "temperature": 0,
        "stream": True,
    }
    connection = HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        reply = connection.getresponse()
        return reply.status == 200 and any(b'"content":"' in line for line in reply)
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
