"""Runs the examples of a document against a server: python blocks in order, text blocks are what was printed."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
_BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ADDRESS = "127.0.0.1:8000"  # where documents say that the server is


def run_examples(name: str, port: int) -> int:
    """The number of python blocks that ran; AssertionError where one printed something else than its text block."""
    names: dict[str, Any] = {"__name__": "examples"}
    try:
        return _run(name, port, names)
    finally:
        for value in list(names.values()):  # clients, which the documents do not bother to close
            if hasattr(type(value), "__exit__"):
                value.__exit__(None, None, None)


def _run(name: str, port: int, names: dict[str, Any]) -> int:
    printed, count = "", 0
    for kind, text in _BLOCK.findall((DOCS / name).read_text(encoding="utf-8")):
        if kind == "text":
            assert printed == text, f"docs/{name} says {text!r}; it printed {printed!r}"
            continue
        count += 1
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = compile(text.replace(_ADDRESS, f"127.0.0.1:{port}"), f"docs/{name}", "exec")
            exec(code, names)
        printed = out.getvalue()
    return count
