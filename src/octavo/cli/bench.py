"""`octavo bench serve`: a load on a running server, and its figures. (`step` is in bench_step.)

Prompts are random words, answers a fixed number of tokens; counts come from the server's usage, times
from the arrival of chunks. Result keys follow vLLM's `bench serve`.
"""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from octavo import env
from octavo.cli.client import DEFAULT_URL, Server, ServerError
from octavo.config.load import Parser

WORDS = (
    "the of a river stone light quick brown table window seven garden paper morning road green old".split()
)


def main(argv: list[str]) -> int:
    if argv[:1] == ["step"]:
        from octavo.cli import bench_step

        return bench_step.main(argv[1:])
    parser = Parser(
        prog="octavo bench",
        description="Measure a running server, or the steps of the engine alone.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "kind",
        metavar="serve|step",
        choices=["serve", "step"],
        help="serve: a load over HTTP, with the options below; step: the anatomy of a step "
        f"(`{env.command('bench step --help')}`)",
    )
    parser.add_argument("--base-url", "--url", default=DEFAULT_URL, help="default: %(default)s")
    parser.add_argument("--api-key", help="default: OCTAVO_API_KEY")
    parser.add_argument(
        "--model", "--model-name", metavar="NAME", help="default: the first model that the server names"
    )
    parser.add_argument("--num-prompts", type=int, default=64, help="requests (default: %(default)s)")
    parser.add_argument("--max-concurrency", type=int, default=16, help="at once (default: %(default)s)")
    parser.add_argument("--random-input-len", type=int, default=200, help="words in (default: %(default)s)")
    parser.add_argument(
        "--random-output-len", type=int, default=128, help="tokens out (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args(argv)
    server = Server(given.base_url, given.api_key)
    model = given.model or server.first_model()
    load = Load(
        server, model, given.random_output_len, prompts(given.num_prompts, given.random_input_len, given.seed)
    )
    figures = load.run(max(1, given.max_concurrency))
    print(json.dumps(figures, indent=2) if given.json else report(figures))
    return 0 if not figures["failed"] else 1


def prompts(count: int, num_words: int, seed: int) -> list[str]:
    """Different from the first word on, so that no prefix is shared."""
    rng = random.Random(seed)
    return [f"{i} " + " ".join(rng.choices(WORDS, k=max(1, num_words - 1))) for i in range(count)]


@dataclass(slots=True)
class Measured:
    """One request; times in seconds from its start."""

    chunks_s: list[float] = field(default_factory=list)
    end_s: float = 0.0
    num_in: int = 0
    num_out: int = 0
    error: str = ""


class Load:
    """All prompts, a fixed number at once."""

    def __init__(self, server: Server, model: str, num_out: int, texts: list[str]) -> None:
        self._server = server
        self._body = {"model": model, "max_tokens": num_out, "ignore_eos": True, "temperature": 0}
        self._todo = list(reversed(texts))
        self._done: list[Measured] = []

    def run(self, concurrency: int) -> dict[str, Any]:
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(concurrency)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return figures_of(self._done, time.monotonic() - start, str(self._body["model"]), concurrency)

    def _work(self) -> None:
        while True:
            try:
                text = self._todo.pop()
            except IndexError:
                return
            self._done.append(self._one(text))

    def _one(self, text: str) -> Measured:
        got, start = Measured(), time.monotonic()
        try:
            for event in self._server.stream("/completions", {**self._body, "prompt": text}):
                if any(choice.get("text") for choice in event.get("choices", [])):
                    got.chunks_s.append(time.monotonic() - start)
                if usage := event.get("usage"):
                    got.num_in, got.num_out = usage["prompt_tokens"], usage["completion_tokens"]
        except (ServerError, OSError) as error:
            got.error = str(error)
        got.end_s = time.monotonic() - start
        return got


def figures_of(done: list[Measured], duration_s: float, model: str, concurrency: int) -> dict[str, Any]:
    """Totals and percentiles over the requests that ended well."""
    good = [m for m in done if not m.error and m.chunks_s]
    num_out = sum(m.num_out for m in good)
    figures: dict[str, Any] = {
        "model_id": model,
        "max_concurrency": concurrency,
        "duration": duration_s,
        "completed": len(good),
        "failed": len(done) - len(good),
        "total_input_tokens": sum(m.num_in for m in good),
        "total_output_tokens": num_out,
        "request_throughput": len(good) / duration_s,
        "output_throughput": num_out / duration_s,
    }
    tpots = [(m.end_s - m.chunks_s[0]) / (m.num_out - 1) for m in good if m.num_out > 1]
    gaps = [b - a for m in good for a, b in zip(m.chunks_s, m.chunks_s[1:], strict=False)]
    for name, values in (
        ("ttft", [m.chunks_s[0] for m in good]),
        ("tpot", tpots),
        ("itl", gaps),
        ("e2el", [m.end_s for m in good]),
    ):
        ordered = sorted(values) or [0.0]
        figures[f"mean_{name}_ms"] = 1000 * sum(ordered) / len(ordered)
        for share in (50, 99):
            at = min(len(ordered) - 1, int(len(ordered) * share / 100))
            figures[f"{'median' if share == 50 else 'p99'}_{name}_ms"] = 1000 * ordered[at]
    errors = sorted({m.error for m in done if m.error})
    return figures | ({"errors": errors} if errors else {})


def report(figures: dict[str, Any]) -> str:
    from octavo.launch.table import render

    rows = [[k, f"{v:,.2f}" if isinstance(v, float) else str(v)] for k, v in figures.items()]
    return render(rows, indent="")
