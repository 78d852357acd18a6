"""`octavo COMMAND ...`: finds the command's file, runs it, and turns errors into one readable last line."""

from __future__ import annotations

import difflib
import sys
import traceback
from importlib import import_module

from octavo import __version__, env

COMMANDS = {
    "serve": "serve a model over HTTP (OpenAI's API)",
    "chat": "talk to a running server in the terminal",
    "complete": "complete a text with a running server",
    "pull": "fetch a model to this machine",
    "plan": "what fits: memory byte by byte, largest context; reads headers only",
    "explain": "what would run and why: the plan and the program, without loading weights",
    "bench": "measure a running server, or a step of the engine op by op",
    "collect-env": "facts about this machine, for a bug report",
}
REFUSED = {
    "run-batch": "batch files are not served yet: use octavo.LLM, or send requests to a server",
    "launch": "the API does not run without an engine yet",
    "preload": "it holds weights on a GPU; weight files are memory-mapped here",
    "snapshot": "it stores GPU processes; a start takes about a second here",
    "download-kernels": "it fetches GPU kernels; the wheel holds all kernels here",
}


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    hint = f"`{env.command('COMMAND --help')}` shows a command's options."
    return f"usage: {env.command('COMMAND ...')}\n\n{lines}\n\n{hint}"


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage(), file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] in ("-v", "--version"):
        print(f"octavo {__version__}")
        return 0
    command = words[0].replace("_", "-")
    if command not in COMMANDS:
        return _unknown(command)
    return run(command, words[1:])


def run(command: str, argv: list[str]) -> int:
    """Runs a command; an error ends as one line, `octavo: cause: fix`, and a non-zero code.

    2: its reader can fix it (a flag, a model file, an address, memory). 1: Octavo itself failed. 130: Ctrl-C.
    """
    from octavo.errors import OctavoError, UserError
    from octavo.util.lines import one_line

    try:
        module = import_module("octavo.cli." + command.replace("-", "_"))
        code: int = module.main(argv)
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0
    except OctavoError as error:
        if env.is_debug():
            traceback.print_exc()
        print(f"octavo: {one_line(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1


def _unknown(command: str) -> int:
    if command in REFUSED:
        print(
            f"octavo: {command} is a command of vLLM that Octavo refuses: {REFUSED[command]}", file=sys.stderr
        )
        return 2
    close = difflib.get_close_matches(command, COMMANDS, 1)
    hint = f"did you mean {close[0]}?" if close else f"`{env.command('--help')}` lists the commands"
    print(f"octavo: {command!r} is not a command: {hint}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
