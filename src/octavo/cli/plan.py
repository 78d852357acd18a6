"""`octavo plan MODEL`: reads headers only and says what fits on this machine, byte by byte."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from octavo.config.asked import ENGINE_TOPICS
from octavo.config.load import Parser, add_options, parse

if TYPE_CHECKING:
    from octavo.config.asked import Asked
    from octavo.launch.plan import Planned


def main(argv: list[str]) -> int:
    parser = Parser(
        prog="octavo plan",
        usage="octavo plan [MODEL] [OPTIONS]",
        description="What would fit on this machine, from the model's headers: nothing is loaded.",
        allow_abbrev=False,
    )
    parser.add_argument("model_tag", metavar="MODEL", nargs="?", help="the same as --model")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_options(parser, ENGINE_TOPICS)
    asked, given = parse(parser, argv, ENGINE_TOPICS)
    from octavo.launch.plan import make_plan

    planned = make_plan(asked)
    print(json.dumps(figures(planned), indent=2) if given.json else report(planned, asked))
    return 0


def figures(planned: Planned) -> dict[str, Any]:
    """The same facts for programs: all bytes, tokens and counts."""
    resolved, model = planned.resolved, planned.model
    return {
        "model": model.name,
        "architecture": model.architecture,
        "parameters": model.parameters,
        "memory_bytes": resolved.budget,
        "weight_bytes": model.weight_bytes,
        "kv_bytes_per_block": resolved.kv_bytes // resolved.engine.cache.num_blocks,
        "block_size": resolved.engine.cache.block_size,
        "num_blocks": resolved.engine.cache.num_blocks,
        "max_model_len": resolved.engine.scheduler.max_model_len,
        "largest_max_model_len": resolved.largest_len,
        "concurrency_at_full_context": round(resolved.max_concurrency, 2),
    }


def report(planned: Planned, asked: Asked) -> str:
    """The tables that a person reads."""
    from octavo.config.budget import block_bytes, fmt
    from octavo.launch.plan import choices, tensor_rows
    from octavo.launch.table import render
    from octavo.util.lines import one_line

    resolved, model = planned.resolved, planned.model
    budget = dict(resolved.budget)
    total = budget.pop("available")
    memory = [[name, fmt(size), f"{size:,}"] for name, size in budget.items()]
    memory.append(["= available", fmt(total), f"{total:,}"])
    formats = [[name, fmt(size), f"{size:,}"] for name, size in model.weight_bytes.items()]
    cache = resolved.engine.cache
    per_token = block_bytes(model, cache.block_size, cache.dtype) * len(model.kv_groups) / cache.block_size
    fits = [
        ["context of one request", f"{resolved.engine.scheduler.max_model_len:,} tokens"],
        ["largest context possible", f"{resolved.largest_len:,} tokens"],
        ["requests of that full context at once", f"{resolved.max_concurrency:,.1f}"],
        ["KV cache of one token", fmt(per_token)],
        ["KV cache", f"{cache.num_blocks:,} blocks of {cache.block_size} tokens"],
    ]
    parts = [
        one_line(f"{model.name}: {model.architecture}, {model.parameters:,} parameters"),
        "In the file (type, tensors, parameters, bytes)\n" + render(tensor_rows(planned.source)),
        "Packed weights by format\n" + render(formats),
        "Memory\n" + render(memory),
        "What fits\n" + render(fits),
        "Choices\n" + render(choices(planned, asked)),
    ]
    return "\n\n".join(parts)
