"""Paged attention and kv_write: against float64, and bit for bit whatever the chunks, batch mates and threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.kernels.op_runner import OpRunner

from octavo.kernels import _native as native

F32 = npt.NDArray[np.float32]
Part = tuple[int, int, F32, F32, F32]  # sequence, context, q, k, v
ISAS: list[str] = native.kernel_variants()


@dataclass(frozen=True)
class Case:
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    dtype: str = "bf16"
    block_size: int = 16
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    layers: int = 2
    index: int = 1

    @property
    def block_bytes(self) -> int:
        item = 2 if self.dtype == "bf16" else 4
        return self.layers * self.kv_heads * 2 * self.block_size * self.head_dim * item


class Attention:
    """kv_write and attend over several sequences whose blocks lie at random in a pool of old content."""

    def __init__(
        self, case: Case, isa: str, threads: int = 1, max_context: int = 2048, seed: int = 0, rows: int = 4
    ) -> None:
        self.case = case
        width = -(-max_context // case.block_size)
        self.runner = OpRunner(
            isa, threads, max_tokens=2048, max_rows=rows, table_width=width, block_size=case.block_size
        )
        program = self.runner.program
        self.q = self.runner.buffer(case.heads * case.head_dim)
        self.k = self.runner.buffer(case.kv_heads * case.head_dim)
        self.v = self.runner.buffer(case.kv_heads * case.head_dim)
        self.y = self.runner.buffer(case.heads * case.head_dim)
        shape: dict[str, Any] = {
            "group": 0,
            "index": case.index,
            "kv_heads": case.kv_heads,
            "head_dim": case.head_dim,
            "dtype": case.dtype,
        }
        program.kv_write("kv_write", self.k, self.v, **shape)
        sinks = make_sinks(case) if case.sinks else None
        program.attend(
            "attend",
            self.q,
            self.y,
            heads=case.heads,
            scale=case.head_dim**-0.5,
            window=case.window,
            softcap=case.softcap,
            sinks=sinks,
            **shape,
        )
        program.set_windows([case.window])
        program.allocate_kv(case.block_bytes, rows * width)
        # Old content: NaN everywhere. Only what has been written, or lies beside it in 16 positions, may be read.
        program.kv()[:] = 0xFF
        self.tables = (
            np.random.default_rng(seed).permutation(rows * width).astype(np.int32).reshape(rows, width)
        )

    def step(self, parts: Sequence[Part]) -> list[F32]:
        """Each part is (sequence, context, q, k, v) with new tokens; returns y of each part."""
        table = self.runner.program.io("block_tables")
        for r, (sequence, context, *_) in enumerate(parts):
            table[0, r] = self.tables[sequence]
            if self.case.window:  # blocks behind the window are freed
                table[0, r, : max(0, context - self.case.window + 1) // self.case.block_size] = -1
        for buffer, i in ((self.q, 2), (self.k, 3), (self.v, 4)):
            self.runner.write(buffer, np.concatenate([part[i] for part in parts]))
        lengths = [len(part[2]) for part in parts]
        self.runner.step(lengths, [part[1] for part in parts])
        return np.split(self.runner.read(self.y, sum(lengths)), np.cumsum(lengths)[:-1])


def make_sinks(case: Case) -> F32:
    return np.random.default_rng(9).normal(size=case.heads).astype(np.float32)


def make_qkv(case: Case, length: int, seed: int) -> tuple[F32, F32, F32]:
    rng = np.random.default_rng(seed)
    widths = (case.heads, case.kv_heads, case.kv_heads)
    q, k, v = (rng.normal(size=(length, n * case.head_dim)).astype(np.float32) for n in widths)
    return q * np.float32(2), k, v


def reference(case: Case, q: F32, k: F32, v: F32) -> npt.NDArray[np.float64]:
    """Attention in float64; the cache's rounding is the caller's."""
    length = len(q)
    heads = q.reshape(length, case.heads, case.head_dim).astype(np.float64)
    group = case.heads // case.kv_heads
    keys = np.repeat(k.reshape(length, case.kv_heads, case.head_dim).astype(np.float64), group, axis=1)
    values = np.repeat(v.reshape(length, case.kv_heads, case.head_dim).astype(np.float64), group, axis=1)
    scores = np.einsum("qhd,khd->hqk", heads, keys) * case.head_dim**-0.5
    if case.softcap:
        scores = case.softcap * np.tanh(scores / case.softcap)
    query, key = np.arange(length)[:, None], np.arange(length)[None, :]
    visible = key <= query
    if case.window:
        visible &= key > query - case.window
    scores = np.where(visible, scores, -np.inf)
    top = scores.max(axis=2, keepdims=True)
    if case.sinks:
        sink = make_sinks(case).astype(np.float64)[:, None, None]
        top = np.maximum(top, sink)
    weights = np.exp(scores - top)
    total = weights.sum(axis=2, keepdims=True)
    if case.sinks:
        total = total + np.exp(sink - top)
    out: npt.NDArray[np.float64] = np.einsum("hqk,khd->qhd", weights / total, values).reshape(length, -1)
    return out


def to_bf16(x: F32) -> F32:
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def prefill(attention: Attention, q: F32, k: F32, v: F32, chunks: Sequence[int], sequence: int = 0) -> F32:
    out, at = [], 0
    for n in chunks:
        out += attention.step([(sequence, at, q[at : at + n], k[at : at + n], v[at : at + n])])
        at += n
    return np.concatenate(out)


CASES = [
    Case(),
    Case(heads=4, kv_heads=4, head_dim=80),
    Case(heads=14, kv_heads=2, head_dim=64, block_size=32),
    Case(heads=7, kv_heads=1, head_dim=128, block_size=48),
    Case(heads=2, kv_heads=1, head_dim=256),
    Case(heads=26, kv_heads=1, head_dim=16),
    Case(heads=3, kv_heads=1, head_dim=96, window=100),
    Case(heads=4, kv_heads=2, window=5, softcap=3.0),
    Case(heads=4, kv_heads=2, sinks=True, window=40),
    Case(softcap=20.0),
    Case(dtype="f32"),
    Case(heads=4, kv_heads=4, head_dim=112, dtype="f32", window=70, sinks=True, block_size=32),
]


LENGTH = 560  # more than one split


@lru_cache
def expected(case: Case) -> npt.NDArray[np.float64]:
    q, k, v = make_qkv(case, LENGTH, 1)
    return reference(case, q, to_bf16(k), to_bf16(v)) if case.dtype == "bf16" else reference(case, q, k, v)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_float64(case: Case, isa: str) -> None:
    q, k, v = make_qkv(case, LENGTH, 1)
    y = prefill(Attention(case, isa), q, k, v, [LENGTH])
    want = expected(case)
    tolerance = 0.02 if case.dtype == "bf16" else 1e-5
    assert np.abs(y - want).max() < tolerance
    # Errors of rounding Q and P are random, not a bias.
    assert np.sqrt(np.mean((y - want) ** 2)) < tolerance / 8


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_chunks_threads_and_mates_leave_every_bit(case: Case, isa: str) -> None:
    length = 800
    q, k, v = make_qkv(case, length, 2)
    whole = prefill(Attention(case, isa, rows=1), q, k, v, [length])
    assert np.isfinite(whole).all()

    chunks = [1, 2, 13, 16, 100, 379, 1, 1, 5, 60]
    chunks += [1] * 20 + [length - sum(chunks) - 20]
    assert np.array_equal(
        prefill(Attention(case, isa, 2, rows=1, seed=3), q, k, v, chunks).view(np.int32), whole.view(np.int32)
    )

    # Three sequences of other lengths share each step, with three threads.
    mates = [make_qkv(case, 1500, 10 + i) for i in range(3)]
    attention, out, at = Attention(case, isa, 3, rows=4, seed=5), [], 0
    for i, n in enumerate([500, 1, 1, 90, 1, 207]):
        parts = [part_of(mates[s - 1], s, a, m) for s, a, m in mate_parts(i)]
        parts.insert(i % 3, part_of((q, k, v), 0, at, n))
        out.append(attention.step(parts)[i % 3])
        at += n
    assert np.array_equal(np.concatenate(out).view(np.int32), whole.view(np.int32))


def part_of(qkv: tuple[F32, F32, F32], sequence: int, context: int, tokens: int) -> Part:
    q, k, v = (x[context : context + tokens] for x in qkv)
    return sequence, context, q, k, v


def mate_parts(step: int) -> list[tuple[int, int, int]]:
    """(sequence, context, tokens) of the three mates in a step."""
    if step == 0:
        return [(1, 0, 5), (2, 0, 600), (3, 0, 1)]
    return [(1, 4 + step, 1), (2, 599 + step, 1), (3, 1 + 30 * (step - 1), 30)]


@pytest.mark.parametrize("isa", ISAS)
def test_decode_shared_out_over_threads(isa: str) -> None:
    """One long row: its splits fall to different threads, which must merge to the bits of one thread."""
    case = Case(heads=3, kv_heads=1)
    q, k, v = make_qkv(case, 1901, 4)
    results = []
    for threads in (1, 2, 3, 5):
        attention = Attention(case, isa, threads)
        prefill(attention, q, k, v, [1900])
        results.append(attention.step([(0, 1900, q[1900:], k[1900:], v[1900:])])[0])
    for other in results[1:]:
        assert np.array_equal(other.view(np.int32), results[0].view(np.int32))


PARTIES = [
    Case(),
    Case(heads=14, kv_heads=2, block_size=48),
    Case(heads=4, kv_heads=4, head_dim=80),
    Case(heads=3, kv_heads=1, sinks=True, softcap=20.0),
    Case(heads=4, kv_heads=2, window=700),
    Case(dtype="f32"),
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", PARTIES, ids=str)
def test_rows_that_share_a_prefix_have_the_bits_of_rows_alone(case: Case, isa: str) -> None:
    """Rows of one token in the same first blocks are computed together; others, and prompts, stand among them."""
    shared, block = 1152, case.block_size
    base = make_qkv(case, shared, 20)
    ends = [make_qkv(case, 1300, 30 + i) for i in range(6)]
    # Tokens of a row behind the shared ones; the third shares fewer blocks, the sixth none.
    own = [1, 40, 30, 500, 17, 90]
    common = [shared, shared, 576, shared, shared, 0]
    whole = []
    for end, n, c in zip(ends, own, common, strict=True):
        whole.append(
            [
                np.concatenate([b[:c], e[: shared - c], e[100 : 100 + n]])
                for b, e in zip(base, end, strict=True)
            ]
        )

    def outputs(threads: int, together: bool) -> list[F32]:
        attention = Attention(case, isa, threads, rows=6)
        for i, (c, (q, k, v)) in enumerate(zip(common, whole, strict=True)):
            attention.tables[i, : c // block] = attention.tables[0, : c // block]
            prefill(attention, q, k, v, [shared, len(q) - shared], i)
        parts = []
        for i, (q, k, v) in enumerate(whole):
            at = len(q) - (3 if i == 4 else 1)  # the fifth is a piece of a prompt
            parts.append((i, at, q[at:], k[at:], v[at:]))
        return attention.step(parts) if together else [attention.step([part])[0] for part in parts]

    alone = outputs(1, together=False)
    for threads in (1, 2, 5):
        for got, want in zip(outputs(threads, together=True), alone, strict=True):
            assert np.isfinite(want).all()
            assert np.array_equal(got.view(np.int32), want.view(np.int32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_kv_layout(isa: str, dtype: str) -> None:
    case = Case(heads=2, kv_heads=2, head_dim=32, dtype=dtype)
    _, k, v = make_qkv(case, 21, 6)
    attention = Attention(case, isa, 2)
    q = np.zeros((21, 64), np.float32)
    prefill(attention, q, k, v, [5, 1, 15])
    item = np.uint16 if dtype == "bf16" else np.uint32
    pool = attention.runner.program.kv()
    for position in range(21):
        block = pool[attention.tables[0, position // 16]].view(item).reshape(2, 2, 2, 512)[1]
        for head in range(2):
            want_k, want_v = (x[position, head * 32 : head * 32 + 32] for x in (k, v))
            slot = position % 16
            if dtype == "bf16":
                got_k = block[head, 0].reshape(16, 16, 2)[:, slot].reshape(-1)
                got_v = block[head, 1].reshape(8, 32, 2)[slot // 2, :, slot % 2]
                assert np.array_equal(got_k, to_bf16(want_k).view(np.uint32) >> 16)
                assert np.array_equal(got_v, to_bf16(want_v).view(np.uint32) >> 16)
            else:
                assert np.array_equal(block[head, 0].reshape(32, 16)[:, slot].view(np.float32), want_k)
                assert np.array_equal(block[head, 1].reshape(16, 32)[slot].view(np.float32), want_v)
    # Layer 0 of the block is untouched.
    assert (pool[attention.tables[0, 0]].reshape(2, -1)[0] == 0xFF).all()


def test_refuses_what_it_cannot_do() -> None:
    runner = OpRunner(ISAS[0])
    q, y, narrow = runner.buffer(96), runner.buffer(96), runner.buffer(32)
    shape: dict[str, Any] = {"group": 0, "index": 0, "dtype": "bf16", "scale": 1.0}
    attend = runner.program.attend
    with pytest.raises(ValueError, match="multiple of 16"):
        attend("a", q, y, heads=4, kv_heads=2, head_dim=24, **shape)
    with pytest.raises(ValueError, match="multiple of kv_heads"):
        attend("a", q, y, heads=3, kv_heads=2, head_dim=32, **shape)
    with pytest.raises(ValueError, match="heads x head_dim"):
        attend("a", q, y, heads=4, kv_heads=2, head_dim=32, **shape)
    with pytest.raises(ValueError, match="differ"):
        attend("a", q, narrow, heads=3, kv_heads=1, head_dim=32, **shape)
    with pytest.raises(ValueError, match="scale"):
        attend("a", q, y, heads=3, kv_heads=1, head_dim=32, **{**shape, "scale": 0.0})
    with pytest.raises(ValueError, match="sinks"):
        attend("a", q, y, heads=3, kv_heads=1, head_dim=32, sinks=np.zeros(2, np.float32), **shape)
    with pytest.raises(ValueError, match="KV group"):
        attend("a", q, y, heads=3, kv_heads=1, head_dim=32, **{**shape, "group": 1})
    with pytest.raises(ValueError, match="KV dtype"):
        attend("a", q, y, heads=3, kv_heads=1, head_dim=32, **{**shape, "dtype": "int8"})
