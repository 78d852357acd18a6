"""The examples of the documents on other APIs, on a real `octavo serve` of SmolLM2: they print what is said."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.examples import run_examples
from tests.multi.launched import Launched, launched


@pytest.fixture(scope="module")
def server(smollm2_path: str) -> Iterator[Launched]:
    with launched(smollm2_path, "--served-model-name", "smollm2") as running:
        yield running


@pytest.mark.parametrize(("name", "least"), [("anthropic.md", 7), ("cohere.md", 6), ("tokens.md", 2)])
def test_the_examples_print_what_the_document_says(server: Launched, name: str, least: int) -> None:
    assert run_examples(name, server.port) >= least
