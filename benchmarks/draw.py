"""Puts measured figures into docs/performance.md, and draws its pictures, from the JSON files of the benches.

    python -m benchmarks.draw [--kernels KERNELS.json] [--growth GROWTH.json] [--bench BENCH.json ...]

The files come from `./run bench kernels --json`, `./run bench growth --json` and `./run bench`; `./run bench page`
measures and draws all. The document keeps its text; only what stands between the marks of a part is replaced.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.curves import curves, growth_part

DOCS = Path(__file__).parents[1] / "docs"
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 460, 70, 60, 30, 170
COLOURS = {"f32": "#777", "f16": "#a60", "bf16": "#06c", "w8": "#080", "w4": "#c20"}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", type=Path)
    parser.add_argument("--growth", type=Path)
    parser.add_argument("--bench", type=Path, nargs="+", default=[], help="one for each model")
    given = parser.parse_args(argv)
    page = DOCS / "performance.md"
    text = page.read_text()
    if given.kernels:
        kernels = json.loads(given.kernels.read_text())
        text = replaced(text, "kernels", kernel_part(kernels))
        (DOCS / "roofline.svg").write_text(roofline(kernels))
    if given.growth:
        growth = json.loads(given.growth.read_text())
        head = source_line(growth["machine"], growth["threads"])
        text = replaced(text, "growth", head + growth_part(growth))
        (DOCS / "growth.svg").write_text(curves(growth))
    if given.bench:
        parts = [case_part(json.loads(path.read_text())) for path in given.bench]
        text = replaced(text, "cases", "\n".join(parts))
    page.write_text(text)
    return 0


def replaced(text: str, mark: str, body: str) -> str:
    """`text` with what stands between the marks replaced. Raises ValueError when there are none."""
    begin, end = f"<!-- {mark}: measured -->\n", f"<!-- {mark}: end -->"
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no part {mark!r}")
    return head + begin + body + end + tail


def source_line(machine: dict[str, Any], threads: int) -> str:
    return f"{machine['cpu']}, {threads} threads, commit {machine['commit']}.\n\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def kernel_part(found: dict[str, Any]) -> str:
    """Share of the binding limit: one line a kernel and shape, one column a format."""
    formats = list(dict.fromkeys(k["format"] for k in found["kernels"]))
    shares: dict[tuple[str, str], dict[str, str]] = {}
    for k in found["kernels"]:
        speed = f"{k['ops'] / k['best_us'] / 1e3:,.0f} GFLOP/s" if k["ops"] else f"{k['best_us']:,.0f} us"
        bound = k["bound_by"] if k["bound_by"] == "memory" else k["unit"]
        cell = f"{100 * k['limit_us'] / k['best_us']:.0f}% of {bound}, {speed}"
        if k.get("goal"):
            cell += f" (goal {100 * k['goal']:.0f}%)"
        shares.setdefault((k["kernel"], k["shape"]), {})[k["format"]] = cell
    rows = [[*key, *(cells.get(name, "") for name in formats)] for key, cells in shares.items()]
    head = source_line(found["machine"], found["threads"])
    return head + "![roofline](roofline.svg)\n\n" + table(["kernel", "shape", *formats], rows)


def case_part(found: dict[str, Any]) -> str:
    rows = [
        [
            row["case"],
            row["weights"],
            f"{row['ours']:,.2f}",
            f"{row.get('best', '')} {row['theirs']:,.2f}" if "theirs" in row else "",
            f"{row['ratio']:.2f}" if "ratio" in row else "",
            f"{row['goal']:.1f}" if row.get("goal") else "",
            f"{100 * row['of_limit']:.0f}%" if "of_limit" in row else "",
        ]
        for row in found["ratios"]
    ]
    rounds = f"{found['rounds']} round" + ("s" if found["rounds"] > 1 else "")
    head = f"{found['model']}, {rounds}, medians. " + source_line(found["machine"], found["threads"])
    return head + table(["case", "weights", "Octavo", "best rival", "ratio", "goal", "of the limit"], rows)


def roofline(found: dict[str, Any]) -> str:
    """Operations for a byte against operations a second, both logarithmic: the roofs, and every product on them."""
    points = [k for k in found["kernels"] if k["ops"] and k["num_bytes"]]
    compute = {kind: speed / 1e9 for kind, speed in found["compute"].items()}
    # GB/s of what products stream: what the memory-bound ones had as their limit
    bound = [k["num_bytes"] / k["limit_us"] / 1e3 for k in points if k["bound_by"] == "memory"]
    read = max(bound) if bound else 1.0
    x_low, x_high, y_low, y_high = 0.25, 4096.0, 1.0, 2 * max(compute.values())

    def x(intensity: float) -> float:
        share = math.log(max(intensity, x_low) / x_low) / math.log(x_high / x_low)
        return LEFT + min(share, 1) * (WIDTH - LEFT - RIGHT)

    def y(speed: float) -> float:
        share = math.log(max(speed, y_low) / y_low) / math.log(y_high / y_low)
        return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)

    root = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
    parts = [f'{root} font-family="sans-serif" font-size="12">']
    parts.append('<rect width="100%" height="100%" fill="white"/>')
    for power in range(-2, 13, 2):
        at = x(2.0**power)
        parts.append(f'<path d="M{at:.0f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>')
        parts.append(
            f'<text x="{at:.0f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{2.0**power:g}</text>'
        )
    for power in range(int(math.log10(y_high)) + 1):
        at = y(10.0**power)
        parts.append(f'<path d="M{LEFT} {at:.0f}H{WIDTH - RIGHT}" stroke="#eee"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.0f}" text-anchor="end">{10**power}</text>')
    for kind, speed in compute.items():
        knee = speed / read
        parts.append(
            f'<path d="M{x(x_low):.0f} {y(read * x_low):.0f}L{x(knee):.0f} {y(speed):.0f}H{WIDTH - RIGHT}" '
            'fill="none" stroke="black"/>'
        )
        parts.append(
            f'<text x="{WIDTH - RIGHT + 6}" y="{y(speed) + 4:.0f}">{kind} {speed:,.0f} GFLOP/s</text>'
        )
    parts += [
        f'<circle cx="{x(k["ops"] / k["num_bytes"]):.1f}" cy="{y(k["ops"] / k["best_us"] / 1e3):.1f}" r="3.5" '
        f'fill="{COLOURS.get(k["format"], "black")}"><title>{k["kernel"]}, {k["shape"]}, {k["format"]}</title></circle>'
        for k in points
    ]
    for i, (name, colour) in enumerate(COLOURS.items()):
        parts.append(f'<circle cx="{LEFT + 14}" cy="{TOP + 10 + 16 * i}" r="3.5" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 24}" y="{TOP + 14 + 16 * i}">{name}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{HEIGHT - 14}" text-anchor="middle">operations for each byte</text>'
    )
    parts.append(f'<text x="{LEFT}" y="{TOP - 10}">GFLOP/s; the slope is {read:.0f} GB/s</text></svg>')
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
