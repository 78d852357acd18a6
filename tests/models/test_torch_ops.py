"""Ops of the oracle that no tiny checkpoint uses, against loops that read like the op table."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from tests.models.test_passes_torch import OPTIONS, batch, source_of

from octavo.executors.torch_executor import TorchExecutor
from octavo.program.builder import ProgramBuilder
from octavo.program.program import Buffer
from octavo.wire.layout import KVGroup, KVLayout

F64 = npt.NDArray[np.float64]
HEADS, HEAD_DIM, WIDTH = 4, 8, 32
TOKENS = batch().token_ids


def builder(window: int = 0) -> tuple[ProgramBuilder, Buffer]:
    layout = KVLayout(
        groups=(KVGroup((0,), window),), block_size=4, kv_heads=2, head_dim=HEAD_DIM, dtype="f32"
    )
    b = ProgramBuilder("ops", layout, vocab_size=24)
    return b, b.embed("embed", "embed", WIDTH, scale=3.0)


def run(b: ProgramBuilder, **outputs: Buffer) -> tuple[dict[str, F64], dict[str, F64]]:
    """(outputs, weights)"""
    for name, buffer in outputs.items():
        b.output(name, buffer)
    program = b.build()
    source = source_of(program)
    executor = TorchExecutor(dtype="f64")
    executor.bind(program, source, OPTIONS)
    executor.allocate_kv(8)
    executor.write_blocks(list(range(8)), old_blocks(program.kv))
    found = {name: executor.hidden(batch(), name).astype(np.float64) for name in outputs}
    return found, {name: value.astype(np.float64) for name, value in source.values.items()}


def old_blocks(layout: KVLayout) -> npt.NDArray[np.uint8]:
    values = np.random.default_rng(1).standard_normal((8, layout.block_bytes // 4)).astype(np.float32)
    return values.view(np.uint8)


@pytest.mark.parametrize(
    ("window", "softcap", "sinks"), [(0, 0.0, None), (3, 0.0, "s"), (0, 2.0, "s"), (6, 0.5, None)]
)
def test_attend(window: int, softcap: float, sinks: str | None) -> None:
    b, x = builder(window)
    k, v = (b.linear(n, x, n, (16, WIDTH)) for n in ("k", "v"))
    b.kv_write("kv_write", k, v, layer=0)
    y = b.attend("attend", x, layer=0, heads=HEADS, scale=0.7, window=window, softcap=softcap, sinks=sinks)
    found, weights = run(b, q=x, k=k, v=v, y=y)
    blocks = old_blocks(b.kv).view(np.float32).reshape(8, 2, 2, 4, HEAD_DIM).astype(np.float64)
    step, expected = batch(), np.zeros_like(found["y"])
    for row in range(2):
        start, end, context = (
            int(step.row_starts[row]),
            int(step.row_starts[row + 1]),
            int(step.context_lens[row]),
        )
        table = step.block_tables[0, row]
        history = np.concatenate(
            [blocks[t] for t in table], axis=2
        )  # [kv heads, K and V, positions, head_dim]
        for t in range(start, end):
            place = context + t - start
            for part, name in enumerate(("k", "v")):
                history[:, part, place] = found[name][t].reshape(2, HEAD_DIM)
        for t in range(start, end):
            place = context + t - start
            for head in range(HEADS):
                keys, values = history[head // 2]
                query = found["q"][t, head * HEAD_DIM : (head + 1) * HEAD_DIM]
                seen = [j for j in range(place + 1) if not window or j > place - window]
                scores = [0.7 * float(query @ keys[j]) for j in seen]
                if softcap:
                    scores = [softcap * math.tanh(s / softcap) for s in scores]
                extra = math.exp(weights["s"][head]) if sinks else 0.0
                p = np.exp(scores)
                mixed = (p[:, None] * values[seen]).sum(0) / (p.sum() + extra)
                expected[t, head * HEAD_DIM : (head + 1) * HEAD_DIM] = mixed
    np.testing.assert_allclose(found["y"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_turns_pairs_and_copies_the_rest(interleaved: bool) -> None:
    b, x = builder()
    k = b.linear("k", x, "k", (16, WIDTH))
    freqs, factor = (1.0, 0.25, 0.125), 1.5
    q2, k2 = b.rope(
        "rope", x, k, head_dim=HEAD_DIM, inv_freq=freqs, attention_factor=factor, interleaved=interleaved
    )
    found, _ = run(b, q=x, k=k, q2=q2, k2=k2)
    for name in ("q", "k"):
        before, after = found[name], found[f"{name}2"]
        for t, position in enumerate(batch().positions):
            for head in range(before.shape[1] // HEAD_DIM):
                old, new = (a[t, head * HEAD_DIM : (head + 1) * HEAD_DIM] for a in (before, after))
                for i, freq in enumerate(freqs):
                    u, v = (2 * i, 2 * i + 1) if interleaved else (i, i + 3)
                    turned = complex(old[u], old[v]) * factor * np.exp(1j * position * freq)
                    np.testing.assert_allclose(
                        [new[u], new[v]], [turned.real, turned.imag], rtol=1e-5, atol=1e-6
                    )
                np.testing.assert_array_equal(new[6:], old[6:])


def test_norms() -> None:
    b, x = builder()
    found, w = run(
        b,
        x=x,
        layer=b.layer_norm("layer", x, "layer", eps=1e-3),
        rms=b.rms_norm("rms", x, "rms", eps=1e-3, offset=1.0),
        groups=b.rms_norm("groups", x, "groups", eps=1e-3, group=HEAD_DIM),
    )
    rows = found["x"]
    for t, row in enumerate(rows):
        mean, var = row.mean(), row.var()
        layer = (row - mean) / math.sqrt(var + 1e-3) * w["layer.weight"] + w["layer.bias"]
        np.testing.assert_allclose(found["layer"][t], layer, rtol=1e-5, atol=1e-6)
        rms = row / math.sqrt((row**2).mean() + 1e-3) * (w["rms.weight"] + 1)
        np.testing.assert_allclose(found["rms"][t], rms, rtol=1e-5, atol=1e-6)
        heads = [h / math.sqrt((h**2).mean() + 1e-3) * w["groups.weight"] for h in row.reshape(-1, HEAD_DIM)]
        np.testing.assert_allclose(found["groups"][t], np.concatenate(heads), rtol=1e-5, atol=1e-6)


def test_elementwise() -> None:
    b, x = builder()
    functions = {
        "silu": lambda a: a / (1 + math.exp(-a)),
        "gelu": lambda a: a / 2 * (1 + math.erf(a / math.sqrt(2))),
        "gelu_tanh": lambda a: a / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))),
        "quick_gelu": lambda a: a / (1 + math.exp(-1.702 * a)),
        "relu": lambda a: max(a, 0.0),
        "relu2": lambda a: max(a, 0.0) ** 2,
        "tanh": math.tanh,
        "sigmoid": lambda a: 1 / (1 + math.exp(-a)),
    }
    made = {fn: b.act(fn, x, fn) for fn in functions}
    cap, half = b.soft_cap("cap", x, 0.5), b.scale("half", x, 0.5)
    found, w = run(b, x=x, cap=cap, half=half, both=b.gelu_mul("both", x, half), **made)
    np.testing.assert_allclose(found["x"], 3 * w["embed.weight"][TOKENS], rtol=1e-6)
    for fn, function in functions.items():
        np.testing.assert_allclose(found[fn], np.vectorize(function)(found["x"]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["cap"], 0.5 * np.tanh(found["x"] / 0.5), rtol=1e-5)
    np.testing.assert_allclose(found["both"], found["gelu_tanh"] * found["half"], rtol=1e-5)


def test_logits_are_capped() -> None:
    b, x = builder()
    rows = b.gather_rows("gather", x)
    found, w = run(
        b,
        rows=rows,
        plain=b.logits("plain", rows, "head"),
        capped=b.logits("capped", rows, "head", softcap=0.3),
    )
    np.testing.assert_allclose(found["plain"], found["rows"] @ w["head.weight"].T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["capped"], 0.3 * np.tanh(found["plain"] / 0.3), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["rows"], 3 * w["embed.weight"][TOKENS[[2, 4, 0]]], rtol=1e-6)
