"""`octavo explain MODEL`: the plan, and the program that would run, without loading weights."""

from __future__ import annotations

from octavo.config.asked import ENGINE_TOPICS
from octavo.config.facts import WeightRow
from octavo.config.load import Parser, add_options, parse


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
    add_options(parser, ENGINE_TOPICS)
    asked, given = parse(parser, argv, ENGINE_TOPICS)
    from octavo.launch.build import build_program
    from octavo.launch.plan import make_plan
    from octavo.launch.table import render
    from octavo.program.dump import dump

    planned = make_plan(asked)
    plan = planned.resolved.engine
    print(render(plan.table, indent=""))
    print("\nweights: in the file -> packed")
    print(render(weight_table(planned.model.weight_rows[plan.executor.weights])))
    if not given.no_program:
        print("\n" + dump(build_program(planned.source, plan)))
    return 0


def weight_table(rows: list[WeightRow]) -> list[list[str]]:
    head = ["in the file", "tensors", "bytes", "packed as", "bytes", "loss"]
    return [
        head,
        *(
            [r.file_type, str(r.tensors), f"{r.file_bytes:,}", r.packed, f"{r.packed_bytes:,}", r.loss]
            for r in rows
        ),
    ]
