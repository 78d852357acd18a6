"""The native sampler against a plain numpy one that sorts everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from octavo.executors.base import SamplingBatch
from octavo.executors.torch_executor.sampler import sample_row
from octavo.kernels import _native as native

F32 = npt.NDArray[np.float32]
ISAS: list[str] = native.available_isas()
VOCABS = [5, 64, 1000, 49152]


def batch(rows: int, vocab: int, **fields: Any) -> SamplingBatch:
    """Greedy rows without logprobs, but for `fields` (scalars are spread over the rows)."""
    words = -(-vocab // 32)

    def column(name: str, default: float, dtype: Any) -> npt.NDArray[Any]:
        return np.ascontiguousarray(np.broadcast_to(np.asarray(fields.pop(name, default), dtype), (rows,)))

    made = SamplingBatch(
        temperature=column("temperature", 0, np.float32),
        top_k=column("top_k", 0, np.int32),
        top_p=column("top_p", 1, np.float32),
        min_p=column("min_p", 0, np.float32),
        seed=column("seed", 0, np.uint64),
        position=column("position", 0, np.int64),
        repetition=column("repetition", 1, np.float32),
        presence=column("presence", 0, np.float32),
        frequency=column("frequency", 0, np.float32),
        penalty_row=column("penalty_row", -1, np.int32),
        counts=fields.pop("counts", np.zeros((0, vocab), np.int32)),
        seen=fields.pop("seen", np.zeros((0, words), np.uint32)),
        bias_start=fields.pop("bias_start", np.zeros(rows + 1, np.int32)),
        bias_ids=fields.pop("bias_ids", np.zeros(0, np.int32)),
        bias_values=fields.pop("bias_values", np.zeros(0, np.float32)),
        mask_row=column("mask_row", -1, np.int32),
        masks=fields.pop("masks", np.zeros((0, words), np.uint32)),
        num_logprobs=column("num_logprobs", -1, np.int32),
        processed_logprobs=fields.pop("processed_logprobs", False),
        reports_logits=fields.pop("reports_logits", False),
        chosen_start=fields.pop("chosen_start", np.zeros(0, np.int32)),
        chosen_ids=fields.pop("chosen_ids", np.zeros(0, np.int32)),
    )
    assert not fields, fields
    return made


def bits_of(allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    padded = np.zeros((len(allowed), -(-allowed.shape[1] // 32) * 32), np.uint8)
    padded[:, : allowed.shape[1]] = allowed
    words: npt.NDArray[np.uint32] = np.packbits(padded, axis=1, bitorder="little").view(np.uint32)
    return words


def bools_of(words: npt.NDArray[np.uint32], vocab: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:vocab].astype(bool)


def order_of(x: F32) -> npt.NDArray[np.int64]:
    """Ids by larger logit, then lower id, without those at -inf."""
    order = np.lexsort((np.arange(len(x)), -x.astype(np.float64)))
    return order[x[order] > -np.inf]


def edited(b: SamplingBatch, r: int, logits: F32) -> F32:
    x = logits.copy()
    if b.mask_row[r] >= 0:
        x[~bools_of(b.masks[b.mask_row[r]], len(x))] = -np.inf
    for j in range(b.bias_start[r], b.bias_start[r + 1]):
        x[b.bias_ids[j]] += b.bias_values[j]
    if b.penalty_row[r] >= 0:
        counts = b.counts[b.penalty_row[r]]
        known = bools_of(b.seen[b.penalty_row[r]], len(x)) | (counts > 0)
        x = np.where(known, np.where(x > 0, x / b.repetition[r], x * b.repetition[r]), x)
        x = (
            x
            - b.frequency[r] * counts.astype(np.float32)
            - np.where(counts > 0, b.presence[r], np.float32(0))
        )
    return x


def kept(b: SamplingBatch, r: int, x: F32) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Ids in order and their probabilities."""
    order = order_of(x)
    temperature = float(b.temperature[r]) or 1.0
    weights = np.exp((x[order].astype(np.float64) - float(x[order[0]])) / temperature)
    if b.temperature[r] > 0:
        n = int(np.count_nonzero(weights >= b.min_p[r])) if b.min_p[r] > 0 else len(order)
        if b.top_k[r] > 0:
            n = min(n, int(b.top_k[r]))
        if b.top_p[r] < 1:
            share = np.cumsum(weights[:n]) / weights[:n].sum()
            n = min(n, int(np.searchsorted(share, float(b.top_p[r]))) + 1)
        order, weights = order[:n], weights[:n]
    return order, weights / weights.sum()


