"""Fits of how cost grows, on costs whose growth is known; the drawing of what was found."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from benchmarks.curves import curves, growth_part, round_step
from benchmarks.fits import fit
from benchmarks.growth import BATCHES, CONTEXTS, PROMPTS, RUNNING, WAITING, Axis

NOISE = 0.02
SEEDS = range(20)


def noisy(xs: tuple[int, ...], cost: Any, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [cost(x) * (1 + NOISE * rng.random()) for x in xs]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_grows_as_a_line_is_not_called_superlinear(seed: int) -> None:
    for xs in (BATCHES, CONTEXTS, PROMPTS, RUNNING, WAITING):
        assert not fit(xs, noisy(xs, lambda x: 300 + 2 * x, seed)).is_superlinear
        assert not fit(xs, noisy(xs, lambda x: 300.0, seed)).is_superlinear
        assert not fit(xs, noisy(xs, lambda x: 300 + 40 * x**0.5, seed), has_knee=True).is_superlinear


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("knee", [16, 48, 96])
def test_arithmetic_that_takes_over_from_memory_is_a_knee(seed: int, knee: int) -> None:
    """Weights are read once; from `knee` rows on their products take longer."""
    found = fit(BATCHES, noisy(BATCHES, lambda x: 5000 * max(1, x / knee), seed), has_knee=True)
    assert not found.is_superlinear
    assert found.at(256) == pytest.approx(5000 * 256 / knee, rel=0.05)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("has_knee", [False, True])
def test_a_square_that_has_taken_over_is_found(seed: int, has_knee: bool) -> None:
    for xs in (BATCHES, PROMPTS, RUNNING):
        end = xs[-1]
        ys = noisy(xs, lambda x, end=end: 300 + x + 3 * x * x / end, seed)
        assert fit(xs, ys, has_knee=has_knee).is_superlinear


@pytest.mark.parametrize("seed", SEEDS)
def test_a_square_that_a_constant_hides_is_found(seed: int) -> None:
    """300 us whatever waits, and 100 more at 10,000 by a square: no exponent shows it."""
    for xs in (RUNNING, WAITING):
        end = xs[-1]
        found = fit(xs, noisy(xs, lambda x, end=end: 300 + 100 * (x / end) ** 2, seed))
        assert found.exponent < 1
        assert found.is_superlinear


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="six"):
        fit([1, 2, 3], [1, 2, 3])
    with pytest.raises(ValueError, match="three points"):
        fit([1, 2, 3, 4, 5, 100], [1, 2, 3, 4, 5, 100])


def test_a_point_keeps_its_best_and_only_what_may_grow_is_let_off() -> None:
    slow = iter([2.0, 1.0] * len(PROMPTS))

    def visit(x: int) -> dict[str, float]:
        swing = next(slow)
        return {"attention": swing * x * x / 100, "rest": swing * x * x / 50}

    axis = Axis("prompt", "tokens", "in one step", visit, PROMPTS, may_grow=("attention",))
    for x in PROMPTS:
        axis.see(x)
        axis.see(x)
    assert axis.points[128]["attention"] == pytest.approx(128 * 128 / 100)
    assert axis.fits()["attention"].is_superlinear
    assert axis.record()["too_fast"] == ["rest"]


def found(cost: Any) -> dict[str, Any]:
    axis = Axis(
        "batch", "rows", "one token each", lambda x: {"attention": 10.0 * x, "rest": cost(x)}, BATCHES
    )
    for x in BATCHES:
        axis.see(x)
    about = {"model": "m", "weights": "w4", "isa": "avx2", "visits": 6}
    return about | {"axes": [axis.record(), axis.record()]}


def test_every_point_is_drawn_inside_its_panel() -> None:
    root = ET.fromstring(curves(found(lambda x: 300.0 + 2 * x)))
    width, height = (float(word) for word in root.attrib["viewBox"].split()[2:])
    points = root.findall(".//{*}circle")
    assert len(points) == 2 * 2 * len(BATCHES)
    for point in points:
        assert 0 < float(point.attrib["cx"]) < width
        assert 0 < float(point.attrib["cy"]) < height
    heights = [float(p.attrib["cy"]) for p in points if p.attrib["class"] == "one"][: len(BATCHES)]
    assert heights == sorted(heights, reverse=True)
    assert heights[0] > heights[-1]


def test_the_page_says_what_grows_faster() -> None:
    assert "grows faster" not in growth_part(found(lambda x: 300.0 + 2 * x))
    assert growth_part(found(lambda x: 3.0 * x**1.5)).count("grows faster |") == 2


def test_marks_of_a_scale() -> None:
    assert [round_step(high) for high in (0.7, 9, 256, 4096, 10_000)] == [0.2, 2, 100, 1000, 2000]
