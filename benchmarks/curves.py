"""Draws how the cost of a step grows (benchmarks.growth): one panel an axis, points measured and the line fitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

WIDTH, HEIGHT, COLUMNS = 340, 250, 3  # of a panel; panels in a row
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 46, 40
LINE_STEPS = 60
# Colours of light and of dark pages; the picture brings its background, so that it is readable on any page.
STYLE = """<style>
svg { --back: #ffffff; --ink: #1f2328; --grid: #d8dee4; --one: #0969da; --two: #bc4c00; }
@media (prefers-color-scheme: dark) {
  svg { --back: #0d1117; --ink: #e6edf3; --grid: #30363d; --one: #58a6ff; --two: #f0883e; }
}
.back { fill: var(--back); } .grid { stroke: var(--grid); } text { fill: var(--ink); }
.one { stroke: var(--one); fill: none; } .two { stroke: var(--two); fill: none; }
circle.one { fill: var(--one); } circle.two { fill: var(--two); } text.one { fill: var(--one); stroke: none; }
text.two { fill: var(--two); stroke: none; }
</style>"""
CLASSES = ("one", "two")


def curves(found: dict[str, Any]) -> str:
    """`found`: what `./run bench growth --json` wrote."""
    axes = found["axes"]
    rows = -(-len(axes) // COLUMNS)
    columns = min(COLUMNS, len(axes))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * columns} {HEIGHT * rows}"'
    parts = [f'{head} font-family="sans-serif" font-size="11">', STYLE]
    parts.append('<rect class="back" width="100%" height="100%"/>')
    for i, axis in enumerate(axes):
        parts.append(f'<g transform="translate({WIDTH * (i % COLUMNS)} {HEIGHT * (i // COLUMNS)})">')
        parts += [*panel(axis), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def panel(axis: dict[str, Any]) -> list[str]:
    """Linear on both sides: a line is what growth may be."""
    points, names = axis["points"], list(axis["fits"])
    unit, scale = ("ms", 1e3) if max(point[n] for point in points for n in names) >= 1e4 else ("us", 1.0)
    x_step, y_step = (
        round_step(max(values))
        for values in ([p["x"] for p in points], [p[n] / scale for p in points for n in names])
    )
    x_high, y_high = (
        step * -(-high // step)
        for step, high in (
            (x_step, max(p["x"] for p in points)),
            (y_step, max(p[n] / scale for p in points for n in names)),
        )
    )

    def x(value: float) -> float:
        return LEFT + value / x_high * (WIDTH - LEFT - RIGHT)

    def y(time_us: float) -> float:
        return HEIGHT - BOTTOM - max(time_us / scale, 0.0) / y_high * (HEIGHT - BOTTOM - TOP)

    parts = [f'<text x="{LEFT}" y="16" font-weight="bold">{axis["name"]}, {unit}: {axis["fixed"]}</text>']
    for number in range(int(x_high / x_step + 0.5) + 1):
        at = x(number * x_step)
        parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        shown = f"{number * x_step:,g}"
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{shown}</text>')
    for number in range(int(y_high / y_step + 0.5) + 1):
        at = y(number * y_step * scale)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{number * y_step:,g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{axis["unit"]}</text>')
    for name, of_class in zip(names, CLASSES, strict=True):
        low, high = min(p["x"] for p in points), max(p["x"] for p in points)
        line = fitted(axis["fits"][name])
        steps = [low + (high - low) * i / LINE_STEPS for i in range(LINE_STEPS + 1)]
        path = "L".join(f"{x(at):.1f} {y(line(at)):.1f}" for at in steps)
        parts.append(f'<path class="{of_class}" d="M{path}"/>')
        parts += [
            f'<circle class="{of_class}" cx="{x(p["x"]):.1f}" cy="{y(p[name]):.1f}" r="3"/>' for p in points
        ]
        at = LEFT + 110 * CLASSES.index(of_class)
        parts.append(f'<text class="{of_class}" x="{at}" y="34">{name}</text>')
    return parts


def fitted(fit: dict[str, Any]) -> Callable[[float], float]:
    """The line with its knee; where growth is faster, the points beside it show that."""
    return lambda x: fit["base"] + fit["slope"] * x + fit["bend"] * max(0.0, x - fit["knee"])


def round_step(high: float) -> float:
    """Between marks of a scale up to `high`: 1, 2 or 5 times a power of ten, for about four marks."""
    power = 10.0 ** (len(f"{int(high)}") - 1)
    return next(step for step in (power / 5, power / 2, power, 2 * power, 5 * power) if high / step <= 5)


def growth_part(found: dict[str, Any]) -> str:
    """The text and the table below the picture."""
    rows = [
        "| axis | part | from, us | to, us | for one more, us | exponent at the end | square at the end | |"
    ]
    rows.append("|---|---|---|---|---|---|---|---|")
    for axis in found["axes"]:
        first, last = axis["points"][0], axis["points"][-1]
        for part, fit in axis["fits"].items():
            slope = fit["slope"] + (fit["bend"] if last["x"] > fit["knee"] else 0.0)
            verdict = "grows faster" if fit["is_superlinear"] else "no faster than a line"
            if fit["is_superlinear"] and part not in axis["too_fast"]:
                verdict += ", as it may"
            cells = [
                f"{axis['name']} ({axis['fixed']})",
                part,
                f"{first[part]:,.0f} at {first['x']:,}",
                f"{last[part]:,.0f} at {last['x']:,}",
                f"{slope:,.3g}",
                f"{fit['exponent']:.2f}",
                f"{100 * fit['square_frac']:.0f}%, {fit['square_errors']:.0f} times its error",
                verdict,
            ]
            rows.append("| " + " | ".join(cells) + " |")
    about = (
        f"{found['model']}, weights {found['weights']}, {found['isa']}; the best of {found['visits']} visits"
    )
    return f"{about} or more.\n\n![growth](growth.svg)\n\n" + "\n".join(rows) + "\n"
