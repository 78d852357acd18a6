"""How many answers to random JSON Schemas validate: SmolLM2 at temperature 1.

    PYTHONPATH=src:. python -m benchmarks.structured --schemas 1000

Every schema is either refused, naming a keyword, or answered; an answer that ended by itself must validate with
jsonschema and hold no repeated key; none may run on in white space. Prints the counts as JSON; exit code 1 when
any answer is wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from typing import Any

import jsonschema

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.errors import InvalidRequest
from tests.fakes.schemas import MAKERS, Schema, nested

MAX_SPACES = 33  # in a row, outside of strings; compact answers have none


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="(default: %(default)s)")
    parser.add_argument("--schemas", type=int, default=1_000, help="(default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=160, help="of an answer (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=50, help="answers at once (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    counts: Counter[str] = Counter()
    wrong: list[Any] = []
    with LLM(given.model, max_model_len=1024) as llm:
        rng = random.Random(given.seed)
        schemas = [draw(rng) for _ in range(given.schemas)]
        for first in range(0, len(schemas), given.batch):
            batch(llm, schemas[first : first + given.batch], first, given.max_tokens, counts, wrong)
    print(json.dumps({"schemas": given.schemas, **counts, "wrong": wrong}, ensure_ascii=False))
    return 1 if wrong else 0


def draw(rng: random.Random) -> Schema:
    if rng.random() < 0.5:
        return nested(rng, 2)
    return MAKERS[rng.choice(sorted(MAKERS))](rng)


def batch(
    llm: LLM, schemas: list[Schema], first: int, max_tokens: int, counts: Counter[str], wrong: list[Any]
) -> None:
    taken, params = [], []
    for i, schema in enumerate(schemas, first):
        one = SamplingParams(
            temperature=1.0,
            seed=i,
            max_tokens=max_tokens,
            structured_outputs=StructuredOutputsParams(json=schema),
        )
        try:
            params.append(llm._constrained(one))
        except InvalidRequest as error:
            counts["refused"] += 1
            if not (error.param or "").startswith("/"):
                wrong.append([schema, f"refused without a keyword: {error}"])
        else:
            taken.append(schema)
    ask = [{"role": "user", "content": "Answer in JSON."}]
    outputs = llm.chat([ask] * len(taken), params, use_tqdm=False)
    for schema, output in zip(taken, outputs, strict=True):
        text, finish = output.outputs[0].text, str(output.outputs[0].finish_reason)
        counts[finish] += 1
        fault = fault_of(schema, text) if finish == "stop" else runs_on(text)
        if fault:
            wrong.append([schema, text, fault])


def fault_of(schema: Schema, text: str) -> str | None:
    try:
        document = json.loads(text, object_pairs_hook=_pairs)
    except ValueError as error:
        return str(error)
    for error in jsonschema.Draft202012Validator(schema).iter_errors(document):
        if error.validator != "multipleOf":  # binary fractions cannot decide that
            return str(error.message)
    return None


def runs_on(text: str) -> str | None:
    """An answer that was cut must not have been cut in white space."""
    return "white space" if len(text) - len(text.rstrip()) > MAX_SPACES else None


def _pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(items)) != len(items):
        raise ValueError("a key is repeated")
    return dict(items)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
