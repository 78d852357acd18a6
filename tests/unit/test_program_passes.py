"""Passes on programs: what fuses, what must not, and that no two live buffers share memory."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.random_program import random_program

from octavo.errors import ConfigError
from octavo.models.registry import build_program, weights_of
from octavo.program.passes import arena_row_bytes, fuse, gather_early, plan_memory, row_bytes, tap
from octavo.program.passes.plan_memory import live_ranges
from octavo.program.program import Buffer, Program

LLAMA = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
GEMMA = {
    **LLAMA,
    "model_type": "gemma3_text",
    "head_dim": 8,
    "sliding_window": 16,
    "sliding_window_pattern": 3,
}


def model(config: dict[str, object], **changes: object) -> Program:
    return build_program({**config, **changes}, block_size=16, kv_dtype="bf16")


def kinds(program: Program) -> Counter[str]:
    return Counter(op.kind for op in program.ops)


# ---- fuse ---------------------------------------------------------------------------------------


def test_llama_layer_becomes_eight_ops() -> None:
    fused = fuse(model(LLAMA))
    layer = [op for op in fused.ops if op.name.startswith("layers.1.")]
    assert [op.kind for op in layer] == [
        "rms_norm",
        "linear",
        "rope",
        "kv_write",
        "attend",
        "linear",
        "rms_norm",
        "linear_gated",
        "linear",
    ]
    qkv, out = layer[1], layer[5]
    assert qkv.name == "layers.1.attn.q+k+v"
    assert qkv.weights[0].shape == (64, 32)
    assert qkv.weights[0].part_rows == (32, 16, 16)
    views = [fused.buffers[b] for b in qkv.outputs]
    assert [(v.offset, v.width) for v in views] == [(0, 32), (32, 16), (48, 16)]
    assert len({v.parent for v in views}) == 1
    assert out.attrs["residual"]
    assert out.outputs[0] == out.inputs[1] == 0  # the residual stream is one buffer
    assert layer[2].inputs == layer[2].outputs  # rotated in place


def test_gate_and_up_are_interleaved() -> None:
    gated = [op for op in fuse(model(LLAMA, mlp_bias=True)).ops if op.kind == "linear_gated"]
    assert len(gated) == 3
    assert gated[0].weights[0].interleave
    assert gated[0].weights[0].parts == (
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
    )
    assert gated[0].weights[1].shape == (96,)


def test_gemma_adds_and_norms_together() -> None:
    counts = kinds(fuse(model(GEMMA)))
    assert (counts["add"], counts["add_rms_norm"]) == (1, 5)  # gather_rows follows the last add
    assert kinds(fuse(gather_early(model(GEMMA))))["add_rms_norm"] == 6


def test_fusing_keeps_the_weights() -> None:
    for config in (LLAMA, GEMMA):
        program = model(config)
        assert weights_of(fuse(gather_early(program))) == weights_of(program)


def test_fusing_twice_changes_nothing() -> None:
    once = fuse(model(LLAMA))
    assert fuse(once) is once


def test_weights_that_cannot_be_stacked_stay_apart() -> None:
    fused = fuse(model(LLAMA), can_stack=lambda names: not any("v_proj" in name for name in names))
    assert kinds(fused)["linear_gated"] == 3
    assert kinds(fused)["linear"] == 3 * (3 + 1 + 1)


def test_an_output_is_not_written_over() -> None:
    """A tapped residual stream stays readable: the next layer may not add in place."""
    program = fuse(tap(model(LLAMA), ["layers.0"]))
    kept = program.outputs["layers.0"]
    writers = [op.name for op in program.ops if kept in op.outputs]
    assert writers == ["layers.0.mlp.down"]


def test_tap_after_fuse_copies() -> None:
    program = tap(fuse(model(LLAMA)), ["layers.0", "layers.2"])
    assert kinds(program)["scale"] == 1  # layer 2 is the last writer of the stream
    assert program.buffers[program.outputs["layers.0"]].name == "tap.layers.0"


def test_tap_of_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"cannot tap 'layers\.7'.*layers\.2"):
        tap(model(LLAMA), ["layers.7"])


def test_gather_early_moves_the_last_feed_forward_to_samples() -> None:
    program = gather_early(model(LLAMA))
    last = [op for op in program.ops if op.name.startswith("layers.2.mlp")]
    assert all(program.buffers[b].rows == "samples" for op in last for b in op.outputs)
    assert kinds(program)["gather_rows"] == 2
    assert all(program.buffers[b].rows == "tokens" for op in program.ops[:20] for b in op.outputs)


def test_gather_early_stops_at_an_output() -> None:
    program = gather_early(tap(model(LLAMA), ["layers.2"]))
    assert program.buffers[program.outputs["layers.2"]].rows == "tokens"
    assert kinds(program)["gather_rows"] == 1


# ---- plan_memory --------------------------------------------------------------------------------


def simulate(program: Program) -> None:
    """Runs the program on an arena of cells that hold (buffer, writing op), as memory would.

    Every read must find what the last op that wrote that buffer left there.
    """
    assert program.arena is not None
    cells: dict[tuple[str, int], tuple[int, int]] = {}
    state: dict[tuple[int, int], tuple[int, int]] = {}  # (root, column) -> what should lie there

    def columns(b: Buffer) -> list[tuple[tuple[str, int], tuple[int, int]]]:
        assert program.arena is not None
        root = b.id if b.parent is None else b.parent
        start = program.arena[root] + 4 * b.offset
        return [((b.rows, start + 4 * c), (root, b.offset + c)) for c in range(b.width)]

    for index, op in enumerate(program.ops):
        for buffer in op.inputs:
            for place, column in columns(program.buffers[buffer]):
                assert cells[place] == state[column], f"op {op.name} reads what op {cells[place]} left"
        touched: set[tuple[str, int]] = set()
        for buffer in op.outputs:
            for place, column in columns(program.buffers[buffer]):
                assert place not in touched, f"outputs of {op.name} overlap"
                touched.add(place)
                cells[place] = state[column] = (column[0], index)
        for buffer in op.inputs:  # an output may lie over an input only as the same buffer
            for place, column in columns(program.buffers[buffer]):
                assert place not in touched or cells[place][0] == column[0]
    for buffer in program.outputs.values():
        for place, column in columns(program.buffers[buffer]):
            assert cells[place] == state[column]


@pytest.mark.parametrize("config", [LLAMA, GEMMA])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_models_run_in_their_arena(config: dict[str, object], level: int) -> None:
    program = model(config)
    for rewrite in (fuse, gather_early)[:level]:
        program = rewrite(program)
    planned = plan_memory(program)
    simulate(planned)
    sizes = arena_row_bytes(planned)
    apart = sum(row_bytes(b) for b in planned.buffers if b.parent is None and b.rows == "tokens")
    assert sizes["tokens"] < apart / 3


def test_arena_of_a_model_does_not_grow_with_layers() -> None:
    sizes = {n: arena_row_bytes(plan_memory(fuse(model(LLAMA, num_hidden_layers=n)))) for n in (2, 9)}
    assert sizes[2] == sizes[9]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**9), length=st.integers(1, 40))
def test_random_programs_keep_live_buffers_apart(seed: int, length: int) -> None:
    program = random_program(seed, length)
    for rewritten in (program, fuse(program), fuse(gather_early(program))):
        planned = plan_memory(rewritten)
        simulate(planned)
        assert planned.arena is not None
        assert all(offset % 64 == 0 for offset in planned.arena)
        lives = live_ranges(planned)
        for a in lives:
            for b in lives:
                together = lives[a][0] <= lives[b][1] and lives[b][0] <= lives[a][1]
                same_kind = planned.buffers[a].rows == planned.buffers[b].rows
                if a < b and together and same_kind:
                    low, high = sorted((a, b), key=lambda n: planned.arena[n] if planned.arena else 0)
                    assert planned.arena[low] + row_bytes(planned.buffers[low]) <= planned.arena[high]


def test_a_program_without_plan_has_no_arena() -> None:
    with pytest.raises(ValueError, match="run plan_memory first"):
        arena_row_bytes(model(LLAMA))
