"""`octavo collect-env`: what a bug report needs to say about the machine. Prints no secret."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import octavo
from octavo import __version__, env
from octavo.config.load import Parser

PACKAGES = (
    "numpy",
    "msgspec",
    "pyzmq",
    "starlette",
    "pydantic",
    "uvicorn",
    "httptools",
    "uvloop",
    "tokenizers",
    "jinja2",
    "llguidance",
    "torch",
)
_SECRET = ("KEY", "TOKEN")


def main(argv: list[str]) -> int:
    Parser(prog="octavo collect-env", description="Facts about this machine, for a bug report.").parse_args(
        argv
    )
    from octavo.launch.table import render

    print(render(rows(), indent=""))
    return 0


def rows() -> list[list[str]]:
    from octavo.config.budget import fmt
    from octavo.launch.facts import machine_facts
    from octavo.util import cpus

    facts = machine_facts()
    found = [
        ["octavo", f"{__version__} {commit()}".rstrip()],
        ["python", f"{platform.python_version()} ({platform.python_implementation()})"],
        ["system", platform.platform()],
        ["compiler", first_line(os.environ.get("CXX", "c++"), "--version") or "-"],
        ["cpu", cpus.cpu_name()],
        ["instruction sets", ", ".join(facts.isas)],
        ["cores", f"{facts.cpus} usable of {os.cpu_count()} ({facts.cpus_reason})"],
        ["load average", ", ".join(f"{load:.2f}" for load in os.getloadavg())],
        ["memory", f"{fmt(facts.memory_bytes)} ({facts.memory_reason})"],
        ["executors", ", ".join(facts.executors) or "none: the native module is not built"],
    ]
    for package in PACKAGES:
        try:
            found.append([package, version(package)])
        except PackageNotFoundError:
            found.append([package, "-"])
    for variable in env.VARIABLES:
        value = os.environ.get(variable.name)
        if value is not None:
            found.append([variable.name, "(set)" if any(s in variable.name for s in _SECRET) else value])
    return found


def commit() -> str:
    """The commit of the checkout that this package lies in, and whether files differ from it; "" elsewhere."""
    root = Path(octavo.__file__).parents[2]
    if not (root / ".git").exists():
        return ""
    head = first_line("git", "-C", str(root), "rev-parse", "--short=12", "HEAD")
    changed = first_line("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    return f"(commit {head}{', with changes' if changed else ''})" if head else ""


def first_line(*command: str) -> str:
    """Of a program's output; "" when it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.partition("\n")[0].strip()
