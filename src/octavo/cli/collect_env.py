"""`octavo collect-env`: what a bug report needs to say about the machine. Prints no secret."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from octavo import __version__, env
from octavo.config.load import Parser

PACKAGES = ("numpy", "msgspec", "pyzmq", "fastapi", "uvicorn", "uvloop", "tokenizers", "jinja2", "torch")
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
        ["octavo", __version__],
        ["python", f"{platform.python_version()} ({platform.python_implementation()})"],
        ["system", platform.platform()],
        ["cpu", cpus.cpu_name()],
        ["instruction sets", ", ".join(facts.isas)],
        ["cores", f"{facts.cpus} usable of {os.cpu_count()} ({facts.cpus_reason})"],
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
