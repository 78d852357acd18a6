"""Counters, gauges and histograms that are cheap to count, and add up over several processes.

Everything happens in one event loop, so nothing locks. What is counted, and when, is `api.metrics`' to
say; the text for Prometheus is prometheus_client's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Labels = tuple[tuple[str, str], ...]  # sorted by name
#: (family, labels, values) of every series that adds up: what one process tells another.
Snapshot = list[tuple[str, list[tuple[str, str]], list[float]]]


class PeerReport(msgspec.Struct):
    """What one API process says to another that is asked for the whole server's numbers."""

    series: Snapshot
    num_open: int  # requests that it serves


class Value:
    """A counter (which only grows) or a gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount

    def set(self, value: float) -> None:
        self.value = value

    def dump(self) -> list[float]:
        return [self.value]


class Histogram:
    """`counts[i]` values are at most `bounds[i]` and above the bound before; the last are above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = list(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Many at once: one search a bound, not one a value."""
        ordered = sorted(values)
        before = 0
        for i, bound in enumerate(self.bounds):
            after = bisect_right(ordered, bound, before)
            self.counts[i] += after - before
            before = after
        self.counts[-1] += len(ordered) - before
        self.total += sum(ordered)

    def dump(self) -> list[float]:
        return [self.total, *self.counts]


@dataclass(slots=True)
class Family:
    """Series of one name. `is_shared`: of the engine, so that every process says the same and none is added."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    bounds: tuple[float, ...] = ()
    is_shared: bool = False
    children: dict[Labels, Value | Histogram] = field(default_factory=dict)

    @property
    def label_names(self) -> list[str]:
        return sorted({name for labels in self.children for name, _ in labels})


class Registry:
    """Families in the order of their first series."""

    def __init__(self) -> None:
        self.families: dict[str, Family] = {}

    def counter(self, name: str, text: str, **labels: str) -> Value:
        """`name` without the `_total` that the text adds."""
        return self._value(Family(f"{name}_total", "counter", text), labels)

    def shared_counter(self, name: str, text: str, **labels: str) -> Value:
        """The same of the engine, which tells every process."""
        return self._value(Family(f"{name}_total", "counter", text, is_shared=True), labels)

    def declare(self, name: str, text: str) -> None:
        """A counter whose labels are not known yet: another process may have counted already."""
        self._family(Family(f"{name}_total", "counter", text))

    def gauge(self, name: str, text: str, **labels: str) -> Value:
        return self._value(Family(name, "gauge", text, is_shared=True), labels)

    def histogram(self, name: str, text: str, bounds: Iterable[float], **labels: str) -> Histogram:
        family = self._family(Family(name, "histogram", text, tuple(bounds)))
        found = family.children.setdefault(_key(labels), Histogram(family.bounds))
        assert isinstance(found, Histogram)
        return found

    def _value(self, family: Family, labels: Mapping[str, str]) -> Value:
        found = self._family(family).children.setdefault(_key(labels), Value())
        assert isinstance(found, Value)
        return found

    def _family(self, family: Family) -> Family:
        return self.families.setdefault(family.name, family)

    def snapshot(self) -> Snapshot:
        """What this process counted itself."""
        return [
            (family.name, list(labels), child.dump())
            for family in self.families.values()
            if not family.is_shared
            for labels, child in family.children.items()
        ]

    def text(self, others: Iterable[Snapshot] = ()) -> bytes:
        """The exposition, what other processes counted added."""
        sums = {
            (f.name, labels): child.dump()
            for f in self.families.values()
            for labels, child in f.children.items()
        }
        for name, pairs, values in (item for other in others for item in other):
            key = (name, tuple((label, value) for label, value in pairs))
            have = sums.get(key)
            sums[key] = list(values) if have is None else [a + b for a, b in zip(have, values, strict=True)]
        return _exposition(_Sums(self.families, sums))


def _key(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


class _Sums:
    """Sums as prometheus_client collects them: it owns the format. Imported at a scrape, not at a start."""

    def __init__(
        self, families: Mapping[str, Family], sums: Mapping[tuple[str, Labels], list[float]]
    ) -> None:
        self._families = families
        self._sums = sums

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        series: dict[str, list[tuple[Labels, list[float]]]] = {name: [] for name in self._families}
        for (name, labels), values in self._sums.items():
            series[name].append((labels, values))
        for family in self._families.values():
            names = sorted({name for labels, _ in series[family.name] for name, _ in labels})
            made: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
            if family.kind == "histogram":
                made = HistogramMetricFamily(family.name, family.text, labels=names)
            elif family.kind == "gauge":
                made = GaugeMetricFamily(family.name, family.text, labels=names)
            else:
                made = CounterMetricFamily(family.name, family.text, labels=names)
            for labels, values in series[family.name]:
                given = [dict(labels).get(name, "") for name in names]
                if isinstance(made, HistogramMetricFamily):
                    made.add_metric(given, _buckets(family.bounds, values[1:]), values[0])
                else:
                    made.add_metric(given, values[0])
            yield made


def _exposition(sums: _Sums) -> bytes:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(sums)
    return generate_latest(registry)


def _buckets(bounds: Sequence[float], counts: Sequence[float]) -> list[tuple[str, float]]:
    """(upper bound as text, values at most it), cumulated, the last one +Inf."""
    texts = [repr(float(bound)) for bound in bounds]
    return list(zip((*texts, "+Inf"), accumulate(counts), strict=True))
