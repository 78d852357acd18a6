"""Octavo and its rivals on the same work, interleaved; medians, a table of ratios, one JSON file.

    ./run bench --quick
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.cases import CASES
from benchmarks.figures import HEADLINES
from benchmarks.peers import servers
from benchmarks.peers.servers import Running, Side

MEMORY_SHARE = 0.7  # of the machine's, that sides may take together
QUICK_CASES = ("c1", "c2")
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


def main(argv: list[str]) -> int:
    given = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through the blocks that stop the servers
    cases = given.cases.split(",") if given.cases else list(QUICK_CASES if given.quick else CASES)
    num_rounds = given.rounds or (1 if given.quick else 3)
    sides = chosen_sides(given)
    keep = {"auto": fit_together(sides), "keep": True, "restart": False}[given.servers]
    bench = Bench(given.model, cases, num_rounds, given.threads, keep)
    bench.measure(sides)
    table = ratios(bench.results, cases)
    print(render(table))
    out = Path(given.out or f"build/bench/{time.strftime('%Y%m%d-%H%M%S')}-{machine.commit()}.json")
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
    p.add_argument("--cases", help=f"of {','.join(CASES)} (default: all)")
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
    sides = [servers.octavo(given.model, w, given.threads, more) for w in given.weights.split(",") if w]
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
            sides.append(make(program, path, weights, given.threads))
    return sides


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
    results: list[dict[str, Any]] = field(default_factory=list)
    limits: list[dict[str, Any]] = field(default_factory=list)
    _logs: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="octavo-bench-")))

    def measure(self, sides: Sequence[Side]) -> None:
        for number in range(self.num_rounds):
            self._measure_limits(number, {side.weights for side in sides if side.engine == "octavo"})
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
        key = HEADLINES[figures["case"]][0]
        failed = (
            f", {figures['errors']} ERRORS: {figures.get('first_error')}" if figures.get("errors") else ""
        )
        print(
            f"round {figures['round'] + 1}  {figures['case']:<5}  {figures['label']:<18}  {key} {figures[key]}{failed}",
            file=sys.stderr,
            flush=True,
        )

    def _measure_limits(self, number: int, weights: set[str]) -> None:
        from benchmarks.limits import case_limits

        for name in sorted(weights):
            found = case_limits(self.model, name, self.num_threads)
            self.limits.append({"round": number, "weights": name} | found)

    def _limit(self, side: Side, name: str, number: int) -> float | None:
        """The machine's own limit for the headline of c1 and c4, from this round."""
        if side.engine != "octavo":
            return None
        found = [m for m in self.limits if m["weights"] == side.weights and m["round"] == number]
        limit = found[0].get(name) if found else None
        return float(limit) if limit else None


def ratios(results: Sequence[dict[str, Any]], cases: Sequence[str]) -> list[dict[str, Any]]:
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
                    "goal": GOALS[name].get(weights),
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
