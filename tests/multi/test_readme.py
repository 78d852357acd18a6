"""The examples of README.md, pasted and run: by the shell, and each Python block as a program of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.multi.launched import START_TIMEOUT_S, Launched, environment, launched

TEXT = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server(smollm2_path: str) -> Iterator[Launched]:
    with launched(smollm2_path, "--served-model-name", "smollm2") as running:
        yield running


def run(argv: list[str]) -> str:
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=START_TIMEOUT_S, env=environment()
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_has_the_examples_that_are_run_here() -> None:
    assert [kind for kind, _ in BLOCKS] == ["bash", "python", "python"]
    assert TEXT.count("\n```") == 2 * len(BLOCKS)


def test_the_requests_by_curl(server: Launched) -> None:
    printed = run(["bash", "-e", "-c", BLOCKS[0][1].replace(":8000", f":{server.port}")])
    whole, _, stream = printed.partition("data: ")
    answer = json.loads(whole)
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] <= 64
    chunks = [json.loads(line) for line in stream.replace("data: ", "").splitlines() if line.startswith("{")]
    assert "".join(c["text"] for chunk in chunks for c in chunk["choices"])
    assert stream.rstrip().endswith("[DONE]")


def test_the_openai_client(server: Launched) -> None:
    assert run([sys.executable, "-c", BLOCKS[1][1].replace(":8000", f":{server.port}")]).strip()


def test_without_a_server(smollm2_path: str) -> None:
    program = BLOCKS[2][1].replace('"smollm2"', repr(smollm2_path))
    assert smollm2_path in program
    assert "Paris" in run([sys.executable, "-c", program])
