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
ENGINE = {"msgspec", "numpy", "tqdm", "typing_extensions", "zmq", "cbor2", "xxhash"}
API = {
    "annotated_types", "anyio", "click", "h11", "httptools", "idna", "jinja2", "markupsafe",
    "msgspec", "numpy", "pydantic", "pydantic_core", "python_multipart", "sniffio", "starlette", "tokenizers", "tqdm",
    "typing_extensions", "typing_inspection", "uvicorn", "uvloop", "zmq",
}  # fmt: skip
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
before = set(sys.modules)
{imports}
tops = {{name.partition(".")[0] for name in sys.modules if getattr(sys.modules[name], "__file__", None)}}
def is_installed(name):
    return "site-packages" in str(getattr(sys.modules.get(name), "__file__", ""))
third = sorted(name for name in tops - set(sys.stdlib_module_names) if name[0] != "_" and is_installed(name))
print(json.dumps([third, sorted(m for m in sys.modules if m.startswith("octavo.kernels"))]))
"""


def loaded(imports: str) -> tuple[set[str], list[str]]:
    """(third-party packages, modules of octavo.kernels) of a fresh interpreter after `imports`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COV_")} | {
        "PYTHONPATH": str(SOURCE)
    }
    command = [sys.executable, "-c", PROGRAM.format(imports=imports)]
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    third, kernels = json.loads(text)
    return set(third), kernels


def test_import_octavo_loads_nothing_else() -> None:
    assert loaded("import octavo") == (IMPORT_OCTAVO, [])


def test_the_command_line_loads_next_to_nothing() -> None:
    assert loaded("from octavo.cli.serve import parser; parser()")[0] <= COMMAND_LINE


def test_the_api_process_loads_what_is_listed_and_no_kernels() -> None:
    imports = """
import uvicorn, uvloop, uvicorn.protocols.http.httptools_impl
import octavo.launch.serve, octavo.launch.plan, octavo.launch.watch, octavo.launch.text
import octavo.api.app, octavo.api.text.tokenizer, octavo.models.registry, octavo.models.llama
"""
    third, kernels = loaded(imports)
    assert third - API == set()
    assert not third & HEAVY
    assert kernels == []


def test_the_engine_process_loads_what_is_listed() -> None:
    imports = """
from octavo.launch.engine import preload
preload()
import octavo.executors.native, octavo.models.registry, octavo.models.llama, octavo.weights.load
"""
    third, _ = loaded(imports)
    assert third - ENGINE == set()
    assert not third & HEAVY


@pytest.mark.parametrize("package", ["api", "core", "wire", "config"])
def test_no_torch_and_no_kernels_where_they_do_not_belong(package: str) -> None:
    third, kernels = loaded(
        f"import pkgutil, importlib, octavo.{package} as p\n"
        "for m in pkgutil.walk_packages(p.__path__, p.__name__ + '.'): importlib.import_module(m.name)"
    )
    assert not third & HEAVY
    assert kernels == []
