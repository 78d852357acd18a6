"""Element by element ops, norms, rope, embedding and gather: against float64, and the same for any threads."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.kernels.op_runner import OpRunner, run_unary

from octavo.kernels import _native as native

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
ISAS: list[str] = native.available_isas()
SHAPES = [(1, 576), (5, 37), (33, 1000)]


def normal(shape: tuple[int, ...], seed: int = 0, scale: float = 3.0) -> F32:
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def sigmoid(x: F64) -> F64:
    y: F64 = 1 / (1 + np.exp(-x))
    return y


def gelu_tanh(x: F64) -> F64:
    y: F64 = x / 2 * (1 + np.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return y


ACTIVATIONS: dict[str, Callable[[F64], F64]] = {
    "silu": lambda x: x * sigmoid(x),
    "gelu_tanh": gelu_tanh,
    "gelu": lambda x: x / 2 * (1 + np.vectorize(erf)(x / sqrt(2))),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
}


def close(got: F32, want: F64, relative: float = 2e-6, absolute: float = 1e-6) -> None:
    np.testing.assert_allclose(got, want, rtol=relative, atol=absolute)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fn", ACTIVATIONS)
def test_activations(fn: str, isa: str) -> None:
    x = np.concatenate([normal((32, 37)), [np.linspace(-100, 100, 37, dtype=np.float32)]])
    got = run_unary(isa, x, lambda p, a, b: p.act("act", a, b, fn=fn))
    with np.errstate(over="ignore"):
        close(got, ACTIVATIONS[fn](x.astype(np.float64)))


@pytest.mark.parametrize("isa", ISAS)
def test_nan_passes(isa: str) -> None:
    x = np.array([[0.5, np.nan, -1.0]], np.float32)
    for fn in ACTIVATIONS:

        def add(p: Any, a: Any, b: Any, fn: str = fn) -> None:
            p.act("act", a, b, fn=fn)

        got = run_unary(isa, x, add)
        assert np.isnan(got[0, 1]) and np.isfinite(got[0, [0, 2]]).all(), fn


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES)
def test_unary(shape: tuple[int, int], isa: str) -> None:
    x = normal(shape)
    close(
        run_unary(isa, x, lambda p, a, b: p.scale("scale", a, b, factor=0.3)),
        x.astype(np.float64) * np.float32(0.3),
    )
    close(
        run_unary(isa, x, lambda p, a, b: p.soft_cap("cap", a, b, cap=2.0)),
        2 * np.tanh(x.astype(np.float64) / 2),
    )
    close(
        run_unary(isa, x, lambda p, a, b: p.scale("one", a, b, factor=1.0), threads=3, pad=5),
        x.astype(np.float64),
        0,
        0,
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES)
def test_binary(shape: tuple[int, int], isa: str) -> None:
    a, b = normal(shape, 1), normal(shape, 2)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    wants = {
        "add": wide_a + wide_b,
        "mul": wide_a * wide_b,
        "silu_mul": wide_a * sigmoid(wide_a) * wide_b,
        "gelu_mul": gelu_tanh(wide_a) * wide_b,
    }
    for kind, want in wants.items():
        results = []
        for threads in (1, 3):
            runner = OpRunner(isa, threads)
            x, y, z = (runner.buffer(shape[1], pad=3) for _ in range(3))
            getattr(runner.program, kind)(kind, x, y, z)
            runner.write(x, a)
            runner.write(y, b)
            runner.step([len(a)])
            results.append(runner.read(z, len(a)))
        close(results[0], want)
        assert np.array_equal(results[0], results[1])


def rms(x: F64, weight: F32, eps: float, offset: float) -> F64:
    return np.asarray(
        x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * (weight.astype(np.float64) + offset)
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("shape", "group", "offset"),
    [((3, 576), 0, 0.0), ((9, 100), 0, 1.0), ((4, 192), 64, 0.0), ((4, 96), 24, 1.0)],
)
def test_rms_norm(shape: tuple[int, int], group: int, offset: float, isa: str) -> None:
    x, weight = normal(shape), normal((group or shape[1],), 3, 1.0)

    def add(p: Any, a: Any, b: Any) -> None:
        p.rms_norm("norm", a, b, weight=weight, eps=1e-5, offset=offset, group=group)

    got = run_unary(isa, x, add, threads=2)
    grouped = x.astype(np.float64).reshape(-1, group or shape[1])
    close(got, rms(grouped, weight, 1e-5, offset).reshape(shape))
    # A row's bits do not depend on its neighbours.
    assert np.array_equal(run_unary(isa, x[1:2], add), got[1:2])


@pytest.mark.parametrize("isa", ISAS)
def test_add_rms_norm(isa: str) -> None:
    x, residual, weight = normal((7, 576)), normal((7, 576), 1), normal((576,), 2)
    runner = OpRunner(isa, 2)
    a, r, y = (runner.buffer(576) for _ in range(3))
    # The sum may lie where the residual lay.
    runner.program.add_rms_norm("norm", a, r, r, y, weight=weight, eps=1e-6, offset=0.0)
    runner.write(a, x)
    runner.write(r, residual)
    runner.step([7])
    assert np.array_equal(runner.read(r, 7), x + residual)
    close(runner.read(y, 7), rms((x + residual).astype(np.float64), weight, 1e-6, 0))
    apart = run_unary(isa, x + residual, lambda p, u, v: p.rms_norm("norm", u, v, weight=weight, eps=1e-6))
    assert np.array_equal(apart, runner.read(y, 7))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm(shape: tuple[int, int], with_bias: bool, isa: str) -> None:
    x, weight = normal(shape) + np.float32(2), normal((shape[1],), 1)
    bias = normal((shape[1],), 2) if with_bias else None
    got = run_unary(
        isa, x, lambda p, a, b: p.layer_norm("norm", a, b, weight=weight, bias=bias, eps=1e-5), threads=2
    )
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True)
    want = centred / np.sqrt(wide.var(axis=1, keepdims=True) + 1e-5) * weight
    close(got, want + bias if bias is not None else want, 5e-6, 3e-6)


def rope_reference(
    x: F32, positions: Any, head_dim: int, rotary: int, inv_freq: F64, factor: float, interleaved: bool
) -> F64:
    heads = x.astype(np.float64).reshape(len(x), -1, head_dim).copy()
    angle = np.asarray(positions)[:, None, None] * inv_freq
    cos, sin = np.cos(angle) * factor, np.sin(angle) * factor
    first = (
        (slice(0, rotary, 2), slice(1, rotary, 2))
        if interleaved
        else (slice(0, rotary // 2), slice(rotary // 2, rotary))
    )
    a, b = heads[..., first[0]].copy(), heads[..., first[1]].copy()
    heads[..., first[0]], heads[..., first[1]] = a * cos - b * sin, b * cos + a * sin
    return heads.reshape(len(x), -1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary"), [(64, 64), (80, 32), (96, 96), (16, 8)])
@pytest.mark.parametrize("in_place", [False, True])
def test_rope(head_dim: int, rotary: int, interleaved: bool, in_place: bool, isa: str) -> None:
    inv_freq = 10000.0 ** (-np.arange(0, rotary, 2) / rotary)
    runner = OpRunner(isa, 2, table_width=64)
    q, k = runner.buffer(3 * head_dim), runner.buffer(head_dim)
    outs = (q, k) if in_place else (runner.buffer(3 * head_dim), runner.buffer(head_dim))
    runner.program.rope(
        "rope",
        q,
        k,
        *outs,
        head_dim=head_dim,
        rotary_dim=rotary,
        inv_freq=list(inv_freq),
        attention_factor=1.2,
        interleaved=interleaved,
    )
    runner.program.io("block_tables")[:] = 0
    values = normal((40, 3 * head_dim)), normal((40, head_dim), 1)
    runner.write(q, values[0])
    runner.write(k, values[1])
    contexts = [50, 0, 950]
    runner.step([30, 2, 8], contexts)
    positions = np.concatenate([50 + np.arange(30), np.arange(2), 950 + np.arange(8)])
    for out, x in zip(outs, values, strict=True):
        close(
            runner.read(out, 40),
            rope_reference(x, positions, head_dim, rotary, inv_freq, 1.2, interleaved),
            0,
            2e-6,
        )


@pytest.mark.parametrize("isa", ISAS)
def test_embed(isa: str) -> None:
    table = normal((1000, 96))
    forms: dict[str, tuple[npt.NDArray[Any], F32]] = {
        "F32": (table, table),
        "F16": (table.astype(np.float16), table.astype(np.float16).astype(np.float32)),
    }
    blocks = table.reshape(1000, 3, 32)
    scales = (np.abs(blocks).max(axis=2, keepdims=True) / 127).astype(np.float16)
    codes = np.rint(blocks / scales.astype(np.float32)).astype(np.int8)
    q8 = np.concatenate([scales.view(np.uint8), codes.view(np.uint8)], axis=2)
    forms["Q8_0"] = (q8, (codes * scales.astype(np.float32)).reshape(1000, 96))
    ids = np.array([0, 999, 5, 5, 31], np.int32)
    for kind, (data, want) in forms.items():
        runner = OpRunner(isa, 2)
        y = runner.buffer(96)
        runner.program.embed(
            "embed",
            y,
            type=kind,
            data=np.ascontiguousarray(data).view(np.uint8).reshape(-1),
            rows=1000,
            scale=2.0,
        )
        runner.program.io("token_ids")[:5] = ids
        runner.step([5])
        assert np.array_equal(runner.read(y, 5), want[ids] * np.float32(2)), kind


@pytest.mark.parametrize("isa", ISAS)
def test_gather_rows(isa: str) -> None:
    runner = OpRunner(isa, 3)
    x, y = runner.buffer(300), runner.buffer(300, "samples")
    runner.program.gather_rows("gather", x, y)
    values = normal((9, 300))
    runner.write(x, values)
    runner.step([4, 5], sample_tokens=[8, 3])
    assert np.array_equal(runner.read(y, 2), values[[8, 3]])


def test_refuses_what_does_not_fit() -> None:
    runner = OpRunner(ISAS[0])
    p = runner.program
    x, y, samples = runner.buffer(32), runner.buffer(48), runner.buffer(32, "samples")
    with pytest.raises(ValueError, match="widths 32 and 48 differ"):
        p.scale("s", x, y, factor=1.0)
    with pytest.raises(ValueError, match="rows"):
        p.add("s", x, x, samples)
    with pytest.raises(ValueError, match="must be finite"):
        p.scale("s", x, x, factor=float("nan"))
    with pytest.raises(ValueError, match="not one of"):
        p.act("s", x, x, fn="swish")
    with pytest.raises(ValueError, match="weight has 31 elements, not 32"):
        p.rms_norm("s", x, x, weight=np.ones(31, np.float32), eps=1e-5)
    with pytest.raises(ValueError, match="does not divide"):
        p.rms_norm("s", x, x, weight=np.ones(5, np.float32), eps=1e-5, group=5)
    with pytest.raises(ValueError, match="rotary_dim"):
        p.rope("s", x, x, x, x, head_dim=16, rotary_dim=18, inv_freq=[1.0] * 9)
    with pytest.raises(ValueError, match="inv_freq"):
        p.rope("s", x, x, x, x, head_dim=16, rotary_dim=16, inv_freq=[1.0] * 7)
    with pytest.raises(ValueError, match="table holds"):
        p.embed("s", x, type="F32", data=np.zeros(5, np.uint8), rows=3)
    with pytest.raises(ValueError, match="cap"):
        p.soft_cap("s", x, x, cap=0.0)
