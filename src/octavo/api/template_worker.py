"""Renders chat templates in a process of its own, so that a hostile one costs neither the event loop nor memory.

Run as a script by `api.template_pool`. Reads frames (4-byte big-endian length, JSON) from stdin, answers on stdout,
ends when stdin ends. The CPU time of a render is capped, and ends the process by a signal; so is the address space.
Imports the standard library and jinja2 only; knows nothing of Octavo.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, BinaryIO

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MARK = "\u2063octavo-mark\u2063"


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks what an assistant said; for rendering it is its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain class attribute

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Refused(Exception):
    """The template called raise_exception, or wrote too much."""


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise Refused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _environment() -> ImmutableSandboxedEnvironment:
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = _strftime_now
    del env.globals["lipsum"]
    return env


_ENV = _environment()


@lru_cache(maxsize=8)
def _compile(source: str) -> jinja2.Template:
    return _ENV.from_string(source)


def render(source: str, variables: dict[str, Any], max_chars: int) -> str:
    """The text; raises Refused past `max_chars`."""
    parts: list[str] = []
    size = 0
    for part in _compile(source).generate(**variables):
        size += len(part)
        if size > max_chars:
            raise Refused(f"the template wrote more than {max_chars:,} characters")
        parts.append(part)
    return "".join(parts)


def probe(source: str, variables: dict[str, Any], max_chars: int) -> dict[str, bool]:
    """Which forms of a message's content the template can show: a string, a list of parts."""
    forms: dict[str, Any] = {"string": MARK, "parts": [{"type": "text", "text": MARK}]}
    found = {}
    for form, content in forms.items():
        messages = [{"role": "user", "content": content}]
        try:
            text = render(source, {**variables, "messages": messages}, max_chars)
        except (jinja2.TemplateError, Refused, TypeError, ValueError, AttributeError, KeyError):
            found[form] = False
        else:
            found[form] = MARK in text and "'type'" not in text and '"type"' not in text
    return found


def compiles(source: str, variables: dict[str, Any], max_chars: int) -> bool:
    _compile(source)
    return True


_WORK: dict[str, Callable[[str, dict[str, Any], int], Any]] = {
    "probe": probe,
    "render": render,
    "compile": compiles,
}


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Does one job; every failure is an answer."""
    try:
        work = _WORK[job["kind"]]
        return {"ok": work(job["template"], job["variables"], job["max_chars"])}
    except Refused as error:
        return {"error": str(error)}
    except jinja2.TemplateSyntaxError as error:
        return {"error": f"syntax error in line {error.lineno}: {error.message}"}
    except MemoryError:
        return {"error": "the template needs more memory than it may have"}
    except RecursionError:
        return {"error": "the template calls itself too deeply"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _limit_memory(max_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # Windows has no limits of this kind; the time limit still holds
        return
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise SystemExit(0)
    return data


def _write(stream: BinaryIO, value: dict[str, Any]) -> None:
    data = json.dumps(value).encode()
    stream.write(struct.pack(">I", len(data)) + data)
    stream.flush()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes stdin
    _limit_memory(int(sys.argv[1]))
    cpu_s, wall_s = float(sys.argv[2]), float(sys.argv[3])
    _write(sys.stdout.buffer, {"ok": "ready"})
    while True:
        (size,) = struct.unpack(">I", _read_exactly(sys.stdin.buffer, 4))
        job = json.loads(_read_exactly(sys.stdin.buffer, size))
        _set_clocks(cpu_s, wall_s)
        result = answer(job)
        _set_clocks(0.0, 0.0)
        _write(sys.stdout.buffer, result)


def _set_clocks(cpu_s: float, wall_s: float) -> None:
    """Ends this process (signals SIGPROF, SIGALRM) when one of them runs out; 0 = off."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        signal.setitimer(signal.ITIMER_REAL, wall_s)


if __name__ == "__main__":
    main()
