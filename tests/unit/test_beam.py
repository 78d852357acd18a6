"""Beam search on a tiny scripted model: against brute force, and against the same rule written the long way."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence

import pytest

from octavo.api.beam import MAX_WIDTH, BeamRules, BeamSearch, BeamSearchParams, Hypothesis
from octavo.errors import InvalidRequest
from octavo.wire.messages import FinishReason, TokenLogprobs
from octavo.wire.sampling import SamplingParams

Model = Callable[[Sequence[int]], list[float]]  # tokens so far -> log-probability of each next token
EOS = 0


def scripted(seed: int, vocab: int) -> Model:
    """A distribution that is a function of the seed and of the whole history."""

    def model(tokens: Sequence[int]) -> list[float]:
        rng = random.Random(f"{seed} {list(tokens)}")
        logits = [rng.gauss(0, 1.5) for _ in range(vocab)]
        total = math.log(sum(map(math.exp, logits)))
        return [x - total for x in logits]

    return model


def row(model: Model, tokens: Sequence[int], count: int) -> TokenLogprobs:
    logprobs = model(tokens)
    ids = sorted(range(len(logprobs)), key=lambda i: -logprobs[i])[:count]
    return TokenLogprobs(ids[0], logprobs[ids[0]], 1, ids, [logprobs[i] for i in ids])


def searched(model: Model, rules: BeamRules) -> list[Hypothesis]:
    search = BeamSearch(rules)
    rounds = 0
    while not search.is_over:
        opened = search.open()
        assert all(len(tokens) == rounds for tokens in opened)
        assert len({tuple(tokens) for tokens in opened}) == len(opened) <= rules.width
        search.advance([row(model, tokens, rules.num_scores) for tokens in opened])
        rounds += 1
    assert rounds <= rules.max_tokens
    return search.best()


def rules(width: int, max_tokens: int, penalty: float = 1.0, vocab: int = 4, **more: object) -> BeamRules:
    ends: dict[int, int | None] = {EOS: None}
    return BeamRules(width, max_tokens, penalty, **{"ends": ends, "vocab_size": vocab, **more})  # type: ignore[arg-type]


def logprob(model: Model, tokens: Sequence[int]) -> float:
    return sum(model(tokens[:i])[token] for i, token in enumerate(tokens))


def every_answer(model: Model, vocab: int, depth: int, min_tokens: int = 0) -> dict[tuple[int, ...], float]:
    """All sequences that end at EOS or at `depth`."""
    found = {}
    for length in range(1, depth + 1):
        for tokens in itertools.product(range(vocab), repeat=length):
            ends = tokens[-1] == EOS
            if EOS in tokens[:-1] or (ends and length <= min_tokens) or not (ends or length == depth):
                continue
            found[tokens] = logprob(model, tokens)
    return found


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("min_tokens", [0, 2])
@pytest.mark.parametrize("seed", range(6))
def test_a_width_that_holds_everything_finds_the_best_of_all(
    seed: int, min_tokens: int, penalty: float
) -> None:
    model, depth, vocab = scripted(seed, 4), 4, 4
    everything = every_answer(model, vocab, depth, min_tokens)
    wide = BeamRules(400, depth, penalty, {EOS: None}, min_tokens, vocab_size=vocab)
    found = searched(model, wide)
    ranked = sorted(everything, key=lambda t: -everything[t] / len(t) ** penalty)
    assert [tuple(h.token_ids) for h in found] == ranked
    for hypothesis in found:
        tokens = tuple(hypothesis.token_ids)
        assert hypothesis.logprob == pytest.approx(everything[tokens])
        assert hypothesis.score == pytest.approx(everything[tokens] / len(tokens) ** penalty)
        assert hypothesis.finish == (FinishReason.STOP if tokens[-1] == EOS else FinishReason.LENGTH)


def the_long_way(
    model: Model, width: int, depth: int, penalty: float, ends: set[int], min_tokens: int
) -> list[tuple[list[int], float]]:
    """The rule of octavo.api.beam on whole lists and the whole vocabulary."""
    running: list[tuple[list[int], float]] = [([], 0.0)]
    done: list[tuple[list[int], float]] = []
    for length in range(1, depth + 1):
        options = [
            ([*tokens, token], total + score)
            for tokens, total in running
            for token, score in enumerate(model(tokens))
            if not (token in ends and length <= min_tokens)
        ]
        options.sort(key=lambda option: -option[1])
        top = options[:width]
        done += [(t, total / length**penalty) for t, total in top if t[-1] in ends or length == depth]
        done = sorted(done, key=lambda d: -d[1])[:width]
        running = [o for o in options if o[0][-1] not in ends][:width]
        if len(done) == width and running[0][1] / length**penalty <= done[-1][1]:
            break
    return done


@pytest.mark.parametrize("ends", [{EOS}, {EOS, 3}, {EOS, 1, 2, 5, 7}, set()])
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_narrow_searches_keep_what_the_rule_keeps(width: int, ends: set[int]) -> None:
    for seed in range(40):
        model = scripted(seed, 12)
        penalty, min_tokens = (-0.5, 0.0, 1.0, 1.5)[seed % 4], (0, 3)[seed % 2]
        reasons = {i: None if i == EOS else i for i in ends}
        ours = BeamRules(width, 9, penalty, reasons, min_tokens, vocab_size=12)
        found = searched(model, ours)
        wanted = the_long_way(model, width, 9, penalty, ends, min_tokens)
        assert [h.token_ids for h in found] == [tokens for tokens, _ in wanted]
        assert [h.score for h in found] == pytest.approx([score for _, score in wanted])
        assert len(found) == width
        for h in found:
            assert h.stop_reason == reasons.get(h.token_ids[-1])


def test_width_one_is_greedy() -> None:
    model = scripted(3, 8)
    (found,) = searched(model, rules(1, 6, vocab=8))
    tokens: list[int] = []
    while len(tokens) < 6 and EOS not in tokens:
        logprobs = model(tokens)
        tokens.append(logprobs.index(max(logprobs)))
    assert found.token_ids == tokens


def test_a_round_asks_for_twice_the_width_or_for_what_many_ends_need() -> None:
    assert rules(3, 5, vocab=100).num_scores == 6
    many: dict[int, int | None] = dict.fromkeys(range(10))
    assert rules(3, 5, vocab=100, ends=many).num_scores == 13
    assert rules(3, 5, vocab=100, keep=20).num_scores == 20
    assert rules(3, 5, vocab=100, keep=-1).num_scores == 100
    assert rules(3, 5, vocab=5).num_scores == 5


def test_logprobs_of_each_token_are_kept_as_many_as_asked_for() -> None:
    model = scripted(1, 9)
    for found in searched(model, rules(2, 5, vocab=9, keep=3)):
        assert found.logprobs is not None
        assert [s.token_id for s in found.logprobs] == found.token_ids
        for i, scored in enumerate(found.logprobs):
            exact = model(found.token_ids[:i])
            assert scored.logprob == exact[scored.token_id]
            assert scored.rank == 1 + sum(x > scored.logprob for x in exact)
            assert scored.top_logprobs == sorted(exact, reverse=True)[:3]
    assert all(h.logprobs is None for h in searched(model, rules(2, 5, vocab=9)))


def test_a_search_that_is_cut_off_gives_what_it_has() -> None:
    model, ours = scripted(5, 9), rules(3, 9, vocab=9)
    search = BeamSearch(ours)
    assert [h.token_ids for h in search.so_far()] == [[], [], []]
    for _ in range(3):
        search.advance([row(model, tokens, ours.num_scores) for tokens in search.open()])
    found = search.so_far()
    assert len(found) == 3
    assert {h.finish for h in found} <= {FinishReason.STOP, FinishReason.ABORT}
    assert any(h.finish == FinishReason.ABORT and len(h.token_ids) == 3 for h in found)


@pytest.mark.parametrize(
    ("params", "penalty", "field"),
    [
        (SamplingParams(n=MAX_WIDTH + 1), 1.0, "n"),
        (SamplingParams(n=60), 1.0, "n"),  # half the vocabulary is the most
        (SamplingParams(n=2), math.nan, "length_penalty"),
        (SamplingParams(n=2), 11.0, "length_penalty"),
        (SamplingParams(n=2, stop_token_ids=list(range(99))), 1.0, "stop_token_ids"),
        (SamplingParams(n=40, logprobs=90), 1.0, "max_tokens"),
    ],
)
def test_bounds(params: SamplingParams, penalty: float, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        BeamRules.of(params, length_penalty=penalty, max_tokens=2_000, eos_ids=[0], vocab_size=100)
    assert caught.value.param == field


@pytest.mark.parametrize(
    "given", [{"temperature": 0.5}, {"watermarking": True}, {"structured_outputs": object()}]
)
def test_offline_parameters_that_cannot_act_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        BeamSearchParams(beam_width=2, max_tokens=4, **given).sampling()  # type: ignore[arg-type]
    assert caught.value.param == next(iter(given))
