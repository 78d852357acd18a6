"""What chat and complete share: their flags, printing a stream, figures after it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

from octavo.cli.client import DEFAULT_URL, Server
from octavo.config.load import Parser


def parser(prog: str, description: str) -> Parser:
    made = Parser(prog=prog, description=description, allow_abbrev=False)
    made.add_argument("--url", "--base-url", default=DEFAULT_URL, help="base address (default: %(default)s)")
    made.add_argument(
        "--model-name", "--model", metavar="NAME", help="default: the first model that the server names"
    )
    made.add_argument("--api-key", help="default: OCTAVO_API_KEY")
    made.add_argument("-q", "--quick", metavar="TEXT", help="send this one prompt, print the answer, end")
    made.add_argument(
        "--stats", action="store_true", help="after each answer: time to first token, tokens a second"
    )
    return made


def connect(given: Any) -> tuple[Server, str]:
    server = Server(given.url, given.api_key)
    return server, given.model_name or server.first_model()


def show(events: Iterable[dict[str, Any]], key: str, stats: bool) -> str:
    """Prints an answer as it comes, thoughts to stderr; returns it. `key`: "delta" (chat) or "text" (completions)."""
    start = time.monotonic()
    first: float | None = None
    usage: dict[str, Any] = {}
    parts: list[str] = []
    is_thinking = False
    for event in events:
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            delta = choice.get("delta") or {}
            text = choice.get("text") if key == "text" else delta.get("content")
            if thought := delta.get("reasoning"):
                first, is_thinking = first or time.monotonic(), True
                print(thought, end="", file=sys.stderr, flush=True)
            if text:
                if is_thinking:
                    print("\n", file=sys.stderr, flush=True)
                first, is_thinking = first or time.monotonic(), False
                parts.append(text)
                sys.stdout.write(text)
                sys.stdout.flush()
    print()
    if stats and first is not None:
        tokens = usage.get("completion_tokens", 0)
        rate = (tokens - 1) / max(time.monotonic() - first, 1e-9)
        print(
            f"[first token {1000 * (first - start):.0f} ms, {tokens} tokens, {rate:.1f} tokens/s]",
            file=sys.stderr,
        )
    return "".join(parts)


def prompts(hint: str) -> Iterable[str]:
    """Lines that a person types, until Ctrl-D. Ctrl-C clears the line; on an empty one, again, it ends too."""
    is_warned = False  # the last thing typed was Ctrl-C
    if sys.stdin.isatty():
        import readline  # noqa: F401  (line editing)

        print(hint, file=sys.stderr)
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            if sys.stdin.isatty():
                print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            print(file=sys.stderr)
            if not sys.stdin.isatty() or (is_warned and not _typed()):
                return
            print("Ctrl-C again or Ctrl-D ends", file=sys.stderr)
            is_warned = True
            continue
        is_warned = False
        if line.strip():
            yield line


def _typed() -> str:
    """What was on the line that Ctrl-C has interrupted."""
    import readline

    return readline.get_line_buffer()
