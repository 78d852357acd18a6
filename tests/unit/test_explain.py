"""What `octavo explain` shows: layers that are alike once, and bytes that add up to the file."""

from __future__ import annotations

import os

import pytest

from octavo.cli import main as cli
from octavo.models.registry import build_program
from octavo.program.dump import dump
from octavo.program.passes import fuse, gather_early, plan_memory
from octavo.program.program import Program

GEMMA = {
    "model_type": "gemma3_text",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 9,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "sliding_window": 16,
    "sliding_window_pattern": 3,
}


@pytest.fixture
def program() -> Program:
    made = build_program(GEMMA, block_size=16, kv_dtype="bf16")
    return plan_memory(fuse(gather_early(made)))


def test_layers_that_are_alike_are_shown_once(program: Program) -> None:
    folded = dump(program, fold=True).splitlines()
    notes = [line.strip() for line in folded if ": this x " in line]
    assert notes == ["layers 1, 3..4, 6..7: this x 5", "layers 2, 5: this x 2"]
    whole = dump(program).splitlines()
    assert [line for line in folded if line.strip() not in notes] == [
        line for line in whole if line in folded
    ]
    per_layer = [sum(f" layers.{n}." in line for line in folded) for n in range(9)]
    assert [n for n in range(9) if per_layer[n] > 2] == [0, 1, 2, 8]  # a line names a layer and the next


def test_the_bytes_of_the_table_are_those_of_the_file(
    smollm2_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", smollm2_path, "--no-program"]) == 0
    shown = capsys.readouterr().out
    assert f"= all        272      {os.path.getsize(smollm2_path):,}" in shown
    assert shown.count("30,081,024  w8") == 1
    assert "random at start" in shown


def test_plan_says_the_same_twice(smollm2_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    seeds = []
    for _ in range(2):
        assert cli.main(["plan", smollm2_path]) == 0
        seeds.append(next(line for line in capsys.readouterr().out.splitlines() if "seed  " in line))
    assert seeds[0] == seeds[1]
    assert cli.main(["plan", smollm2_path, "--seed", "7"]) == 0
    assert "random at start" not in capsys.readouterr().out
