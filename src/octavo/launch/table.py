"""Tables for a terminal: plain columns, as wide as their content, the last one wrapped."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from octavo.util.lines import one_line


def render(rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Aligned columns; the last is wrapped to the terminal."""
    if not rows:
        return ""
    rows = [[one_line(cell) for cell in row] for row in rows]  # names of a file may hold anything
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    left = sum(widths) + 2 * len(widths) + len(indent)
    room = max(30, shutil.get_terminal_size((110, 24)).columns - left)
    lines = []
    for row in rows:
        head = indent + "".join(cell.ljust(width + 2) for cell, width in zip(row, widths, strict=False))
        wrapped = textwrap.wrap(row[-1], room) or [""]
        lines.append((head + wrapped[0]).rstrip())
        lines += [" " * left + more for more in wrapped[1:]]
    return "\n".join(lines)
