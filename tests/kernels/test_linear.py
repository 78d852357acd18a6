"""Linear kernels: every format and instruction set against float64, and law 1 by equality.

The oracle multiplies the packed weights with the activations, both as the kernels see them (activations rounded to
bf16, or int8 per group; weights exact, or w8 rounded to bf16 on tiles), so that only the order of summation is left
to differ.
"""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest
from tests.kernels.test_dequant import TYPES, random_blocks

from octavo import kernels
from octavo.errors import KernelFault, WeightError
from octavo.kernels import _native

F32 = npt.NDArray[np.float32]
ISAS = _native.kernel_variants()
SIZES = [1, 2, 3, 5, 8, 16, 33, 64, 130]
MAX_ROWS = 130


def matrix(rows: int, cols: int, seed: int, scale: float = 0.05) -> F32:
    return (np.random.default_rng(seed).standard_normal((rows, cols)) * scale).astype(np.float32)


def part(values: F32) -> tuple[str, npt.NDArray[np.uint8], int, int, None]:
    return ("F32", values.view(np.uint8).ravel(), values.shape[0], values.shape[1], None)


class Bench:
    """A program with one linear, whose buffers lie side by side in the arena."""

    def __init__(
        self,
        weight: kernels.Weight,
        isa: str,
        *,
        num_threads: int = 1,
        width: int | None = None,
        bias: F32 | None = None,
        residual: bool | str = False,
        gate: str = "",
    ) -> None:
        width = width or weight.rows
        y_at = MAX_ROWS * weight.cols * 4
        r_at = y_at + MAX_ROWS * width * 4
        self.program = kernels.Program(
            MAX_ROWS, 4, 1, 0, 16, 64, num_threads, isa, r_at + MAX_ROWS * width * 4
        )
        self.x = self.program.view(0, weight.cols * 4, weight.cols)
        self.y = self.program.view(y_at, width * 4, width)
        self.residual = self.y if residual == "in place" else self.program.view(r_at, width * 4, width)
        self.program.linear("linear", self.x, self.y, weight, bias, self.residual if residual else None, gate)

    def run(self, x: F32, residual: F32 | None = None) -> F32:
        rows = len(x)
        self.program.array(self.x, rows)[:] = x
        if residual is not None:
            self.program.array(self.residual, rows)[:] = residual
        self.program.io("row_starts")[:2] = [0, rows]
        self.program.run(rows, 1, 0)
        return self.program.array(self.y, rows).copy()