def reference(
    b: SamplingBatch, r: int, logits: F32
) -> tuple[int, float, int, list[tuple[int, float]], dict[int, float]]:
    """Token, logprob, rank, the best with their logprobs, and those of every token that can be drawn."""
    x = edited(b, r, logits)
    order, p = kept(b, r, x)
    if b.temperature[r] == 0:
        token = int(order[0])
    else:
        by_id = np.argsort(order)
        share = np.cumsum(p[by_id])
        uniform = native.philox_uniform(int(b.seed[r]), int(b.position[r]))
        token = int(
            order[by_id[min(int(np.searchsorted(share, uniform * share[-1], side="right")), len(order) - 1)]]
        )
    if b.processed_logprobs:
        shown, logprobs = order, np.log(p)
        if b.reports_logits:
            logprobs = x[order].astype(np.float64) / (float(b.temperature[r]) or 1.0)
    elif b.reports_logits:
        shown = order_of(logits)
        logprobs = logits[shown].astype(np.float64)
    else:
        shown = order_of(logits)
        top = float(logits[shown[0]])
        logprobs = logits[shown].astype(np.float64) - top
        logprobs -= np.log(np.exp(logprobs).sum())
    at = int(np.flatnonzero(shown == token)[0])
    every = {int(i): float(v) for i, v in zip(shown, logprobs, strict=True)}
    best = list(every.items())[: max(int(b.num_logprobs[r]), 0)]
    return token, float(logprobs[at]), at + 1, best, every


def check(b: SamplingBatch, logits: F32, isa: str) -> npt.NDArray[np.int32]:
    ids: npt.NDArray[np.int32]
    ids, logprobs, ranks, top_ids, top_logprobs, chosen = native.sample(logits, b, isa)
    for r in range(len(logits)):
        token, logprob, rank, best, every = reference(b, r, logits[r])
        assert ids[r] == token, r
        if b.num_logprobs[r] < 0:
            continue
        assert ranks[r] == rank, r
        np.testing.assert_allclose(logprobs[r], logprob, atol=3e-5)
        assert top_ids[r, : len(best)].tolist() == [i for i, _ in best]
        np.testing.assert_allclose(top_logprobs[r, : len(best)], [v for _, v in best], atol=3e-5)
        assert (top_ids[r, len(best) :] == -1).all()
        if len(b.chosen_ids):
            mine = slice(b.chosen_start[r], b.chosen_start[r + 1])
            want = [every.get(i, -np.inf) for i in b.chosen_ids[mine].tolist()]
            np.testing.assert_allclose(chosen[mine], want, atol=3e-5, rtol=2e-6)
    return ids


def make_logits(rows: int, vocab: int, seed: int, scale: float = 3.0) -> F32:
    return (np.random.default_rng(seed).normal(size=(rows, vocab)) * scale).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", VOCABS)
def test_greedy(vocab: int, isa: str) -> None:
    check(batch(6, vocab, num_logprobs=[-1, 0, 1, 5, 20, 3]), make_logits(6, vocab, 1), isa)


FILTERS: list[dict[str, Any]] = [
    {},
    {"top_k": 1},
    {"top_k": 40, "top_p": 0.95},
    {"top_k": 3},
    {"top_k": 2000},
    {"top_k": 100000, "top_p": 0.5},
    {"top_p": 0.9},
    {"top_p": 0.0},
    {"top_p": 0.999, "temperature": 1.5},
    {"top_p": 0.97, "temperature": 30.0},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"min_p": 0.02, "top_p": 0.9},
    {"min_p": 0.001, "top_p": 0.99, "temperature": 8.0},
    {"min_p": 0.02, "top_p": 0.9, "top_k": 30},
    {"temperature": 0.05},
    {"temperature": 1e-7},
]


