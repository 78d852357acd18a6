"""Op table, builder and checks: what fits is built, what does not says which op and which shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.errors import ConfigError
from octavo.program.builder import ProgramBuilder
from octavo.program.check import fill_attrs, verify
from octavo.program.dump import dump
from octavo.program.ops import OPS, table_markdown
from octavo.program.program import Attr, Op, Program, WeightRef
from octavo.wire.layout import KVGroup, KVLayout

LAYOUT = KVLayout(groups=(KVGroup((0, 1)),), block_size=16, kv_heads=2, head_dim=8, dtype="f32")


def new_builder() -> ProgramBuilder:
    return ProgramBuilder("tiny", LAYOUT, vocab_size=40)


def small_program() -> Program:
    b = new_builder()
    x = b.embed("embed", "embed", 16)
    y = b.linear("up", x, "up", (24, 16), bias=True)
    x = b.add("add", x, b.linear("down", b.act("act", y, "relu"), "down", (16, 24)))
    b.output("logits", b.logits("logits", b.gather_rows("gather", x), "embed"))
    return b.build()


def test_table_is_complete() -> None:
    for name, spec in OPS.items():
        assert name == spec.name
        assert spec.doc
        assert spec.shapes
        for output, source in spec.in_place:
            assert output < len(spec.outputs)
            assert source < len(spec.inputs)
    assert all(f"| `{name}` |" in table_markdown() for name in OPS)


def test_every_emitted_op_has_a_builder_method() -> None:
    for name, spec in OPS.items():
        assert spec.fused or callable(getattr(ProgramBuilder, name)), name


def test_buffers_have_rows_and_widths() -> None:
    program = small_program()
    logits = program.buffers[program.outputs["logits"]]
    assert (logits.rows, logits.width) == ("samples", 40)
    assert [(b.rows, b.width) for b in program.buffers[:3]] == [
        ("tokens", 16),
        ("tokens", 24),
        ("tokens", 24),
    ]


def test_dump_names_every_op() -> None:
    text = dump(small_program())
    for word in ("embed", "up.weight:24x16", "[samples, 40]", "fn=relu", "full attention"):
        assert word in text


def test_a_wrong_matrix_names_op_and_shapes() -> None:
    b = new_builder()
    x = b.embed("embed", "embed", 16)
    with pytest.raises(
        ConfigError, match=r"'layers\.0\.q' \(linear\): matrix is \[32, 20\] but the input is \[rows, 16\]"
    ):
        b.linear("layers.0.q", x, "q", (32, 20))


def test_two_widths_do_not_add() -> None:
    b = new_builder()
    x = b.embed("embed", "embed", 16)
    y = b.linear("up", x, "up", (24, 16))
    with pytest.raises(
        ConfigError, match=r"'sum' \(add\): input 0 is \[rows, 16\] but input 1 is \[rows, 24\]"
    ):
        b.add("sum", x, y)


def test_tokens_and_samples_do_not_mix() -> None:
    b = new_builder()
    x = b.embed("embed", "embed", 16)
    with pytest.raises(ConfigError, match=r"\[tokens, \.\.\] but gather is \[samples"):
        b.add("sum", x, b.gather_rows("gather", x))
    with pytest.raises(ConfigError, match=r"allowed is \[tokens"):
        b.gather_rows("again", b.gather_rows("gather", x))
    with pytest.raises(ConfigError, match=r"allowed is \[tokens"):
        b.attend("attend", b.gather_rows("gather", x), layer=0, heads=2, scale=1.0)


def test_attention_shapes() -> None:
    b = new_builder()
    x = b.embed("embed", "embed", 16)
    with pytest.raises(ConfigError, match="3 heads of 8"):
        b.attend("attend", x, layer=0, heads=3, scale=1.0)
    with pytest.raises(ConfigError, match="window 4 but the KV layout keeps all"):
        b.attend("attend", x, layer=0, heads=2, scale=1.0, window=4)
    rope: dict[str, Attr] = {"head_dim": 8, "rotary_dim": 8, "inv_freq": (1.0, 0.1)}
    op = Op("rope", "rope", (0, 0), (1, 2), (), fill_attrs("rope", "rope", rope))
    with pytest.raises(ConfigError, match="inv_freq has 2 entries but rotary_dim is 8"):
        verify(replace(small_program(), ops=(small_program().ops[0], op)))
    wide = b.linear("k", x, "k", (24, 16))
    with pytest.raises(ConfigError, match=r"but the KV layout holds 2 heads of 8"):
        b.kv_write("kv", wide, wide, layer=0)


def test_attributes_are_typed() -> None:
    assert fill_attrs("rms_norm", "n", {"eps": 1}) == {"eps": 1.0, "group": 0, "offset": 0.0}
    for given, problem in (
        ({}, "eps is missing"),
        ({"eps": "small"}, "allowed is a value of type float"),
        ({"eps": 1e-6, "axis": 1}, "has no attribute axis"),
        ({"eps": 1e-6, "group": True}, "allowed is a value of type int"),
    ):
        with pytest.raises(ConfigError, match=problem):
            fill_attrs("rms_norm", "n", given)
    with pytest.raises(ConfigError, match="allowed: silu, gelu"):
        fill_attrs("act", "a", {"fn": "swoosh"})


def test_buffers_of_another_program_are_refused() -> None:
    stranger = new_builder().embed("embed", "embed", 16)
    with pytest.raises(ConfigError, match="belongs to another program"):
        new_builder().act("act", stranger, "relu")
    with pytest.raises(ConfigError, match="output 'x': buffer 'embed' belongs to another program"):
        new_builder().output("x", stranger)


def test_verify_finds_broken_programs() -> None:
    program = small_program()
    with pytest.raises(ConfigError, match="which no earlier op wrote"):
        verify(replace(program, ops=program.ops[1:]))
    with pytest.raises(ConfigError, match="is written by no op"):
        verify(replace(program, ops=program.ops[:-1]))
    up = program.ops[1]
    wrong = replace(up, outputs=up.inputs, weights=(WeightRef("w", (16, 16), "matrix"),))
    with pytest.raises(ConfigError, match="lies over input"):
        verify(replace(program, ops=(program.ops[0], wrong), outputs={}))
    wrong = replace(up, weights=(replace(up.weights[0], role="vector"),))
    with pytest.raises(ConfigError, match="must be a matrix"):
        verify(replace(program, ops=(program.ops[0], wrong), outputs={}))
    with pytest.raises(ConfigError, match="no such op"):
        verify(replace(program, ops=(replace(program.ops[0], kind="embedding"),)))


def test_a_weight_of_no_rows_is_refused() -> None:
    b = new_builder()
    with pytest.raises(ConfigError, match="every size must be positive"):
        b.linear("q", b.embed("embed", "embed", 16), "q", (0, 16))
