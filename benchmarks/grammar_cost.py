"""How much longer a step is when every row follows a grammar of its own.

    PYTHONPATH=src:. python -m benchmarks.grammar_cost --batch 16

Rounds of decoding alternate in one process: free rows, then rows with as many distinct schemas, of long
answers. Only steps in which all rows draw are counted. Prints the median step of each, their ratio by round
(median and quartiles), the share of the constrained rows that needed their mask, the microseconds that a row takes
for its grammar, and the CPU time of a mask alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.wire.messages import StepPlan, StepResult


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="(default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="(default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=8, help="pairs (default: %(default)s)")
    given = parser.parse_args(argv)
    with LLM(given.model, max_model_len=1024) as llm:
        print(json.dumps(measure(llm, given.batch, given.tokens, given.rounds)))
    return 0


def schema_of(row: int) -> dict[str, Any]:
    """Distinct in names and bounds, and longer than any round: the answer does not end in it."""
    item = {
        "type": "object",
        "properties": {
            f"name_{row}": {"type": "string", "maxLength": 20 + row},
            "age": {"type": "integer", "minimum": 0, "maximum": 100 + row},
            "kind": {"enum": [f"red {row}", "green", "blue"]},
            "tags": {
                "type": "array",
                "items": {"type": "string", "pattern": "^[a-z ]{3,12}$"},
                "maxItems": 4,
            },
            "is_new": {"type": "boolean"},
            "size": {"type": "number"},
        },
        "required": [f"name_{row}", "age", "kind", "tags", "is_new", "size"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": item, "minItems": 40}


class _Clock:
    """Around the worker's steps: seconds of those in which all rows draw."""

    def __init__(self, execute: Callable[..., StepResult], rows: int) -> None:
        self._execute, self._rows = execute, rows
        self.steps: list[float] = []

    def __call__(self, plan: StepPlan, *args: Any) -> StepResult:
        result = self._execute(plan, *args)
        if len(plan.slots) == self._rows and plan.counts == [1] * self._rows:
            self.steps.append(result.elapsed_s)
        return result


def measure(llm: LLM, batch: int, tokens: int, rounds: int) -> dict[str, Any]:
    runner = llm._built.worker.runner
    clock = _Clock(runner.execute, batch)
    runner.execute = clock  # type: ignore[method-assign]
    ask = [[{"role": "user", "content": f"List people and things, number {i}."}] for i in range(batch)]
    free = [SamplingParams(temperature=1, seed=i, max_tokens=tokens, ignore_eos=True) for i in range(batch)]
    bound = [
        SamplingParams(
            temperature=1,
            seed=i,
            max_tokens=tokens,
            structured_outputs=StructuredOutputsParams(json=schema_of(i)),
        )
        for i in range(batch)
    ]
    medians: dict[str, list[float]] = {"free": [], "bound": []}
    masks = rows = seconds = 0.0
    for number in range(rounds + 1):  # the first warms both
        for name, params in (("free", free), ("bound", bound)):
            clock.steps.clear()
            before = (runner.grammars.num_masks, runner.grammars.seconds)
            llm.chat(ask, params, use_tqdm=False)
            if number:
                medians[name].append(statistics.median(clock.steps))
                masks += runner.grammars.num_masks - before[0]
                rows += batch * len(clock.steps) if name == "bound" else 0
                seconds += runner.grammars.seconds - before[1]
    ratios = sorted(b / f for b, f in zip(medians["bound"], medians["free"], strict=True))
    quarter = max(1, len(ratios) // 4)
    return {
        "batch": batch,
        "free_step_ms": round(1e3 * statistics.median(medians["free"]), 3),
        "bound_step_ms": round(1e3 * statistics.median(medians["bound"]), 3),
        "ratio": round(statistics.median(ratios), 4),
        "ratio_quartiles": [round(ratios[quarter - 1], 4), round(ratios[-quarter], 4)],
        "masks_a_row": round(masks / max(rows, 1), 3),
        "row_us": round(1e6 * seconds / max(rows, 1), 1),
        "mask_cpu_us": round(mask_cpu_us(llm, bound, tokens), 1),
    }


def mask_cpu_us(llm: LLM, params: list[SamplingParams], tokens: int) -> float:
    """CPU time of one mask by itself, without threads and without a step: forced answers are followed again."""
    import numpy as np

    answers = llm.chat([[{"role": "user", "content": "List."}]] * len(params), params, use_tqdm=False)
    vocabulary = llm._built.grammars.vocabulary()
    row = np.zeros(vocabulary.num_words, np.uint32)
    used, count = 0.0, 0
    for one, answer in zip(params, answers, strict=True):
        spec = llm._constrained(one).structured
        assert spec is not None
        matcher = llm._built.grammars.matcher(spec)
        for token in answer.outputs[0].token_ids[:tokens]:
            began = time.thread_time()
            matcher.fill(row)
            matcher.advance([token])
            used += time.thread_time() - began
            count += 1
    return 1e6 * used / max(count, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
