"""Law 5, light: exactly these third-party packages are loaded by `import octavo`, the API and the engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

# Top-level packages beside the standard library. A new name here is a decision: what does it cost at start?
IMPORT_OCTAVO: set[str] = set()
COMMAND_LINE = {"msgspec", "typing_extensions"}
ENGINE = {"msgspec", "numpy", "typing_extensions", "xxhash", "zmq"}
API = {
    "annotated_types", "anyio", "click", "h11", "httptools", "idna", "msgspec", "numpy", "pydantic", "pydantic_core",
    "python_multipart", "sniffio", "starlette", "tokenizers", "typing_extensions", "typing_inspection", "uvicorn",
    "uvloop", "zmq",
}  # fmt: skip
# Modules of the standard library that take milliseconds.
SLOW = {"asyncio", "ssl", "http.client", "email.message", "tempfile", "multiprocessing", "importlib.metadata"}
HEAVY = {
    "torch",
    "transformers",
    "scipy",
    "pandas",
    "numba",
    "gguf",
    "safetensors",
    "sentencepiece",
    "requests",
    "openai",
}

PROGRAM = """
import sys, json
{imports}
tops = {{name.partition(".")[0] for name in sys.modules if getattr(sys.modules[name], "__file__", None)}}
def is_installed(name):
    return "site-packages" in str(getattr(sys.modules.get(name), "__file__", ""))
third = sorted(name for name in tops - set(sys.stdlib_module_names) if name[0] != "_" and is_installed(name))
print(json.dumps([third, sorted(sys.modules)]))
"""


def modules(imports: str) -> tuple[set[str], set[str]]:
    """(third-party packages, all modules) of a fresh interpreter after `imports`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COV_")} | {
        "PYTHONPATH": str(SOURCE)
    }
    command = [sys.executable, "-c", PROGRAM.format(imports=imports)]
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    third, found = json.loads(text)
    return set(third), set(found)


def loaded(imports: str) -> tuple[set[str], list[str]]:
    """(third-party packages, modules of octavo.kernels)."""
    third, found = modules(imports)
    return third, sorted(name for name in found if name.startswith("octavo.kernels"))


def test_import_octavo_loads_nothing_else() -> None:
    assert loaded("import octavo") == (IMPORT_OCTAVO, [])


def test_the_command_line_loads_next_to_nothing() -> None:
    assert loaded("from octavo.cli.serve import parser; parser()")[0] <= COMMAND_LINE


def test_nothing_slow_is_loaded_before_the_engine_is_forked() -> None:
    third, found = modules(
        "from octavo.cli.serve import parser; parser()\n"
        "import octavo.launch.serve, octavo.launch.find, octavo.weights.fetch, octavo.registry"
    )
    assert third <= COMMAND_LINE
    assert not found & (SLOW - {"tempfile"})


def test_the_api_process_loads_what_is_listed_and_no_engine() -> None:
    imports = """
import uvloop
import octavo.launch.serve, octavo.launch.plan, octavo.launch.server, octavo.launch.text, octavo.launch.http
import octavo.api.app, octavo.api.text.tokenizer, octavo.models.registry, octavo.models.llama
"""
    third, found = modules(imports)
    assert third - API == set()
    assert not third & HEAVY
    engine = ("octavo.kernels", "octavo.core", "octavo.worker", "octavo.executors")
    assert [name for name in found if name.startswith(engine)] == []
    assert "octavo.api.openapi" not in found


def test_the_engine_process_loads_what_is_listed() -> None:
    imports = """
from octavo.launch.engine import preload
preload()
import octavo.launch.orders, octavo.models.llama, octavo.weights.load
"""
    third, found = modules(imports)
    assert third - ENGINE == set()
    assert not found & (SLOW - {"tempfile", "email.message", "importlib.metadata"})
    assert not any(name.startswith("octavo.api") for name in found)


@pytest.mark.parametrize("package", ["api", "core", "wire", "config"])
def test_no_torch_and_no_kernels_where_they_do_not_belong(package: str) -> None:
    third, kernels = loaded(
        f"import pkgutil, importlib, octavo.{package} as p\n"
        "for m in pkgutil.walk_packages(p.__path__, p.__name__ + '.'): importlib.import_module(m.name)"
    )
    assert not third & HEAVY
    assert kernels == []
