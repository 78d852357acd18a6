"""Octavo and its rivals on the same work, interleaved; medians, a table of ratios, one JSON file.

    ./run bench --quick                                   c1 and c2, one round: a minute
    ./run bench --rounds 3 --weights file,w8,bf16
    ./run bench --peers llama.cpp,vllm,openvino @PEERS.txt

A rival is named in --peers and placed by its own flags, which may lie in a file given as @FILE, one word a
line. A ratio is taken of medians, against the best rival whose weights have the same number of bits or
fewer. When all sides fit into memory together they stay up, those that wait are stopped by SIGSTOP, and
every case goes round all of them; otherwise each side starts anew for each round. Prompts differ from
round to round. OpenVINO runs in process, without HTTP. Limits of the machine are measured in every round.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.cases import CASES, TRY
from benchmarks.figures import HEADLINES
from benchmarks.limits import case_limits, own_form, plan_of
from benchmarks.peers import servers
from benchmarks.peers.servers import Running, Side

MEMORY_SHARE = 0.7  # of the machine's, that sides may take together
QUICK_CASES = ("c1", "c2")
# About what a case takes Octavo with SmolLM2 on two cores; "start" with the limits of the machine. Rivals take
# longer, larger models in proportion to their files.
CASE_S = {"start": 6.0, "c1": 8.0, "c2": 20.0, "c3": 10.0, "c4": 8.0, "c5": 14.0, "c6": 20.0, TRY: 1.0}
RIVAL_FACTOR = 2.0
SMOLLM2_BYTES = 98e6
# What issue 3 asks: the least ratio to the best rival, by weights.
GOALS: dict[str, dict[str, float]] = {
    "c1": {"w4": 2.0, "w8": 1.8, "bf16": 1.3},
    "c2": {"w4": 2.0, "w8": 2.0, "bf16": 1.6},
    "c3": {"w4": 2.2, "w8": 2.2, "bf16": 2.2},
    "c4": {"w4": 1.4, "w8": 1.4, "bf16": 1.1},
    "c5": {"w4": 20.0, "w8": 20.0, "bf16": 20.0},
    "c6": {"w4": 1.6, "w8": 1.6, "bf16": 1.3},
    "start": {"w4": 1.0, "w8": 1.0, "bf16": 1.0},
}


# The same for other models, whatever the weights; cases that are not named have no goal.
MODEL_GOALS = {
    "qwen2.5-coder-0.5b": {"c1": 1.5, "c2": 1.5, "c4": 1.5},
    "qwen2.5-coder-1.5b": {"c1": 1.3, "c2": 1.3},
}


def main(argv: list[str]) -> int:
    given = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through the blocks that stop the servers
    cases = given.cases.split(",") if given.cases else list(QUICK_CASES if given.quick else CASES)
    if unknown := set(cases) - {*CASES, TRY}:
        sys.exit(f"--cases has {', '.join(sorted(unknown))}; there are {', '.join((*CASES, TRY))}")
    num_rounds = given.rounds or (1 if given.quick else 3)
    out = Path(given.out or f"build/bench/{time.strftime('%Y%m%d-%H%M%S')}-{machine.commit()}.json")
    sides = chosen_sides(given)
    keep = {"auto": fit_together(sides), "keep": True, "restart": False}[given.servers]
    progress = Progress(expected_s(sides, cases, num_rounds, keep, model_bytes(given.model)))
    print(announcement(given.model, sides, cases, num_rounds, progress, out), file=sys.stderr, flush=True)
    bench = Bench(given.model, cases, num_rounds, given.threads, keep, progress)
    bench.measure(sides)
    table = ratios(bench.results, cases, goals_of(given.model))
    print(render(table))
    out.parent.mkdir(parents=True, exist_ok=True)
    whole = {
        "machine": machine.facts(),
        "model": Path(given.model).name,
        "threads": given.threads,
        "rounds": num_rounds,
        "interleaved_by": "case" if keep else "round",
        "results": bench.results,
        "limits": bench.limits,
        "ratios": table,
    }
    out.write_text(json.dumps(whole, indent=1))
    print(f"\n{out}")
    return 1 if any(r.get("errors") for r in bench.results) else 0


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, fromfile_prefix_chars="@"
    )
    p.add_argument("--model", default="smollm2", help="as for `octavo serve` (default: %(default)s)")
    p.add_argument(
        "--weights", default="file,w8,bf16", help="of Octavo: file, w4, w8, bf16 (default: %(default)s)"
    )
    p.add_argument(
        "--cases", help=f"of {','.join(CASES)} (default: all), or {TRY}: one short request to each side"
    )
    p.add_argument("--rounds", type=int, help="default: 3")
    p.add_argument("--quick", action="store_true", help="c1 and c2, one round")
    p.add_argument(
        "--threads", type=int, default=2, help="threads and cores of every side (default: %(default)s)"
    )
    p.add_argument(
        "--servers", choices=["auto", "keep", "restart"], default="auto", help="keep all up, or not"
    )
    p.add_argument(
        "--serve-flag", action="append", default=[], help="one more word for `octavo serve`; repeat it"
    )
    p.add_argument("--out", help="JSON file (default: one under build/bench)")
    p.add_argument("--peers", default="", help="of llama.cpp,vllm,openvino")
    p.add_argument(
        "--llama-server", default=os.environ.get("OCTAVO_BENCH_LLAMA_SERVER"), help="path of llama-server"
    )
    p.add_argument("--llama-models", nargs="+", default=[], metavar="WEIGHTS=FILE", help="e.g. Q4_0=a.gguf")
    p.add_argument(
        "--vllm-python", default=os.environ.get("OCTAVO_BENCH_VLLM_PYTHON"), help="of its environment"
    )
    p.add_argument("--vllm-models", nargs="+", default=[], metavar="WEIGHTS=DIR", help="e.g. W8A8=dir")
    p.add_argument(
        "--openvino-python", default=os.environ.get("OCTAVO_BENCH_OPENVINO_PYTHON"), help="likewise"
    )
    p.add_argument("--openvino-models", nargs="+", default=[], metavar="WEIGHTS=DIR", help="e.g. int4=dir")
    return p


def chosen_sides(given: argparse.Namespace) -> list[Side]:
    """Octavo's, then the rivals'. Ends the program when a rival is named but not placed."""
    more = tuple(given.serve_flag)
    rivals = []
    makers = {
        "llama.cpp": (servers.llama_cpp, given.llama_server, given.llama_models, "llama"),
        "vllm": (servers.vllm, given.vllm_python, given.vllm_models, "vllm"),
        "openvino": (servers.openvino, given.openvino_python, given.openvino_models, "openvino"),
    }
    for name in filter(None, given.peers.split(",")):
        if name not in makers:
            sys.exit(f"--peers has {name}; there are {', '.join(makers)}")
        make, program, models, flag = makers[name]
        if not program or not models:
            sys.exit(
                f"--peers has {name}: say where it is with --{flag}-{'server' if flag == 'llama' else 'python'} "
                f"and --{flag}-models"
            )
        for word in models:
            weights, equals, path = word.partition("=")
            if not equals or not Path(path).exists():
                sys.exit(f"--{flag}-models has {word}: give WEIGHTS=PATH of something that exists")
            rivals.append(make(program, path, weights, given.threads))
    asked = [word for word in given.weights.split(",") if word]
    own = own_form(given.model) if "file" in asked else ""
    sides: list[Side] = []
    for word in asked:
        side = servers.octavo(given.model, word, given.threads, own, more)
        if side.label not in [other.label for other in sides]:  # two choices may mean the same
            sides.append(side)
    return sides + rivals


def goals_of(model: str) -> dict[str, dict[str, float]]:
    for name, goals in MODEL_GOALS.items():
        if name in Path(model).name.lower():
            return {case: dict.fromkeys(("w4", "w8", "bf16"), goal) for case, goal in goals.items()}
    return GOALS


def model_bytes(model: str) -> int:
    """Of its weights, from headers only."""
    return sum(info.nbytes for info in plan_of(model).source.tensors.values())


def expected_s(
    sides: Sequence[Side], cases: Sequence[str], num_rounds: int, keep: bool, num_bytes: int
) -> dict[tuple[str, str], float]:
    """Roughly the seconds of each side's cases, all rounds together."""
    size = max(1.0, num_bytes / SMOLLM2_BYTES)
    times = {}
    for side in sides:
        factor = size * (1.0 if side.engine == "octavo" else RIVAL_FACTOR)
        times |= {(side.label, name): num_rounds * factor * CASE_S[name] for name in cases}
        times[side.label, "start"] = (1 if keep else num_rounds) * factor * CASE_S["start"]
    return times


