"""Every example in the documents is run by a test, or says here why it is not."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.examples import DOCS

from octavo.cli.serve import parser
from octavo.config.asked import TOPICS, Asked
from octavo.config.kv_events import kv_events_plan
from octavo.config.load import parse

ROOT = DOCS.parent
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: document -> (the test that runs its blocks, the kinds of block that it runs)
RUN_BY = {
    "README.md": ("tests/multi/test_readme.py", {"bash", "python"}),
    "docs/anthropic.md": ("tests/multi/test_dialect_documents.py", {"python", "text"}),
    "docs/cohere.md": ("tests/multi/test_dialect_documents.py", {"python", "text"}),
    "docs/tokens.md": ("tests/multi/test_dialect_documents.py", {"python", "text"}),
    "docs/responses.md": ("tests/multi/test_responses_server.py", {"python", "text"}),
    "docs/structured-output.md": ("tests/api/test_docs_structured.py", {"bash"}),
    "docs/tools.md": ("tests/api/test_docs_tools.py", {"python"}),
}
#: lines of shell that no test runs: what they contain -> why
NOT_RUN = {
    " claude": "needs Claude Code; tests/api/test_claude_code_session.py plays a session recorded from it",
    "curl -s localhost:8000": "tests/api/test_docs_tools.py sends its body",
}


def blocks() -> list[tuple[str, str, str]]:
    """(document, kind, text)."""
    paths = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
    return [
        (str(path.relative_to(ROOT)), kind, text)
        for path in paths
        for kind, text in FENCED.findall(path.read_text(encoding="utf-8"))
    ]


def commands(text: str) -> list[str]:
    """The commands of a shell block; one goes on over lines while a quote is open."""
    found, held = [], ""
    for line in text.splitlines():
        held += line
        try:
            shlex.split(held)
        except ValueError:
            held += "\n"
            continue
        found.append(held)
        held = ""
    assert not held, f"a quote stays open: {held}"
    return found


SHELL = [(name, command) for name, kind, text in blocks() if kind == "sh" for command in commands(text)]


def test_every_block_is_run() -> None:
    for name, kind, text in blocks():
        if kind == "sh":  # by the tests below
            continue
        assert name in RUN_BY, f"no test runs the examples of {name}: {text}"
        test, kinds = RUN_BY[name]
        assert kind in kinds, f"{test} does not run blocks of kind {kind!r}: {text}"
        assert Path(name).name in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "command"), SHELL)
def test_commands_of_the_shell_are_taken_as_they_stand(name: str, command: str) -> None:
    if any(mark in command for mark in NOT_RUN):
        return
    words = shlex.split(command)
    assert words[:2] == ["octavo", "serve"], f"{name}: say in NOT_RUN why no test runs {command!r}"
    asked, _ = parse(parser(), words[2:], tuple(TOPICS))
    assert isinstance(asked, Asked)
    if asked.cache.kv_events_config:
        assert kv_events_plan(asked.cache.kv_events_config, has_prefix_cache=True).publisher == "zmq"


def test_no_reason_is_left_over() -> None:
    for mark in NOT_RUN:
        assert any(mark in command for _, command in SHELL), mark
