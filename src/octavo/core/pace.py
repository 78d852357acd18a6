"""How long a step takes, and how much of a prompt fits in one that streams wait for.

Owns a small model of a step's time, learned from the steps that ended, and the `Limit` that follows
from it. Does not know who is scheduled, nor what a token is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt

from octavo.core.protocols import Load, StepView
from octavo.core.request import Request

#: Cost of a step, of a row in it, of a prompt token, of a position that a prompt token sees, and of one
#: that a single token sees, in milliseconds: where learning starts. Only their order of magnitude matters.
START_MS = (10.0, 0.2, 1.0, 2e-4, 1e-3)
START_VARIANCE = 25.0  # of a cost, in units of its start value
DRIFT = 0.02  # share of a cost that it may change by from one step to the next
NOISE = 0.1  # share of a step's time that is chance
LEAST, MOST = 1e-3, 1e5  # bounds of a cost, in units of its start value
#: A time this many deviations off is a spike, and not learned from, unless it comes so often in a row.
SPIKE_DEVIATIONS = 4.0
SPIKES_BELIEVED = 3

HALVINGS = 5  # of the range in which the room for a prompt is sought

#: Chunks are multiples of it: kernels compute rows in tiles.
GRAIN = 16
#: A step has room for so many prompt tokens however slow it is: a prompt must end some day.
FLOOR = 32
#: A step is planned by a time that it rarely exceeds. Two things make it longer than the likely one: costs that are
#: not known well yet (so many deviations of the prediction), and chance: the share of steps that may take longer.
DEVIATIONS = 1.0
MAY_EXCEED = 0.03
CHANCE_START, CHANCE_MOST = 1.1, 2.0  # factor on the predicted time that covers chance, and its bounds
CHANCE_STEP = 0.06  # how fast it follows what is seen
#: The next steps are planned as if the machine were as slow as in the slowest of so many steps before, at most so much.
LATELY = 4
LATELY_MOST = 4.0


@dataclass(frozen=True, slots=True)
class Growth:
    """How the time of a step grows with the tokens of one row more: polynomials, lowest power first."""

    likely: tuple[float, float, float]  # ms
    variance: tuple[float, float, float, float, float]  # of what the costs are not known to

    def likely_ms(self, n: int) -> float:
        a, b, c = self.likely
        return a + n * (b + n * c)

    def doubt_ms(self, n: int) -> float:
        a, b, c, d, e = self.variance
        return sqrt(max(a + n * (b + n * (c + n * (d + n * e))), 0.0))


class StepTime:
    """A Kalman filter over the five costs: what was not seen lately keeps its value, and is trusted less."""

    def __init__(self) -> None:
        count = len(START_MS)
        self._factors = [1.0] * count  # costs in units of START_MS
        self._cov = [[START_VARIANCE * (i == j) for j in range(count)] for i in range(count)]
        self._num_spikes = 0
        self.num_learned = 0

    @property
    def costs_ms(self) -> list[float]:
        return [factor * start for factor, start in zip(self._factors, START_MS, strict=True)]

    def predict_ms(self, load: Load) -> float:
        return _dot(self._factors, _features(load))

    def doubt_ms(self, load: Load) -> float:
        """A deviation of the prediction, of what the costs are not known to."""
        features = _features(load)
        return sqrt(max(_dot([_dot(row, features) for row in self._cov], features), 0.0))

    def growth(self, load: Load, context: int) -> Growth:
        """Of a step of `load` and a row of n prompt tokens behind `context`, for any n."""
        # Features: those of `load` and a row more, plus n * token and (n * pair + n * n * half): so the time is of
        # degree 2 in n, and its variance of degree 4.
        base = _features(Load(load.rows + 1, load.singles, load.seen, load.tokens, load.pairs))
        token, pair, half = START_MS[2], (context + 0.5) * START_MS[3], 0.5 * START_MS[3]
        factors, cov = self._factors, self._cov
        spread = [_dot(row, base) for row in cov]
        c22, c23, c33 = cov[2][2], cov[2][3], cov[3][3]
        return Growth(
            (_dot(factors, base), factors[2] * token + factors[3] * pair, factors[3] * half),
            (
                _dot(spread, base),
                2 * (spread[2] * token + spread[3] * pair),
                c22 * token * token + 2 * c23 * token * pair + c33 * pair * pair + 2 * spread[3] * half,
                2 * half * (c23 * token + c33 * pair),
                c33 * half * half,
            ),
        )

    def learn(self, load: Load, elapsed_ms: float) -> None:
        if not (isfinite(elapsed_ms) and elapsed_ms > 0):
            return  # not measured
        features = _features(load)
        expected = _dot(self._factors, features)
        spread = [_dot(row, features) for row in self._cov]
        chance = (NOISE * elapsed_ms + 0.1) ** 2
        variance = _dot(spread, features) + chance
        error = elapsed_ms - expected
        if self.num_learned and error * error > SPIKE_DEVIATIONS**2 * variance:
            self._num_spikes += 1
            if error > 0 and self._num_spikes < SPIKES_BELIEVED:
                return  # no step is faster than the machine, but any may be held up
            for i, row in enumerate(self._cov):  # the machine has changed: learn anew from here
                row[i] += START_VARIANCE * max(1.0, self._factors[i] ** 2)
            spread = [_dot(row, features) for row in self._cov]
            variance = _dot(spread, features) + chance
        self._num_spikes = 0
        self.num_learned += 1
        gain = [each / variance for each in spread]
        self._factors = [
            min(max(f + g * error, LEAST), MOST) for f, g in zip(self._factors, gain, strict=True)
        ]
        self._cov = [
            [c - g * s for c, s in zip(row, spread, strict=True)]
            for row, g in zip(self._cov, gain, strict=True)
        ]
        self._drift()

    def _drift(self) -> None:
        """Trust fades, down to that of the start and no further."""
        cov = self._cov
        for i, factor in enumerate(self._factors):
            scale = max(factor, 0.1)
            cov[i][i] += (DRIFT * scale) ** 2
            most = START_VARIANCE * max(1.0, scale * scale)
            if cov[i][i] > most:
                shrink = sqrt(most / cov[i][i])
                for j in range(len(cov)):  # a row and its column alike: it stays a covariance
                    cov[i][j] *= shrink
                    cov[j][i] *= shrink


class Chance:
    """The factor between a predicted time and one that only few steps exceed: a quantile, tracked step by step."""

    def __init__(self) -> None:
        self.factor = CHANCE_START

    def learn(self, ratio: float) -> None:
        """A step took `ratio` times what was predicted. Spikes that no factor covers are not learned from."""
        if not ratio <= CHANCE_MOST:
            return
        if ratio > self.factor:
            self.factor += CHANCE_STEP * (1 - MAY_EXCEED)
        else:
            self.factor -= CHANCE_STEP * MAY_EXCEED
        self.factor = min(max(self.factor, 1.0), CHANCE_MOST)


class Pace:
    """`Limit`: while other rows wait for their next token, prompts get what keeps the step under
    `bound_ms`; with no such row, whatever the budget allows.

    A prompt that one step could hold takes what it wants. A longer one leaves what those behind it want,
    up to half of what is left: so a short prompt passes through the steps of a long one.
    """

    least = 2  # single tokens are never held back

    def __init__(self, bound_ms: float, *, grain: int = GRAIN, floor: int = FLOOR) -> None:
        self.bound_ms = bound_ms
        self.grain = grain
        self.floor = floor
        self.time = StepTime()
        self.chance = Chance()
        self._lately: deque[tuple[Load, float]] = deque(maxlen=LATELY)
        self._planned_ms = 0.0  # `_plan_ms`, 0 = to be computed: steps that only decode do not ask
        self._last: tuple[Load, float] | None = (
            None  # the last step that had prompts and streams, and its time
        )

    def observe(self, load: Load, elapsed_s: float) -> None:
        elapsed_ms = 1e3 * elapsed_s
        if load.singles and load.tokens and isfinite(elapsed_ms) and elapsed_ms > 0:
            self._last = load, elapsed_ms
            self.chance.learn(self._ratio(load, elapsed_ms))
            self._lately.append((load, elapsed_ms))
        self.time.learn(load, elapsed_ms)
        self._planned_ms = 0.0

    def _plan_ms(self) -> float:
        """The likely time of a step that rarely exceeds the bound.

        A spike is not learned from at once, but it may be the first step of a slow machine: what it took is judged
        by what is known now, so it counts until it is learned, or forgotten.
        """
        if not self._planned_ms:
            slowest = max((self._ratio(*each) for each in self._lately), default=1.0)
            self._planned_ms = self.bound_ms / max(self.chance.factor, min(slowest, LATELY_MOST))
        return self._planned_ms

    def _ratio(self, load: Load, elapsed_ms: float) -> float:
        """How many times longer than the likely time a step took. What costs not known yet explain is no chance."""
        return (elapsed_ms - self.time.doubt_ms(load)) / max(self.time.predict_ms(load), 1e-3)

    def is_full(self, view: StepView) -> bool:
        return view.load.singles > 0 and view.load.tokens > 0 and self._room(view) < self.grain

    def grant(self, request: Request, want: int, view: StepView) -> int:
        load = view.load
        free = view.budget - view.num_to_come
        if not load.tokens:
            free = max(free, 1)
        left = free
        if load.singles:
            room = self._room(view)
            if room < self.grain and want > room:
                return 0
            left = min(free, room)
        if left <= 0:
            return 0
        grain, rest = self.grain, request.known + request.drawn - view.context
        if rest > left + load.tokens and view.num_behind and left >= 2 * grain:
            left -= min(-(-view.num_behind // grain) * grain, left // 2)
        if want <= left:
            return want
        return left // grain * grain or left

    def _room(self, view: StepView) -> int:
        """Prompt tokens at `view.context` that the step still has time for."""
        load = view.load
        least, bound_ms = self.floor - load.tokens, self._plan_ms()
        most = self._likely_room(view, bound_ms)
        if most <= least:
            return least
        growth = self.time.growth(view.load, view.context)
        if self._surely_ms(view, growth, most) <= bound_ms:
            return most
        least = max(least, 0)
        for _ in range(HALVINGS):  # the more tokens, the more doubt
            middle = (least + most) // 2
            if self._surely_ms(view, growth, middle) <= bound_ms:
                least = middle
            else:
                most = middle
        return max(least, self.floor - load.tokens)

    def _surely_ms(self, view: StepView, growth: Growth, count: int) -> float:
        """Of the step with `count` tokens more."""
        likely_ms = growth.likely_ms(count)
        doubtful_ms = likely_ms + DEVIATIONS * growth.doubt_ms(count)
        if doubtful_ms <= self._plan_ms():
            return doubtful_ms  # what follows could only make it less
        load = view.load
        pairs = count * view.context + count * (count + 1) // 2
        load = Load(load.rows + 1, load.singles, load.seen, load.tokens + count, load.pairs + pairs)
        return max(likely_ms, min(doubtful_ms, self._by_growth_ms(load)))

    def _by_growth_ms(self, load: Load) -> float:
        """At most so long: costs are not negative, so k times as much of everything takes k times as long at most."""
        if self._last is None:
            return inf
        before, elapsed_ms = self._last
        growth = 1.0
        for now, then in zip(_features(load), _features(before), strict=True):
            if now > growth * then:
                if not then:
                    return inf
                growth = now / then
        return growth * elapsed_ms

    def _likely_room(self, view: StepView, bound_ms: float) -> int:
        _, row, token, pair, _ = self.time.costs_ms
        time_ms = bound_ms - self.time.predict_ms(view.load) - row
        if time_ms <= 0:
            return 0
        # time = tokens * each + tokens^2 * pair / 2, solved for tokens
        each = token + pair * view.context
        return int(2 * time_ms / (each + sqrt(each * each + 2 * pair * time_ms)))


def _features(load: Load) -> tuple[float, ...]:
    counts = (1, load.rows, load.tokens, load.pairs, load.seen)
    return tuple([count * start for count, start in zip(counts, START_MS, strict=True)])


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum([x * y for x, y in zip(a, b, strict=True)])
