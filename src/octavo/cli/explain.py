"""`octavo explain MODEL`: the plan, and the program that would run, without loading weights."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from octavo.config.asked import ENGINE_TOPICS
from octavo.config.facts import WeightRow
from octavo.config.load import Parser, add_options, parse
from octavo.weights.source import ModelSource

if TYPE_CHECKING:
    from octavo.launch.plan import Planned
    from octavo.program.program import Program


def main(argv: list[str]) -> int:
    parser = Parser(
        prog="octavo explain",
        usage="octavo explain [MODEL] [OPTIONS]",
        description="What would run and why: the table of choices, how weights are packed, and the program after "
        "its passes (-O0 shows it before them).",
        allow_abbrev=False,
    )
    parser.add_argument("model_tag", metavar="MODEL", nargs="?", help="the same as --model")
    parser.add_argument("--no-program", action="store_true", help="only the tables")
    parser.add_argument("--all", action="store_true", help="every layer, also those that repeat another one")
    add_options(parser, ENGINE_TOPICS)
    asked, given = parse(parser, argv, ENGINE_TOPICS)
    from octavo.launch.build import build_program
    from octavo.launch.plan import choices, make_plan
    from octavo.launch.table import render
    from octavo.program.dump import dump

    planned = make_plan(asked)
    plan = planned.resolved.engine
    program = build_program(planned.source, plan)
    print(render(choices(planned, asked) + pack_row(program, planned), indent=""))
    print("\nweights: in the file -> packed")
    print(render(weight_table(planned.model.weight_rows[plan.executor.weights], file_bytes(planned.source))))
    if not given.no_program:
        print("\n" + dump(program, fold=not given.all))
    return 0


def pack_row(program: Program, planned: Planned) -> list[list[str]]:
    """What a start would find in the pack cache now; no row where nothing is packed."""
    plan = planned.resolved.engine
    if plan.executor.name != "native":
        return []
    from octavo.executors.native import pack_cache
    from octavo.launch.build import executor_options

    return [pack_cache(program, planned.source, executor_options(plan)).look()]


def file_bytes(source: ModelSource) -> int:
    return sum(os.path.getsize(file) for file in {info.file for info in source.tensors.values()})


def weight_table(rows: list[WeightRow], size: int) -> list[list[str]]:
    """With a total: the bytes in the file add up to its `size`."""
    head = ["in the file", "tensors", "bytes", "packed as", "bytes", "loss"]
    body = [
        [r.file_type, str(r.tensors or "-"), f"{r.file_bytes:,}", r.packed, f"{r.packed_bytes:,}", r.loss]
        for r in rows
    ]
    tensors, in_file = sum(r.tensors for r in rows), sum(r.file_bytes for r in rows)
    packed = sum(r.packed_bytes for r in rows)
    rest = ["-", "-", f"{size - in_file:,}", "-", "-", "header, tokenizer, what this model does not use"]
    return [head, *body, rest, ["= all", str(tensors), f"{size:,}", "", f"{packed:,}", ""]]
