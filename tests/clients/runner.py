"""Clients as child processes: a script gets the URL of a server and prints what it saw as one JSON object.

So their imports, warnings and sockets stay out of the test's own process. The npm packages that scripts need are
installed once, by the lock file, into a folder of Octavo's cache.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo import env

HERE = Path(__file__).parent
TIMEOUT_S = 180


async def run_python(script: str, url: str) -> Any:
    return await _run(sys.executable, str(HERE / script), url)


async def run_node(script: str, url: str) -> Any:
    folder = await asyncio.to_thread(node_folder)
    shutil.copyfile(HERE / script, folder / script)  # node looks for packages beside the script
    return await _run("node", str(folder / script), url)


async def _run(*argv: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=_environment()
    )
    try:
        out, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode == 0, errors.decode()[-4_000:]
    return json.loads(out.decode().splitlines()[-1])


def _environment() -> dict[str, str]:
    """Without the proxies and keys of the machine: a client must talk to the test's server only."""
    drop = ("proxy", "openai_", "anthropic_", "co_api", "langchain_", "langsmith_", "pythonwarnings")
    return {
        k: v for k, v in os.environ.items() if not k.lower().startswith(drop) and "_proxy" not in k.lower()
    }


def node_folder() -> Path:
    """The folder with the packages of tests/clients/package-lock.json, installed by npm when it is not there."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.fail("node and npm are needed for these tests (Node.js 20 or newer)", pytrace=False)
    lock = (HERE / "package-lock.json").read_bytes()
    folder = env.cache_dir() / "test-clients" / hashlib.sha256(lock).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            for name in ("package.json", "package-lock.json"):
                shutil.copyfile(HERE / name, folder / name)
            command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            got = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if got.returncode:
                pytest.fail(f"npm ci failed in {folder}:\n{got.stderr[-2_000:]}", pytrace=False)
            (folder / "done").touch()
    return folder
