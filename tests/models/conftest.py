"""Fixtures of the model tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.models.harness import EXECUTORS
from tests.models.tiny import Checkpoint, save


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> str:
    """Name of the executor under test."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """name -> (directory, reference logits of PROMPTS), made once per run."""
    made: dict[str, Checkpoint] = {}

    def get(name: str) -> Checkpoint:
        if name not in made:
            directory = str(tmp_path_factory.mktemp(name))
            made[name] = (directory, save(name, directory))
        return made[name]

    return get
