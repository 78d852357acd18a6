"""Text from outside (a file's names, a request's fields) as part of one line of a log or an error."""

from __future__ import annotations

import re

#: Control characters, what other readers take for line ends, lone surrogates, and marks that reorder a line.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(text: str) -> str:
    r"""`text` with such characters spelled out: a line feed becomes \n, an escape character \x1b."""
    return _UNSAFE.sub(_spelled, text) if _UNSAFE.search(text) else text


def _spelled(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]