def bf16(values: F32) -> F32:
    """Rounded to nearest even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & ~np.uint32(0xFFFF)).view(np.float32)


def opened(weight: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """w8 as tiles take it: the group's scale raised by 2/3 of 2^-8 and cut to 15 bits, its products cut off to bf16."""
    rows, cols = weight.shape
    groups = np.zeros((rows, -(-cols // 32), 32))
    groups.reshape(rows, -1)[:, :cols] = weight
    most = np.abs(groups).max(-1, keepdims=True)
    # The largest weight of a group is 127 or 128 times its scale, an f16.
    scales = np.where(most / 127 == (most / 127).astype(np.float16), most / 127, most / 128)
    numbers = np.divide(groups, scales, out=np.zeros_like(groups), where=scales > 0)
    assert (numbers == np.rint(numbers)).all()
    raised = scales.astype(np.float32) * np.float32(1 + 2 / 768)
    raised = (raised.view(np.uint32) & ~np.uint32(0x1FF)).view(np.float32)
    products = (raised * numbers).astype(np.float32)
    cut = (products.view(np.uint32) & ~np.uint32(0xFFFF)).view(np.float32)
    return cut.astype(np.float64).reshape(rows, -1)[:, :cols]


def oracle(
    weight: kernels.Weight, x: F32, isa: str
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The product in float64, and the size of what was summed (errors are relative to it)."""
    seen, dense = _native.operand_values(x, weight.format, isa), weight.unpack()
    if isa == "avx512_amx" and weight.format == "w8":
        dense = opened(dense)
    return seen @ dense.T, np.abs(seen) @ np.abs(dense).T


@pytest.mark.parametrize("shape", [(32, 32), (70, 100), (33, 37), (1, 1), (96, 608)], ids=str)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", kernels.FORMATS)
def test_products_are_right_and_independent_of_the_batch(fmt: str, isa: str, shape: tuple[int, int]) -> None:
    rows, cols = shape
    weight = kernels.pack([part(matrix(rows, cols, 1))], fmt)
    x = matrix(MAX_ROWS, cols, 2, 1.0)
    x[7] *= 100
    x[9] = 0
    expected, size = oracle(weight, x, isa)
    full = Bench(weight, isa).run(x)
    assert (np.abs(full - expected) <= 6e-7 * size + 1e-30).all()
    for num_threads in (1, 2, 3):
        bench = Bench(weight, isa, num_threads=num_threads)
        for m in SIZES:
            first = (MAX_ROWS - m) // 2
            np.testing.assert_array_equal(bench.run(x[first : first + m]), full[first : first + m])


@pytest.mark.parametrize("isa", ISAS)
def test_integer_products_never_saturate(isa: str) -> None:
    """Extreme bytes: -128 against +-127, and nibbles of 15, in every lane and pair."""
    cols = 64
    blocks = np.zeros((33 * 2, 34), np.uint8)
    blocks[:, :2] = np.float16(1.0).reshape(1).view(np.uint8)
    blocks[:, 2:] = np.where(np.arange(66)[:, None] % 2, 128, 127)  # -128 and 127
    x = np.full((3, cols), 127, np.float32)
    x[1] = -127
    x[2, ::2] = -127
    weight = kernels.pack([("Q8_0", blocks.ravel(), 33, cols, None)])
    expected, _ = oracle(weight, x, isa)
    np.testing.assert_array_equal(Bench(weight, isa).run(x), expected)

    q4 = np.full((33 * 2, 20), 255, np.uint8)
    q4[:, :2] = np.float16(1.0).reshape(1).view(np.uint8)
    q4[:, 2:4] = 0
    weight = kernels.pack([("Q4_1", q4.ravel(), 33, cols, None)])
    expected, _ = oracle(weight, x, isa)
    np.testing.assert_array_equal(Bench(weight, isa).run(x), expected)


def test_int8_operands_agree_between_instruction_sets_with_fused_multiply_add() -> None:
    """Integers are exact and the float operations the same: not a law, but a strong check. Tiles open w8 to bf16."""
    x = matrix(50, 96, 3, 1.0)
    for fmt in ("w8", "w4"):
        weight = kernels.pack([part(matrix(40, 96, 4))], fmt)
        others = ("generic", "avx512_amx") if fmt == "w8" else ("generic",)
        results = [Bench(weight, isa).run(x) for isa in ISAS if isa not in others]
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])


def test_int8_operand_is_the_documented_one() -> None:
    x = matrix(4, 70, 5, 3.0)
    x[2, :32] = 0
    x[3, 40] = 1000
    seen = _native.operand_values(x, "w8", "generic")
    for g in range(3):
        group = x[:, 32 * g : 32 * g + 32]
        scale = (np.abs(group).max(1, keepdims=True) / np.float32(127)).astype(np.float32)
        scale = (scale.view(np.uint32) & ~np.uint32(3)).view(np.float32)
        inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
        expected = np.rint(group * inverse).astype(np.float64) * scale
        np.testing.assert_array_equal(seen[:, 32 * g : 32 * g + 32], expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", kernels.FORMATS)
def test_bias_and_residual(fmt: str, isa: str) -> None:
    weight = kernels.pack([part(matrix(70, 64, 6))], fmt)
    bias, residual, x = matrix(1, 70, 7)[0], matrix(33, 70, 8), matrix(33, 64, 9, 1.0)
    plain = Bench(weight, isa).run(x)
    np.testing.assert_array_equal(Bench(weight, isa, bias=bias).run(x), plain + bias)
    expected = plain + bias + residual
    for where in (True, "in place"):
        bench = Bench(weight, isa, bias=bias, residual=where, num_threads=2)
        np.testing.assert_array_equal(bench.run(x, residual), expected)


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", kernels.FORMATS)
def test_gates(fmt: str, isa: str, gate: str) -> None:
    half = 53
    parts = [part(matrix(half, 64, 10, 0.4)), part(matrix(half, 64, 11, 0.4))]
    weight = kernels.pack(parts, fmt, interleave=True)
    bias, residual, x = matrix(1, 2 * half, 12)[0], matrix(40, half, 13), matrix(40, 64, 14, 1.0)
    x[3] *= 40
    stacked = Bench(kernels.pack(parts, fmt), isa, bias=bias).run(x).astype(np.float64)
    g, up = stacked[:, :half], stacked[:, half:]
    with np.errstate(over="ignore"):
        inner = g if gate == "silu" else 2 * np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)
        expected = g / (1 + np.exp(-inner)) * up
    bench = Bench(weight, isa, width=half, bias=bias, gate=gate, num_threads=2)
    got = bench.run(x)
    # A relative error of u in the exponent's argument is one of u |argument| in the result.
    tolerance = 1e-6 * np.abs(expected) * (1 + np.minimum(np.abs(inner), 90)) + 1e-30
    assert (np.abs(got - expected) <= tolerance).all()
    with_residual = Bench(weight, isa, width=half, bias=bias, gate=gate, residual=True).run(x, residual)
    np.testing.assert_array_equal(with_residual, got + residual)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", ["bf16", "w8"])
def test_few_blocks_and_many_rows_are_cut_by_rows(fmt: str, isa: str) -> None:
    weight = kernels.pack([part(matrix(96, 32, 15))], fmt)
    x = matrix(1000, 32, 16, 1.0)
    results = []
    for num_threads in (1, 2, 5):
        program = kernels.Program(1000, 4, 1, 0, 16, 64, num_threads, isa, 1000 * 4 * (32 + 96))
        a, y = program.view(0, 128, 32), program.view(1000 * 128, 96 * 4, 96)
        program.linear("linear", a, y, weight)
        program.array(a, 1000)[:] = x
        program.io("row_starts")[:2] = [0, 1000]
        program.run(1000, 1, 0)
        results.append(program.array(y, 1000).copy())
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])


@pytest.mark.skipif("avx512_amx" not in ISAS, reason="no tile unit here")
@pytest.mark.parametrize("cols", [40, 32 * 8, 32 * 17 - 3])
def test_integer_tiles_give_the_bits_of_the_vectors(cols: int) -> None:
    """Rows that tiles take, few and many, with last tiles that begin early, beside the kernels without tiles."""
    weight = kernels.pack([part(matrix(70, cols, 44))], "w4")
    x = matrix(MAX_ROWS, cols, 45, 1.0)
    x[3], x[5], x[20, 1] = 0, 1e-35, np.nan
    x[40] *= 1e20
    vectors, tiles = Bench(weight, "avx512_bf16"), Bench(weight, "avx512_amx")
    for m in (31, 32, 41, 42, 48, 61, 96, MAX_ROWS):
        np.testing.assert_array_equal(tiles.run(x[:m]), vectors.run(x[:m]))


@pytest.mark.parametrize("cols", [1300, 11000])
@pytest.mark.parametrize("fmt", ["bf16", "w8", "w4"])
def test_pieces_of_a_wide_operand_do_not_show(fmt: str, cols: int) -> None:
    """The tile kernels take many rows a piece of K and a few blocks at a time."""
    weight = kernels.pack([part(matrix(40, cols, 41))], fmt)
    x, residual = matrix(MAX_ROWS, cols, 42, 1.0), matrix(MAX_ROWS, 40, 43)
    bench = Bench(weight, ISAS[-1], residual="in place")
    full = bench.run(x, residual)
    for first, m in ((0, 97), (0, 1), (64, 33), (113, 17)):
        got = bench.run(x[first : first + m], residual[first : first + m])
        np.testing.assert_array_equal(got, full[first : first + m])


def test_signals_do_not_disturb_products() -> None:
    """A signal that comes while tiles are in use saves and restores them."""
    bench = Bench(kernels.pack([part(matrix(512, 512, 44))], "bf16"), ISAS[-1])
    x = matrix(64, 512, 45, 1.0)
    expected, seen = bench.run(x), []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
        while len(seen) < 50:
            np.testing.assert_array_equal(bench.run(x), expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_operand_is_prepared_again_after_its_buffer_is_written() -> None:
    """x -> y, y -> x (overwrites x), x -> z: the second product of x must see the new x."""
    isa = ISAS[-1]
    weight = kernels.pack([part(matrix(64, 64, 17))], "w8")
    program = kernels.Program(8, 4, 1, 0, 16, 64, 1, isa, 3 * 8 * 256)
    x, y, z = (program.view(i * 8 * 256, 256, 64) for i in range(3))
    program.linear("a", x, y, weight)
    program.linear("b", y, x, weight)
    program.linear("c", x, z, weight)
    program.linear("d", x, y, weight)  # prepared already: same operand
    start = matrix(8, 64, 18, 1.0)
    program.array(x, 8)[:] = start
    program.io("row_starts")[:2] = [0, 8]
    program.run(8, 1, 0)
    single = Bench(weight, isa)
    expected = single.run(single.run(single.run(start)))
    np.testing.assert_array_equal(program.array(z, 8), expected)
    np.testing.assert_array_equal(program.array(y, 8), expected)


def test_column_views_of_one_parent() -> None:
    """One product writes q, k and v; another reads a column view of them."""
    isa = ISAS[-1]
    weight, narrow = (
        kernels.pack([part(matrix(96, 64, 19))], "bf16"),
        kernels.pack([part(matrix(5, 32, 20))], "bf16"),
    )
    program = kernels.Program(8, 4, 1, 0, 16, 64, 2, isa, 8 * (256 + 384 + 20))
    x, qkv = program.view(0, 256, 64), program.view(8 * 256, 384, 96)
    k, y = program.view(8 * 256 + 128, 384, 32), program.view(8 * 640, 20, 5)
    program.linear("qkv", x, qkv, weight)
    program.linear("k", k, y, narrow)
    start = matrix(8, 64, 21, 1.0)
    program.array(x, 8)[:] = start
    program.io("row_starts")[:2] = [0, 8]
    program.run(8, 1, 0)
    middle = np.ascontiguousarray(Bench(weight, isa).run(start)[:, 32:64])
    np.testing.assert_array_equal(program.array(y, 8), Bench(narrow, isa).run(middle))


@pytest.mark.parametrize("name", TYPES)
def test_packing_keeps_what_it_promises(name: str) -> None:
    rng = np.random.default_rng(22)
    rows, cols = 37, 256
    data = random_blocks(name, rows, cols, rng)
    order = rng.permutation(rows).astype(np.int32)
    source = kernels.dequantise(name, data, rows, cols)[order]
    largest = np.abs(source).reshape(rows, -1, 32).max(2, keepdims=True)
    for fmt in kernels.FORMATS:
        weight = kernels.pack([(name, data, rows, cols, order)], fmt, num_threads=2)
        got = weight.unpack()
        assert weight.lossless == kernels.is_lossless(name, fmt)
        if weight.lossless:
            np.testing.assert_array_equal(got.astype(np.float32), source)
        error = np.abs(got - source).reshape(rows, -1, 32)
        steps = {"f32": 0, "f16": 2**-11, "bf16": 2**-8, "w8": 1 / 250, "w4": 0.08}[fmt]
        assert (error <= steps * largest + 1e-7).all()
    assert kernels.pack([(name, data, rows, cols, None)]).format == kernels.natural_format(name)


def test_stacked_and_interleaved_parts() -> None:
    a, b = matrix(21, 40, 23), matrix(21, 40, 24)
    both = np.concatenate([a, b])
    for interleave in (False, True):
        weight = kernels.pack([part(a), part(b)], "f32", interleave=interleave)
        np.testing.assert_array_equal(weight.unpack(), both)
    with pytest.raises(WeightError, match="interleaved"):
        kernels.pack([part(a), part(b[:20])], "f32", interleave=True)
    with pytest.raises(WeightError, match="columns"):
        kernels.pack([part(a), part(matrix(3, 41, 25))])


def test_mixed_parts_take_the_widest_natural_format() -> None:
    rng = np.random.default_rng(26)
    q4, q8 = random_blocks("Q4_0", 8, 64, rng), random_blocks("Q8_0", 8, 64, rng)
    weight = kernels.pack([("Q4_0", q4, 8, 64, None), ("Q8_0", q8, 8, 64, None)])
    assert (weight.format, weight.lossless) == ("w8", True)


def test_a_q4_0_scale_beyond_f16_is_refused() -> None:
    block = np.zeros(18, np.uint8)
    block[:2] = np.float16(60000).reshape(1).view(np.uint8)
    with pytest.raises(WeightError, match="w8 or bf16"):
        kernels.pack([("Q4_0", block, 1, 32, None)])


def test_shapes_that_do_not_fit_are_refused() -> None:
    weight = kernels.pack([part(matrix(40, 64, 27))], "f32")
    program = kernels.Program(8, 4, 1, 0, 16, 64, 1, "generic", 8192)
    x, y = program.view(0, 256, 64), program.view(4096, 160, 40)
    for call in (
        lambda: program.linear("l", y, x, weight),
        lambda: program.linear("l", x, x, weight),
        lambda: program.linear("l", x, y, weight, np.zeros(3, np.float32)),
        lambda: program.linear("l", x, y, weight, None, x),
        lambda: program.linear("l", x, y, weight, gate="silu"),
        lambda: program.linear("l", x, y, weight, gate="relu"),
        lambda: program.logits("l", x, weight),
        lambda: program.io("nothing"),
        lambda: program.set_array("nothing", None),
        lambda: program.set_array("masks", np.zeros(3, np.uint32)),
    ):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(IndexError):
        program.view(8000, 256, 64)


LOGIT_WEIGHTS = matrix(64, 48, 28, 0.3)


def logits_program(isa: str, fmt: str, *, rows: str = "tokens", softcap: float = 0.0) -> kernels.Program:
    program = kernels.Program(200, 80, 1, 0, 16, 64, 2, isa, 400 * 192)
    x = program.view(0, 192, 48, rows)
    program.logits("head", x, kernels.pack([part(LOGIT_WEIGHTS)], fmt), softcap)
    program.array(x, 280)[:] = matrix(280, 48, 29, 1.0)
    program.io("row_starts")[:2] = [0, 200]
    return program


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", kernels.FORMATS)
def test_logits_gather_tile_and_cap(fmt: str, isa: str) -> None:
    x = matrix(280, 48, 29, 1.0)
    rows = np.random.default_rng(30).permutation(200).astype(np.int32)[:170]
    weight = kernels.pack([part(LOGIT_WEIGHTS)], fmt)
    expected = Bench(weight, isa).run(x[rows][:MAX_ROWS])
    program = logits_program(isa, fmt)
    program.io("sample_tokens")[:170] = rows
    got = np.empty((170, 64), np.float32)
    program.run_logits(200, 1, 70, 100, got)  # tiles of 64 and 6 sampled, 64 and 36 scored rows
    if fmt == "w4" or (
        fmt == "w8" and isa != "avx512_amx"
    ):  # two int8 operands: nearly the product of the unrounded row
        exact = x[rows].astype(np.float64) @ weight.unpack().T
        assert np.abs(got - exact).max() < np.abs(expected - exact[:MAX_ROWS]).max() / 50
    else:
        np.testing.assert_array_equal(got[:MAX_ROWS], expected)
    one = np.empty((1, 64), np.float32)
    program.run_logits(200, 1, 1, 0, one)
    np.testing.assert_array_equal(one[0], got[0])
    capped = logits_program(isa, fmt, softcap=2.0)
    capped.io("sample_tokens")[:170] = rows
    out = np.empty_like(got)
    capped.run_logits(200, 1, 70, 100, out)
    np.testing.assert_allclose(out, 2 * np.tanh(got.astype(np.float64) / 2), rtol=4e-7, atol=1e-12)
    direct = logits_program(isa, fmt, rows="samples")
    direct.run_logits(200, 1, 70, 100, out)
    again = logits_program(isa, fmt)
    again.io("sample_tokens")[:170] = np.arange(170)
    again.run_logits(200, 1, 70, 100, got)
    np.testing.assert_array_equal(out, got)


def test_tiles_reach_the_sampler() -> None:
    """Greedy rows and scored rows of one step, against the raw logits of the same step."""
    program = logits_program(ISAS[-1], "f32")
    program.io("sample_tokens")[:170] = np.arange(170)
    raw = np.empty((170, 64), np.float32)
    program.run_logits(200, 1, 70, 100, raw)
    targets = np.random.default_rng(33).integers(0, 64, 100).astype(np.int32)
    program.io("score_targets")[:100] = targets
    program.run(200, 1, 70, 100)
    np.testing.assert_array_equal(program.io("sampled_ids")[:70], raw[:70].argmax(1))
    wide = raw.astype(np.float64)
    logprobs = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    scored = logprobs[70:][np.arange(100), targets]
    np.testing.assert_allclose(program.io("score_logprobs")[:100], scored, rtol=1e-5, atol=1e-6)
    ranks = (raw[70:] > raw[70:][np.arange(100), targets][:, None]).sum(1) + 1
    np.testing.assert_array_equal(program.io("score_ranks")[:100], ranks)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("fmt", kernels.FORMATS)
def test_logits_that_are_not_finite_are_a_fault_of_the_op(fmt: str, value: float) -> None:
    for isa in ISAS:
        program = logits_program(isa, fmt, rows="samples")
        x = program.array(program.view(0, 192, 48), 3)
        good = x[1].copy()
        x[1, 33] = value
        out = np.empty((3, 64), np.float32)
        with pytest.raises(KernelFault, match="row 1") as caught:
            program.run_logits(200, 1, 3, 0, out)
        assert (caught.value.op, caught.value.position) == ("head", 0)
        x[1] = good
        program.run_logits(200, 1, 3, 0, out)  # the program lives on


def test_steps_out_of_range_are_faults() -> None:
    program = kernels.Program(8, 2, 1, 2, 4, 64, 1, "generic", 64)

    def fault(match: str, tokens: int = 4, rows: int = 1, samples: int = 0, scored: int = 0) -> None:
        with pytest.raises(KernelFault, match=match):
            program.run(tokens, rows, samples, scored)

    program.io("row_starts")[:3] = [0, 4, 4]
    fault("KV memory")
    program.allocate_kv(64, 3)
    program.run(4, 1, 0)
    fault("1 to 8 tokens", tokens=9)
    fault("1 to 2 rows", rows=3)
    fault("row 1 has no token", rows=2)
    fault("row_starts", tokens=3)
    program.io("token_ids")[2] = 64
    fault("id 64")
    program.io("token_ids")[2] = -1
    fault("id -1")
    program.io("token_ids")[2] = 0
    program.io("positions")[1] = -1
    fault("position -1")
    program.io("positions")[1] = 0
    program.io("block_tables")[0, 0] = [3, 0]
    fault("block 0 of row 0 in group 0 is 3")
    program.io("block_tables")[0, 0] = [0, -1]
    program.run(4, 1, 0)
    program.io("context_lens")[0] = 1
    fault("is -1")
    program.io("context_lens")[0] = 5
    fault("reaches 9 tokens")
    program.io("context_lens")[0] = 4
    program.io("block_tables")[0, 0] = [-1, 2]
    fault("is -1")
    program.set_windows([1])
    program.run(4, 1, 0)
    program.io("sample_tokens")[0] = 4
    fault("token 4 of 4", samples=1)
    program.io("sample_tokens")[0] = 0
    program.io("score_targets")[0] = 70
    fault("target 70", scored=1)


def test_the_team_ends_with_its_process_and_refuses_to_run_in_a_fork() -> None:
    code = (
        "import os, sys\n"
        "from octavo import kernels\n"
        "p = kernels.Program(8, 2, 1, 0, 4, 64, 3, 'generic', 64)\n"
        "p.io('row_starts')[:2] = [0, 4]\n"
        "p.run(4, 1, 0)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        "        p.run(4, 1, 0)\n"
        "    except RuntimeError:\n"
        "        os._exit(7)\n"
        "    os._exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
        "p.run(4, 1, 0)\n"
        "print('done')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "done\n"


def test_an_instruction_set_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.errors import ConfigError

    monkeypatch.setenv("OCTAVO_ISA", "generic")
    assert kernels.best_isa() == "generic"
    monkeypatch.setenv("OCTAVO_ISA", "sse9")
    with pytest.raises(ConfigError, match="generic"):
        kernels.best_isa()
    with pytest.raises(ValueError, match="sse9"):
        kernels.Program(8, 2, 1, 0, 4, 64, 1, "sse9", 64)


def test_profile_counts_runs() -> None:
    weight = kernels.pack([part(matrix(32, 32, 31))], "f32")
    bench = Bench(weight, "generic")
    bench.program.profile(True)
    bench.run(matrix(2, 32, 32))
    ((name, runs, ns),) = bench.program.times()
    assert (name, runs) == ("linear", 1) and ns > 0
    assert set(bench.program.memory()) == {"arena", "operands", "scratch", "kv"}