@dataclass
class Progress:
    """How much of the expected work is done, and how long the rest will take at the pace so far."""

    expected: dict[tuple[str, str], float]  # (side, case) -> seconds of all rounds
    done_s: float = 0.0  # of the expected
    started: float = field(default_factory=time.monotonic)

    @property
    def whole_s(self) -> float:
        return sum(self.expected.values())

    def add(self, label: str, case: str, num_times: int) -> None:
        """One of `num_times` is done."""
        self.done_s += self.expected[label, case] / num_times

    def shown(self) -> str:
        share = self.done_s / self.whole_s
        left_s = (time.monotonic() - self.started) * (1 - share) / share
        return f"{100 * share:3.0f}%, {minutes(left_s)} left"


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def announcement(
    model: str, sides: Sequence[Side], cases: Sequence[str], num_rounds: int, progress: Progress, out: Path
) -> str:
    """What is going to be done, how long it may take, and how to do less."""
    return (
        f"{Path(model).name} on {', '.join(side.label for side in sides)}: {', '.join(cases)}, "
        f"{num_rounds} round{'s' if num_rounds > 1 else ''}; about {minutes(progress.whole_s)}\n"
        "less: --quick (c1 and c2, once), --cases c1, --rounds 1, --weights file; Ctrl-C stops, and nothing is "
        f"written then\nfigures go to {out}"
    )


