"""Every reported fault of the areas built so far is a test that bears its id, in its name or a docstring."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
BUILT = {
    "abort", "anthropic", "auth", "determinism", "finish_reason", "gguf", "health", "logprobs", "memory",
    "metrics", "prefix_cache", "request", "responses", "sampling", "scheduler", "shutdown", "sse", "startup",
    "stop", "structured", "tokenize", "tool_calls", "unicode", "usage",
}  # fmt: skip
CASES: dict[str, str] = json.loads((TESTS / "reported_cases.json").read_text(encoding="utf-8"))


def ids_in(source: str) -> set[str]:
    """Ids that tests name: `bb_012` in the name of a test, BB-012 in a docstring. Comments do not count."""
    tree = ast.parse(source)
    words = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            words += [node.name, ast.get_docstring(node) or ""]
    if any("test_" in word for word in words):
        words.append(ast.get_docstring(tree) or "")
    return {f"BB-{number}" for word in words for number in re.findall(r"(?i)bb[-_](\d{3})", word)}


def named() -> set[str]:
    files = [f for f in TESTS.rglob("test_*.py") if f != Path(__file__)]
    return {case for file in files for case in ids_in(file.read_text(encoding="utf-8"))}


def test_every_case_of_a_built_area_is_a_test() -> None:
    wanted = {case for case, area in CASES.items() if area in BUILT}
    assert wanted - named() == set()


def test_no_test_names_a_case_that_does_not_exist() -> None:
    assert named() <= CASES.keys()


def test_every_area_is_known() -> None:
    assert set(CASES.values()) >= BUILT


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def test_bb_001_bb_002_x(): pass", {"BB-001", "BB-002"}),
        ('def test_x():\n    """P1, BB-003."""', {"BB-003"}),
        ('"""BB-004."""\ndef test_x(): pass', {"BB-004"}),
        ('"""BB-005."""\ndef helper_bb_006(): pass  # BB-007', set()),
    ],
)
def test_where_ids_are_looked_for(source: str, found: set[str]) -> None:
    assert ids_in(source) == found