WARM = [f for f in FILTERS if f.get("temperature", 1.0) > 1e-5]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_draw(filters: dict[str, Any], vocab: int, isa: str) -> None:
    rows = 2 if vocab > 10000 else 16
    fields: dict[str, Any] = {
        "temperature": 0.9,
        "seed": np.arange(rows) + 7,
        "position": np.arange(rows) * 3,
        "num_logprobs": 3,
    } | filters
    if fields["temperature"] < 1e-5:
        fields["temperature"] = 0.0  # what so cold a row is
    check(batch(rows, vocab, **fields), make_logits(rows, vocab, 2), isa)
    check(batch(rows, vocab, processed_logprobs=True, **fields), make_logits(rows, vocab, 3), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("filters", WARM, ids=str)
def test_candidate_sets(filters: dict[str, Any], isa: str) -> None:
    """Many draws of one distribution give every kept token and no other."""
    vocab, rows = 30, 3000
    logits = np.repeat(make_logits(1, vocab, 4, 1.0), rows, axis=0)
    b = batch(rows, vocab, **{"temperature": 1.0, "seed": 5, "position": np.arange(rows)} | filters)
    ids = native.sample(logits, b, isa)[0]
    order, p = kept(b, 0, logits[0])
    assert set(ids.tolist()) <= set(order.tolist())
    assert set(order[p > 0.01].tolist()) <= set(ids.tolist())
    # Chi-square with a bound far beyond chance (seeds are fixed).
    often = p * rows >= 5
    observed = np.array([(ids == i).sum() for i in order])
    chi = float((((observed - p * rows) ** 2) / (p * rows))[often].sum())
    assert chi < 3 * max(1, often.sum()) + 10


@pytest.mark.parametrize("isa", ISAS)
def test_ties_go_to_the_lower_id(isa: str) -> None:
    logits = np.zeros((1, 3000), np.float32)
    logits[0, [2990, 70, 71, 2000]] = 1
    ids, _, ranks, top_ids, *_ = native.sample(logits, batch(1, 3000, num_logprobs=6), isa)
    assert ids.tolist() == [70] and ranks.tolist() == [1]
    assert top_ids.tolist() == [[70, 71, 2000, 2990, 0, 1]]
    rows = 60
    many = np.repeat(logits, rows, axis=0)
    fields: dict[str, Any] = {"temperature": 1.0, "position": np.arange(rows)}
    assert set(native.sample(many, batch(rows, 3000, top_k=2, **fields), isa)[0].tolist()) == {70, 71}
    assert set(native.sample(many, batch(rows, 3000, top_p=1e-9, **fields), isa)[0].tolist()) == {70}
    check(batch(rows, 3000, top_p=0.5, **fields), many, isa)  # cuts inside 2,996 equal logits
    check(batch(rows, 3000, top_k=1500, num_logprobs=2000, **fields), many, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", [33, 49152])
@pytest.mark.parametrize("processed", [False, True])
def test_edits(processed: bool, vocab: int, isa: str) -> None:
    rng = np.random.default_rng(6)
    rows = 8
    counts = (rng.random((3, vocab)) < 0.2).astype(np.int32) * rng.integers(1, 4, (3, vocab), dtype=np.int32)
    b = batch(
        rows,
        vocab,
        temperature=[0, 0, 0, 0.8, 0.8, 0.8, 1.2, 0],
        top_p=[1, 1, 1, 1, 0.9, 0.9, 0.99, 1],
        top_k=[0, 0, 0, 0, 0, 20, 0, 0],
        seed=np.arange(rows),
        position=11,
        repetition=1.3,
        presence=0.4,
        frequency=0.2,
        penalty_row=[0, 1, -1, 2, 0, 1, 2, -1],
        counts=counts,
        seen=bits_of(rng.random((3, vocab)) < 0.3),
        bias_start=np.array([0, 2, 2, 5, 5, 5, 5, 6, 6], np.int32),
        bias_ids=np.array([3, 30, 0, 1, 2, 9], np.int32),
        bias_values=np.array([9, -np.inf, 1, -2, 30, -np.inf], np.float32),
        mask_row=[-1, 0, -1, 1, 0, -1, 1, 0],
        masks=bits_of(rng.random((2, vocab)) < 0.5),
        num_logprobs=4,
        processed_logprobs=processed,
    )
    check(b, make_logits(rows, vocab, 7), isa)


SHOWN = [{"processed_logprobs": p, "reports_logits": x} for p in (False, True) for x in (False, True)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", [33, 49152])
@pytest.mark.parametrize("shown", SHOWN, ids=str)
def test_what_logprobs_are(shown: dict[str, bool], vocab: int, isa: str) -> None:
    """All four modes, of the drawn token, the best and chosen ones: kept, filtered, banned and repeated."""
    rng = np.random.default_rng(12)
    rows = 8
    chosen_start = np.r_[0, np.cumsum([3, 0, 4, 1, 6, 0, 2, 3])].astype(np.int32)
    b = batch(
        rows,
        vocab,
        temperature=[0, 0, 0.5, 0.8, 0.8, 1.3, 1.2, 0],
        top_p=[1, 1, 1, 1, 0.6, 0.9, 0.5, 1],
        top_k=[0, 0, 3, 0, 0, 20, 0, 0],
        min_p=[0, 0, 0, 0.3, 0, 0, 0, 0],
        seed=np.arange(rows),
        position=5,
        repetition=1.3,
        penalty_row=[0, -1, 0, -1, 0, -1, 0, -1],
        counts=(rng.random((1, vocab)) < 0.3).astype(np.int32),
        seen=bits_of(rng.random((1, vocab)) < 0.3),
        bias_start=np.array([0, 1, 1, 2, 2, 2, 2, 2, 3], np.int32),
        bias_ids=np.array([5, 6, 7], np.int32),
        bias_values=np.array([-np.inf, -np.inf, 50], np.float32),
        num_logprobs=[3, 2, 0, 0, 1, 0, 0, 0],
        chosen_start=chosen_start,
        chosen_ids=np.r_[5, 5, 6, rng.integers(0, vocab, chosen_start[-1] - 3)].astype(np.int32),
        **shown,
    )
    check(b, make_logits(rows, vocab, 13), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_chosen_ids_of_a_row_that_cannot_be_drawn_are_minus_infinity(isa: str) -> None:
    logits = make_logits(2, 50, 14)
    logits[0, 3] = np.nan
    b = batch(2, 50, num_logprobs=0, chosen_start=np.array([0, 2, 4], np.int32))
    b.chosen_ids = np.array([1, 2, 49, 50], np.int32)
    chosen = native.sample(logits, b, isa)[5]
    assert np.isneginf(chosen).tolist() == [True, True, False, True]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "fields",
    [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.3}, {"temperature": 1.0, "top_k": 5}],
    ids=str,
)
def test_one_or_none_left(fields: dict[str, Any], isa: str) -> None:
    allowed = np.zeros((2, 700), bool)
    allowed[0, 699] = True
    b = batch(
        3, 700, mask_row=[0, 1, -1], masks=bits_of(allowed), num_logprobs=2, processed_logprobs=True, **fields
    )
    ids, logprobs, ranks, top_ids, *_ = native.sample(make_logits(3, 700, 8), b, isa)
    assert ids[0] == 699 and abs(logprobs[0]) < 1e-6 and ranks[0] == 1 and top_ids[0].tolist() == [699, -1]
    assert ids[1] == -1 and ranks[1] == 0 and top_ids[1].tolist() == [-1, -1]
    assert ids[2] >= 0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bad_logits_are_a_fault_of_their_row(temperature: float, isa: str) -> None:
    logits = make_logits(4, 500, 9)
    want = native.sample(logits, batch(4, 500, temperature=temperature), isa)[0]
    logits[0, 3], logits[2, 499] = np.nan, np.inf
    ids = native.sample(logits, batch(4, 500, temperature=temperature), isa)[0]
    assert ids.tolist() == [-1, want[1], -1, want[3]]


@pytest.mark.parametrize("isa", ISAS)
def test_rows_do_not_see_each_other(isa: str) -> None:
    rows, vocab = 12, 5000
    logits = make_logits(rows, vocab, 10)
    fields: dict[str, Any] = {
        "temperature": [0, 0.7, 1.5] * 4,
        "top_p": [1, 0.9, 0.999, 0.5] * 3,
        "top_k": [0, 0, 50] * 4,
        "seed": np.arange(rows),
        "position": 100 + np.arange(rows),
        "num_logprobs": 5,
    }
    chosen = {
        "chosen_start": np.arange(rows + 1, dtype=np.int32),
        "chosen_ids": np.arange(rows, dtype=np.int32) * 7,
    }
    together = native.sample(logits, batch(rows, vocab, **fields, **chosen), isa)
    for r in range(rows):
        one = {k: np.asarray(v)[r : r + 1] if np.ndim(v) else v for k, v in fields.items()}
        ids = chosen["chosen_ids"][r : r + 1].copy()
        one |= {"chosen_start": np.array([0, 1], np.int32), "chosen_ids": ids}
        alone = native.sample(logits[r : r + 1], batch(1, vocab, **one), isa)
        for a, t in zip(alone, together, strict=True):
            assert np.array_equal(a[0], t[r])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", [40, 49152])
def test_score(vocab: int, isa: str) -> None:
    logits = make_logits(5, vocab, 11)
    logits[1] = np.round(logits[1])  # ties
    targets = np.array([0, vocab - 1, 7, int(logits[3].argmax()), 20], np.int32)
    logprobs, ranks, top_ids, top_logprobs = native.score(logits, targets, 4, isa)
    for r in range(5):
        order = order_of(logits[r])
        x = logits[r].astype(np.float64)
        want = x - x.max() - np.log(np.exp(x - x.max()).sum())
        assert abs(logprobs[r] - want[targets[r]]) < 3e-5
        assert ranks[r] == int(np.flatnonzero(order == targets[r])[0]) + 1
        assert top_ids[r].tolist() == order[:4].tolist()
        np.testing.assert_allclose(top_logprobs[r], want[order[:4]], atol=3e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_score_of_logits(isa: str) -> None:
    logits = make_logits(3, 300, 15)
    targets = np.array([0, 299, 7], np.int32)
    values, ranks, top_ids, top_values = native.score(logits, targets, 4, isa, True)
    assert values.tolist() == logits[np.arange(3), targets].tolist()
    assert ranks.tolist() == native.score(logits, targets, 4, isa)[1].tolist()
    assert top_values.tolist() == [row[ids].tolist() for row, ids in zip(logits, top_ids, strict=True)]


def philox_words(seed: int, position: int) -> Sequence[int]:
    """Philox4x32-10 in Python integers."""
    c = [position & 0xFFFFFFFF, position >> 32, 0, 0]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def test_philox() -> None:
    # Known answer of the Random123 distribution: counter 0, key 0.
    assert [hex(w) for w in philox_words(0, 0)] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    for seed, position in [(0, 0), (2**64 - 1, 2**40 + 5), (123456789, 77)]:
        words = philox_words(seed, position)
        assert native.philox_uniform(seed, position) == ((words[0] << 32 | words[1]) >> 11) * 2.0**-53


def test_refuses_wrong_shapes() -> None:
    logits = make_logits(2, 40, 12)
    good = batch(2, 40)
    good.top_k = np.zeros(3, np.int32)
    with pytest.raises(ValueError, match="top_k"):
        native.sample(logits, good, ISAS[0])
    astray = batch(2, 40, chosen_start=np.array([0, 1, 3], np.int32), chosen_ids=np.zeros(2, np.int32))
    with pytest.raises(ValueError, match="row 1 points outside chosen_ids"):
        native.sample(logits, astray, ISAS[0])
    bad = batch(2, 40, mask_row=0)
    with pytest.raises(ValueError, match="outside"):
        native.sample(logits, bad, ISAS[0])


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("isa", ISAS)
def test_a_row_that_draws_before_its_mask_has_the_distribution_of_the_mask(
    temperature: float, isa: str
) -> None:
    """Tokens are those of the reference, one by one; their frequencies those of the softmax over what is allowed."""
    rng = np.random.default_rng(5)
    rows, vocab = 4000, 40
    one = rng.standard_normal(vocab).astype(np.float32) * 2
    allowed = rng.random(vocab) < 0.4
    allowed[int(np.argmax(one))] = False  # a greedy row is refused at first
    logits = np.tile(one, (rows, 1))
    fields = batch(
        rows, vocab, temperature=temperature, seed=np.arange(rows), mask_row=0, masks=bits_of(allowed[None])
    )
    tokens = native.sample(logits, fields, isa)[0]
    expected = [sample_row(one.astype(np.float64), fields, row)[0] for row in range(300)]
    assert tokens[:300].tolist() == expected
    assert allowed[tokens].all()
    if temperature == 0:
        assert (tokens == np.flatnonzero(allowed)[np.argmax(one[allowed])]).all()
        return
    p = np.where(allowed, np.exp((one - one.max()) / temperature), 0)
    p /= p.sum()
    found = np.bincount(tokens, minlength=vocab)
    assert (np.abs(found - rows * p) <= 5 * np.sqrt(rows * p * (1 - p)) + 1).all()