def fit_together(sides: Sequence[Side]) -> bool:
    memory_gb = float(machine.facts()["memory_gb"])
    return sum(side.need_gb for side in sides) <= MEMORY_SHARE * memory_gb


@dataclass
class Bench:
    """Runs rounds and collects their figures."""

    model: str
    cases: Sequence[str]
    num_rounds: int
    num_threads: int
    keep: bool
    progress: Progress
    results: list[dict[str, Any]] = field(default_factory=list)
    limits: list[dict[str, Any]] = field(default_factory=list)
    _logs: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="octavo-bench-")))

    def measure(self, sides: Sequence[Side]) -> None:
        for number in range(self.num_rounds):
            self._measure_limits(number, [side for side in sides if side.engine == "octavo"])
            if not self.keep:
                for side in sides:
                    running = self._start(side, number)
                    try:
                        for name in self.cases:
                            self._one(running, name, number)
                    finally:
                        running.stop()
        if self.keep:
            self._measure_kept(sides)

    def _measure_kept(self, sides: Sequence[Side]) -> None:
        up: list[Running] = []
        try:
            for side in sides:
                up.append(self._start(side, 0))
                up[-1].pause()
            for number in range(self.num_rounds):
                for name in self.cases:
                    for running in self._turns(up):
                        self._one(running, name, number)
        finally:
            for running in up:
                running.stop()

    @staticmethod
    def _turns(up: Sequence[Running]) -> Iterator[Running]:
        for running in up:
            running.resume()
            yield running
            running.pause()

    def _start(self, side: Side, number: int) -> Running:
        running = Running(side, self.num_threads, self._logs / f"{side.label.replace(' ', '-')}.log")
        self._keep(
            {"label": side.label, "case": "start", "start_s": round(running.start_s, 3), "round": number}
        )
        return running

    def _one(self, running: Running, name: str, number: int) -> None:
        side = running.side
        figures = running.figures(name, seed=number + 1)
        about = {"engine": side.engine, "weights": side.weights, "bits": side.bits, "round": number}
        limit = self._limit(side, name, number)
        self._keep(figures | about | ({"limit": limit} if limit else {}))

    def _keep(self, figures: dict[str, Any]) -> None:
        self.results.append(figures)
        name, label = figures["case"], figures["label"]
        key = HEADLINES[name][0]
        self.progress.add(label, name, 1 if name == "start" and self.keep else self.num_rounds)
        failed = (
            f", {figures['errors']} ERRORS: {figures.get('first_error')}" if figures.get("errors") else ""
        )
        print(
            f"{self.progress.shown():<18}  round {figures['round'] + 1}  {name:<5}  {label:<18}  "
            f"{key} {figures[key]}{failed}",
            file=sys.stderr,
            flush=True,
        )

    def _measure_limits(self, number: int, sides: Sequence[Side]) -> None:
        for side in sides:
            found = case_limits(self.model, side.asked, self.num_threads)
            self.limits.append({"round": number, "weights": side.weights} | found)

    def _limit(self, side: Side, name: str, number: int) -> float | None:
        """The machine's own limit for the headline of c1 and c4, from this round."""
        if side.engine != "octavo":
            return None
        found = [m for m in self.limits if m["weights"] == side.weights and m["round"] == number]
        limit = found[0].get(name) if found else None
        return float(limit) if limit else None


