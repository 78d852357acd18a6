"""From what one request saw to the figures of a case. Standard library only (see cases).

Definitions, the same for every engine: time to first token runs from sending to the first chunk with
text and is no gap; a gap lies between two chunks of one request; tokens are counted by the server's
usage, never from chunks or text.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# The figure that a case is compared by, and whether more is better.
HEADLINES = {
    "start": ("start_s", False),
    "c1": ("stream_tok_s", True),
    "c2": ("out_tok_s", True),
    "c3": ("out_tok_s", True),
    "c4": ("total_tok_s", True),
    "c5": ("itl_p99_ms", False),
    "c6": ("out_tok_s", True),
    "try": ("out_tok_s", True),
}


@dataclass
class Seen:
    """One request; times in seconds of one clock."""

    sent_s: float
    chunks_s: list[float] = field(default_factory=list)  # arrival of each chunk of text
    num_prompt: int = 0
    num_out: int = 0
    error: str = ""

    @property
    def ttft_s(self) -> float:
        return self.chunks_s[0] - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for a, b in zip(self.chunks_s, self.chunks_s[1:], strict=False)]

    @property
    def tpot_s(self) -> float | None:
        """Seconds for a token after the first; None when there was no second."""
        took = self.chunks_s[-1] - self.chunks_s[0] if self.chunks_s else 0.0
        return took / (self.num_out - 1) if self.num_out > 1 and took > 0 else None


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which about `share` of them lie; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def of_case(name: str, label: str, seen: Sequence[Seen], wall_s: float) -> dict[str, Any]:
    """The figures of a case: one flat mapping."""
    good = [s for s in seen if not s.error and s.chunks_s]
    errors = [s.error or "no chunk of text" for s in seen if s.error or not s.chunks_s]
    gaps = [gap for s in good for gap in s.gaps_s]
    ttfts = [s.ttft_s for s in good]
    streams = [1 / tpot for s in good if (tpot := s.tpot_s)]
    num_out, num_prompt = sum(s.num_out for s in good), sum(s.num_prompt for s in good)
    out: dict[str, Any] = {
        "label": label,
        "case": name,
        "n": len(seen),
        "errors": len(errors),
        "wall_s": round(wall_s, 3),
        "prompt_tokens": num_prompt,
        "output_tokens": num_out,
        "out_tok_s": round(num_out / wall_s, 1),
        "total_tok_s": round((num_out + num_prompt) / wall_s, 1),
        "ttft_p50_ms": round(1e3 * percentile(ttfts, 0.5), 1),
        "ttft_p99_ms": round(1e3 * percentile(ttfts, 0.99), 1),
        "itl_p50_ms": round(1e3 * percentile(gaps, 0.5), 2),
        "itl_p99_ms": round(1e3 * percentile(gaps, 0.99), 2),
        "stream_tok_s": round(statistics.median(streams), 1) if streams else 0.0,
    }
    return out | ({"first_error": errors[0]} if errors else {})
