"""Reference sampler: SamplingBatch row by row in numpy float64. The oracle of the native sampler.

Order: raw log-probabilities; mask; bias; penalties; temperature; min_p; top_k; top_p; the draw.
A row with a mask and nothing else that cuts or edits draws without the mask first (`draws_first`).
Ties go to the lower token id everywhere. A row whose logits hold NaN or +inf, or in which nothing is
left to draw from, gives token -1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.executors.base import F32, I32, SamplingBatch, StepBatch, StepOutput

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

# Philox 4x32: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
COLDEST = 1e-5  # lower temperatures are greedy: 1 / T would overflow


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32 with 10 rounds."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _WORD, (p0 >> 32) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


SECOND_DRAW = 1 << 62  # added to the position: the counter of a draw after one that the mask did not allow


def uniform(seed: int, position: int) -> float:
    """In [0, 1): the top 53 bits of the first two words for counter `position` and key `seed`."""
    high, low, _, _ = philox((position & _WORD, position >> 32, 0, 0), (seed & _WORD, seed >> 32))
    return ((high << 32 | low) >> 11) * 2.0**-53


def unpack_bits(words: npt.NDArray[np.uint32], size: int) -> npt.NDArray[np.bool_]:
    """[size]; bit i of word w stands for index 32 w + i."""
    return np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")[:size].astype(bool)


def log_softmax(x: F64) -> F64:
    shifted = x - x.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def best_first(x: F64, count: int) -> I64:
    """Indices of the `count` largest, largest first, ties by lower index."""
    if count == 0 or count >= len(x):
        return np.argsort(-x, kind="stable")[:count]
    least = np.partition(x, len(x) - count)[len(x) - count]
    candidates = np.flatnonzero(x >= least)
    return candidates[np.argsort(-x[candidates], kind="stable")][:count]


def rank_of(x: F64, token: int) -> int:
    """1 + better tokens + equal ones of lower id."""
    return 1 + int((x > x[token]).sum()) + int((x[:token] == x[token]).sum())


def processed(logits: F64, s: SamplingBatch, row: int) -> F64:
    """Logits after mask, bias and penalties."""
    x = logits.copy()
    if s.mask_row[row] >= 0:
        x[~unpack_bits(s.masks[s.mask_row[row]], len(x))] = -np.inf
    chosen = slice(s.bias_start[row], s.bias_start[row + 1])
    np.add.at(x, s.bias_ids[chosen], s.bias_values[chosen].astype(np.float64))
    if s.penalty_row[row] < 0:
        return x
    counts = s.counts[s.penalty_row[row]]
    known = unpack_bits(s.seen[s.penalty_row[row]], len(x)) | (counts > 0)
    repetition = float(s.repetition[row])
    x[known] = np.where(x[known] > 0, x[known] / repetition, x[known] * repetition)
    return np.asarray(x - float(s.frequency[row]) * counts - float(s.presence[row]) * (counts > 0))


def candidates(x: F64, s: SamplingBatch, row: int) -> I64:
    """Ids that min_p, top_k and top_p leave, ascending; x after temperature."""
    alive = np.flatnonzero(x > -np.inf)
    if s.min_p[row] > 0:
        alive = alive[x[alive] >= x[alive].max() + np.log(float(s.min_p[row]))]
    top_k, top_p = int(s.top_k[row]), float(s.top_p[row])
    if 0 < top_k < len(alive):
        alive = np.sort(alive[best_first(x[alive], top_k)])
    if top_p < 1:
        order = np.argsort(-x[alive], kind="stable")
        p = np.exp(x[alive] - x[alive].max())
        reached = np.cumsum(p[order]) >= top_p * p.sum()
        keep = int(np.argmax(reached)) + 1 if reached.any() else len(order)
        alive = np.sort(alive[order[:keep]])
    return alive


def draw(x: F64, ids: I64, u: float) -> int:
    """Inverse of the cumulative distribution over `ids` in ascending order."""
    total = np.cumsum(np.exp(x[ids] - x[ids].max()))
    place = int(np.searchsorted(total, u * total[-1], side="right"))
    return int(ids[min(place, len(ids) - 1)])


def draws_first(s: SamplingBatch, row: int) -> bool:
    """Whether the row draws without its mask first, and with it only where that token is not allowed.

    The distribution is the same (rejection sampling), and for a greedy row the token: most masks of a grammar need not
    be made then. Not where something is cut or edited after the mask, or log-probabilities are of what it leaves.
    """
    is_greedy = s.temperature[row] < COLDEST
    return (
        s.mask_row[row] >= 0
        and s.bias_start[row + 1] == s.bias_start[row]
        and s.penalty_row[row] < 0
        and (is_greedy or (s.top_k[row] <= 0 and s.top_p[row] >= 1 and s.min_p[row] <= 0))
        and not (s.processed_logprobs and s.num_logprobs[row] >= 0)
    )


def sample_row(logits: F64, s: SamplingBatch, row: int) -> tuple[int, F64]:
    """(token, the logits that its log-probabilities are taken from)."""
    if np.isnan(logits).any() or np.isposinf(logits).any() or np.isneginf(logits).all():
        return -1, logits
    temperature, position = float(s.temperature[row]), int(s.position[row])
    if draws_first(s, row):
        if temperature < COLDEST:
            token = int(np.argmax(logits))
        else:
            x = logits / temperature
            token = draw(x, np.flatnonzero(x > -np.inf), uniform(int(s.seed[row]), position))
        if unpack_bits(s.masks[s.mask_row[row]], len(logits))[token]:
            return token, logits
        position += SECOND_DRAW
    x = processed(logits, s, row)
    if np.isneginf(x).all():
        return -1, logits
    if temperature < COLDEST:
        return int(np.argmax(x)), x if s.processed_logprobs else logits
    x = x / temperature
    ids = candidates(x, s, row)
    token = draw(x, ids, uniform(int(s.seed[row]), position))
    if not s.processed_logprobs:
        return token, logits
    kept = np.full_like(x, -np.inf)
    kept[ids] = x[ids]
    return token, kept


def finish_step(logits: F32, batch: StepBatch) -> StepOutput:
    """`logits` [S + P, vocab]: rows that sample, then rows that score."""
    s, rows, positions = batch.sampling, len(batch.sample_tokens), len(batch.score_tokens)
    wide = max([0, *(int(n) for n in s.num_logprobs[:rows])])
    out = StepOutput(
        token_ids=np.full(rows, -1, np.int32),
        logprobs=np.zeros(rows, np.float32),
        ranks=np.zeros(rows, np.int32),
        top_ids=np.full((rows, wide), -1, np.int32),
        top_logprobs=np.full((rows, wide), -np.inf, np.float32),
        score_logprobs=np.full(positions, -np.inf, np.float32),
        score_ranks=np.zeros(positions, np.int32),
        score_top_ids=np.full((positions, batch.score_top), -1, np.int32),
        score_top_logprobs=np.full((positions, batch.score_top), -np.inf, np.float32),
        chosen_logprobs=np.full(len(s.chosen_ids), -np.inf, np.float32),
    )
    for row in range(rows):
        token, source = sample_row(logits[row].astype(np.float64), s, row)
        out.token_ids[row] = token
        if token < 0 or s.num_logprobs[row] < 0:
            continue
        logprobs = source if s.reports_logits else log_softmax(source)
        out.logprobs[row], out.ranks[row] = logprobs[token], rank_of(logprobs, token)
        _write_best(logprobs, int(s.num_logprobs[row]), out.top_ids[row], out.top_logprobs[row])
        if len(s.chosen_ids):
            chosen = slice(s.chosen_start[row], s.chosen_start[row + 1])
            out.chosen_logprobs[chosen] = logprobs[s.chosen_ids[chosen]]
    for p in range(positions):
        source, target = logits[rows + p].astype(np.float64), int(batch.score_targets[p])
        logprobs = source if s.reports_logits else log_softmax(source)
        out.score_logprobs[p], out.score_ranks[p] = logprobs[target], rank_of(logprobs, target)
        _write_best(logprobs, batch.score_top, out.score_top_ids[p], out.score_top_logprobs[p])
    return out


def _write_best(logprobs: F64, count: int, ids: I32, values: F32) -> None:
    best = best_first(logprobs, count)
    best = best[logprobs[best] > -np.inf]
    ids[: len(best)], values[: len(best)] = best, logprobs[best]