def ratios(
    results: Sequence[dict[str, Any]],
    cases: Sequence[str],
    goals: Mapping[str, Mapping[str, float]] = GOALS,
) -> list[dict[str, Any]]:
    """For each case and each of Octavo's weights: its median, the best rival's, the ratio, the goal."""
    rows = []
    for name in ["start", *cases]:
        key, more_is_better = HEADLINES[name]
        of_side: dict[str, list[dict[str, Any]]] = {}
        for result in results:
            if result["case"] == name and not result.get("errors"):
                of_side.setdefault(result["label"], []).append(result)
        medians = {label: statistics.median(r[key] for r in found) for label, found in of_side.items()}
        for label, ours in medians.items():
            engine, _, weights = label.partition(" ")
            if engine != "octavo":
                continue
            bits = _bits_of(results, label)
            rivals = {
                other: value
                for other, value in medians.items()
                if not other.startswith("octavo ") and (name == "start" or _bits_of(results, other) <= bits)
            }
            row: dict[str, Any] = {"case": name, "figure": key, "weights": weights, "ours": ours}
            if rivals:
                best = (max if more_is_better else min)(rivals, key=lambda other: rivals[other])
                theirs = rivals[best]
                ratio = ours / theirs if more_is_better else theirs / ours
                row |= {
                    "best": best,
                    "theirs": theirs,
                    "ratio": round(ratio, 3),
                    "goal": goals.get(name, {}).get(weights),
                }
            limits = [r["limit"] for r in of_side[label] if r.get("limit")]
            if limits:
                row["of_limit"] = round(ours / statistics.median(limits), 3)
            rows.append(row)
    return rows


def _bits_of(results: Sequence[dict[str, Any]], label: str) -> int:
    return next((int(r["bits"]) for r in results if r["label"] == label and "bits" in r), 16)


def render(rows: Sequence[dict[str, Any]]) -> str:
    from octavo.cli.bench_step import columns

    head = ["case", "weights", "figure", "octavo", "best rival", "its", "ratio", "goal", "", "of the limit"]
    lines = [head]
    for row in rows:
        ratio, goal = row.get("ratio"), row.get("goal")
        lines.append(
            [
                row["case"],
                row["weights"],
                row["figure"],
                f"{row['ours']:,.2f}",
                row.get("best", ""),
                f"{row['theirs']:,.2f}" if "theirs" in row else "",
                f"{ratio:.2f}" if ratio else "",
                f"{goal:.1f}" if goal else "",
                ("yes" if ratio >= goal else "no") if ratio and goal else "",
                f"{100 * row['of_limit']:.0f}%" if "of_limit" in row else "",
            ]
        )
    return columns(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
