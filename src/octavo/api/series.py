"""Counters, gauges and histograms, and their text for Prometheus. Series of several processes add up.

Everything happens in one event loop, so nothing locks. What is counted, and when, is `api.metrics`' to say.
Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text, version 0.0.4).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
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
        lines: list[str] = []
        for family in self.families.values():
            lines += (f"# HELP {family.name} {family.text}", f"# TYPE {family.name} {family.kind}")
            for (name, labels), values in sums.items():
                if name == family.name:
                    lines += _lines(family, labels, values)
        return ("\n".join(lines) + "\n").encode()


def _key(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


def _lines(family: Family, labels: Labels, values: Sequence[float]) -> Iterator[str]:
    if family.kind != "histogram":
        yield f"{family.name}{_braces(labels)} {_number(values[0])}"
        return
    seen = 0.0
    for bound, count in zip((*family.bounds, float("inf")), values[1:], strict=True):
        seen += count
        yield f"{family.name}_bucket{_braces((*labels, ('le', _number(bound))))} {_number(seen)}"
    yield f"{family.name}_count{_braces(labels)} {_number(seen)}"
    yield f"{family.name}_sum{_braces(labels)} {_number(values[0])}"


def _braces(labels: Labels) -> str:
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels))
    return f"{{{inside}}}" if inside else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return "+Inf" if value == float("inf") else repr(float(value))
