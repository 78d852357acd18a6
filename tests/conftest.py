"""Fixtures that every folder of tests may use: paths of the real models."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["OCTAVO_PACK_CACHE"] = "off"  # tests of the cache name a folder of their own


def _model_path(name: str, variable: str) -> str:
    """Path of a pulled model, or of the file that an environment variable names. Never downloads."""
    given = os.environ.get(variable)
    if given:
        if not Path(given).exists():
            pytest.fail(f"{variable} names {given}, which does not exist", pytrace=False)
        return given
    from octavo.weights.fetch import locate

    path = locate(name)
    if path is None:
        pytest.fail(
            f"the model {name} is not on this machine: `./run octavo pull {name}`, or set {variable}",
            pytrace=False,
        )
    return str(path)


@pytest.fixture(scope="session")
def smollm2_path() -> str:
    """SmolLM2-135M-Instruct, a GGUF file of Q4_1 blocks."""
    return _model_path("smollm2", "OCTAVO_TEST_SMOLLM2")


@pytest.fixture(scope="session")
def gemma3_path() -> str:
    """Gemma 3 270M (base), a GGUF file of Q4_K_M blocks."""
    return _model_path("gemma3-270m", "OCTAVO_TEST_GEMMA3")


@pytest.fixture(scope="session")
def qwen_small_path() -> str:
    """Qwen2.5-Coder-0.5B-Instruct; only under the marker `large`."""
    return _model_path("qwen2.5-coder-0.5b", "OCTAVO_TEST_QWEN_SMALL")


@pytest.fixture(scope="session")
def qwen_large_path() -> str:
    """Qwen2.5-Coder-1.5B-Instruct; only under the marker `large`."""
    return _model_path("qwen2.5-coder-1.5b", "OCTAVO_TEST_QWEN_LARGE")
