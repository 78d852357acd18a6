"""Does a cost grow faster than what it depends on? Least squares with relative errors, and two questions.

A line, y = c0 + c1 x, is what growth may be. Where one limit hands over to another (weights read once, then
arithmetic), the slope may change once, at a knee. Growth is called superlinear when either
- over the upper part of the axis the cost grows with a power of x above 1, or
- a square, put beside line and knee, is larger than its own error by far and counts at the end of the axis.
The first sees growth that has taken over, the second growth that a large constant still hides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

UPPER = 4  # the exponent is taken over the last factor of so much
MAX_EXPONENT = 1.05
MAX_SQUARE_FRAC = 0.05  # of the cost at the end of the axis
LEAST_ERRORS = 4.0  # what is not above its bound by so many times its standard error may be chance


@dataclass(frozen=True, slots=True)
class Fit:
    """`base` + `slope` x + `bend` max(0, x - `knee`) is the line; `square` belongs to another fit beside it."""

    base: float
    slope: float
    bend: float
    knee: float
    error_frac: float  # typical relative distance of a point from the line
    square: float
    square_errors: float  # the square over its standard error
    square_frac: float  # the square's part of the cost at the largest x
    exponent: float  # over the upper part of the axis
    exponent_error: float  # its standard error

    @property
    def is_superlinear(self) -> bool:
        hidden = self.square_errors > LEAST_ERRORS and self.square_frac > MAX_SQUARE_FRAC
        return hidden or self.exponent - LEAST_ERRORS * self.exponent_error > MAX_EXPONENT

    def at(self, x: float) -> float:
        return self.base + self.slope * x + self.bend * max(0.0, x - self.knee)

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"is_superlinear": self.is_superlinear}


def fit(xs: Sequence[float], ys: Sequence[float], *, has_knee: bool = False) -> Fit:
    """Of at least six points, with all costs above 0. Raises ValueError otherwise."""
    if len(xs) < 6 or len(xs) != len(ys) or min(ys) <= 0:
        raise ValueError(f"a fit needs six points or more with costs above 0, not {len(xs)}: {list(ys)}")
    x, y = np.asarray(xs, np.float64), np.asarray(ys, np.float64)
    ones = np.ones_like(x)
    knees = sorted(x)[1:-3] if has_knee else []
    lines = [(0.0, np.stack([ones, x]))]
    lines += [(knee, np.stack([ones, x, np.maximum(0.0, x - knee)])) for knee in knees]
    solved = [(knee, basis, *_solve(basis, y)) for knee, basis in lines]
    # A knee has to pay for its parameter.
    knee, basis, found, _, error = min(solved, key=lambda one: one[4])
    whole, deviations, _ = _solve(np.concatenate([basis, [x**2]]), y)
    square, end = float(whole[-1]), float(np.max(x))
    at_end = float(whole @ np.concatenate([basis, [x**2]])[:, int(np.argmax(x))])
    exponent, exponent_error = _exponent(x, y)
    return Fit(
        base=float(found[0]),
        slope=float(found[1]),
        bend=float(found[2]) if len(found) > 2 else 0.0,
        knee=float(knee),
        error_frac=error,
        square=square,
        square_errors=square / max(float(deviations[-1]), 1e-300),
        square_frac=square * end**2 / at_end,
        exponent=exponent,
        exponent_error=exponent_error,
    )


def _solve(basis: F64, y: F64) -> tuple[F64, F64, float]:
    """(coefficients, their standard errors, relative error of a point) of the least relative squares."""
    weighted = (basis / y).T  # [points, terms]; the aim is 1 everywhere
    scale = np.linalg.norm(weighted, axis=0)
    found, *_ = np.linalg.lstsq(weighted / scale, np.ones_like(y), rcond=None)
    free = max(1, len(y) - len(basis))
    error = float(np.sqrt(np.sum((weighted / scale @ found - 1) ** 2) / free))
    spread = np.linalg.pinv((weighted / scale).T @ (weighted / scale))
    return found / scale, error * np.sqrt(np.diag(spread)) / scale, error


def _exponent(x: F64, y: F64) -> tuple[float, float]:
    """(slope of a line through logarithms, its standard error)."""
    upper = x >= np.max(x) / UPPER
    if np.count_nonzero(upper & (x > 0)) < 3:
        raise ValueError(f"the last factor of {UPPER} of an axis needs three points, not {list(x[upper])}")
    u, v = np.log(x[upper]), np.log(y[upper])
    slope, base = np.polyfit(u, v, 1)
    error = np.sqrt(np.sum((v - slope * u - base) ** 2) / (len(u) - 2) / np.sum((u - np.mean(u)) ** 2))
    return float(slope), float(error)
