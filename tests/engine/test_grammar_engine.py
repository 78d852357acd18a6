"""Grammars in a whole engine: masks follow the tokens of a request, whatever becomes of it. Laws 1 and 4."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from tests.engine.real_engine import Answer, RealModel, run
from tests.models.checkpoints import VOCAB, write

from octavo.core.engine import Engine
from octavo.core.grammar import GrammarGate
from octavo.grammar import batch
from octavo.grammar.base import U32, Accepts, GrammarError, Matcher, Vocabulary
from octavo.grammar.store import GrammarStore
from octavo.weights.load import open_model
from octavo.wire.messages import EngineRequest, FinishReason
from octavo.wire.sampling import SamplingParams, StructuredSpec
from octavo.worker.worker import Worker

EOS, STOP = 2, 1
_PLAIN = [bytes([b]) for b in range(32, 127)]
_LONGER = [b'":', b'","', b"ab", b"12", b"},", b'{"', b"true", b"null"]
TOKENS = [b"<a>", b"<b>", b"<end>", *_PLAIN, *_LONGER]
TOKENS += [b""] * (VOCAB - len(TOKENS))
VOCABULARY = Vocabulary(TOKENS, frozenset((0, 1, 2)), frozenset((EOS,)))
ARRAY = '{"type": "array", "items": {"enum": ["ab", 12, true, null]}, "minItems": 4}'
OBJECT = '{"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2}'
SPECS = [
    StructuredSpec(kind="regex", text="([a-z]{1,3} ){8}"),
    StructuredSpec(kind="json_schema", text=ARRAY),
    StructuredSpec(kind="json_schema", text=OBJECT),
    StructuredSpec(kind="choice", text='["yes", "no", "maybe"]'),
    StructuredSpec(kind="lark", text='start: "[" x+ "]"\nx: /[0-9]/ | "(" x ")"'),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealModel]:
    source = open_model(str(write(tmp_path_factory.mktemp("llama"), "llama")))
    made = RealModel(source, weights="f32")
    yield made
    made.close()


@pytest.fixture(scope="module")
def torch_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealModel]:
    source = open_model(str(write(tmp_path_factory.mktemp("llama"), "llama")))
    made = RealModel(source, weights="f32", executor="torch", isa="torch")
    yield made
    made.close()


def request(
    name: str, spec: StructuredSpec | None, seed: int, temperature: float = 1.0, **params: object
) -> EngineRequest:
    sampling = SamplingParams(temperature=temperature, structured=spec, **params)  # type: ignore[arg-type]
    prompt = [3 + (seed * 7 + i) % 50 for i in range(5 + seed % 20)]
    return EngineRequest(id=name, prompt=prompt, params=sampling, max_tokens=40, seed=seed, eos_ids=[EOS])


def serve(model: RealModel, requests: Sequence[EngineRequest], **plan: object) -> dict[str, Answer]:
    store = GrammarStore(lambda: VOCABULARY)
    made = model.plan(**plan)  # type: ignore[arg-type]
    worker = Worker(model.executor, made, model.program.kv, store)
    store.wake = worker.wake
    engine = Engine(made, model.program.kv, worker, gates=(GrammarGate(store),))
    try:
        return run(engine, requests)
    finally:
        worker.close()
        store.close()


def assert_follows(spec: StructuredSpec, answer: Answer) -> None:
    ids = answer.token_ids
    store = GrammarStore(lambda: VOCABULARY)
    matcher = store.matcher(spec)
    if answer.finish is FinishReason.STOP:
        assert ids[-1] == EOS
        ids = ids[:-1]
    assert matcher.advance(ids) == len(ids)
    assert matcher.is_accepting or answer.finish is FinishReason.LENGTH
    store.close()


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.kind)
def test_an_answer_follows_its_grammar_and_ends_with_it(model: RealModel, spec: StructuredSpec) -> None:
    for seed in range(6):
        answer = serve(model, [request("r", spec, seed)])["r"]
        assert answer.error is None
        assert_follows(spec, answer)


def test_a_constrained_row_is_the_same_in_every_world(model: RealModel) -> None:
    rng, preempted = random.Random(11), 0
    for number in range(20):
        spec = SPECS[number % len(SPECS)]
        wanted = request("target", spec, number, logprobs=2, frequency_penalty=0.3 * (number % 2))
        alone = serve(model, [wanted])["target"]
        mates = [request(f"m{i}", rng.choice([None, *SPECS]), 100 + i) for i in range(rng.randrange(1, 8))]
        order = [*mates, wanted]
        rng.shuffle(order)
        is_tight = number % 3 == 0
        answers = serve(
            model,
            order,
            num_blocks=9 if is_tight else 96,
            max_tokens=rng.choice([16, 17, 64]),
            depth=rng.choice([1, 2]),
            reserve=not is_tight,
        )
        same = answers["target"]
        assert (same.token_ids, same.logprobs, same.finish) == (alone.token_ids, alone.logprobs, alone.finish)
        for mate in mates:
            if mate.params.structured is not None:
                assert_follows(mate.params.structured, answers[mate.id])
        preempted += sum(a.preemptions for a in answers.values())
    assert preempted, "no world was tight enough"


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.kind)
def test_a_new_engine_goes_on_where_the_old_one_was(model: RealModel, spec: StructuredSpec) -> None:
    wanted = request("target", spec, 5)
    alone = serve(model, [wanted])["target"]
    for cut in range(1, len(alone.token_ids)):
        wanted.forced = alone.token_ids[:cut]
        again = serve(model, [wanted], depth=1 + cut % 2)["target"]
        assert again.token_ids == alone.token_ids[cut:] and again.finish == alone.finish


def test_the_torch_sampler_obeys_the_same_masks(torch_model: RealModel) -> None:
    for seed, spec in enumerate(SPECS):
        assert_follows(spec, serve(torch_model, [request("r", spec, seed)])["r"])


def test_min_tokens_gives_way_to_the_end_of_a_grammar(model: RealModel) -> None:
    yes = StructuredSpec(kind="choice", text='["yes"]')
    answer = serve(model, [request("r", yes, 1, min_tokens=12)])["r"]
    assert (answer.finish, answer.token_ids[-1]) == (FinishReason.STOP, EOS) and len(answer.token_ids) <= 4
    word = StructuredSpec(kind="regex", text="[a-z]+")
    longer = serve(model, [request("r", word, 1, min_tokens=12)])["r"]
    assert len(longer.token_ids) > 12


def test_stop_token_ids_end_a_complete_answer_and_no_other(model: RealModel) -> None:
    word = StructuredSpec(kind="regex", text="[a-z]{6}")
    answer = serve(model, [request("r", word, 3, stop_token_ids=[STOP], logit_bias={STOP: 50.0})])["r"]
    text = b"".join(TOKENS[i] for i in answer.token_ids[:-1])
    assert answer.token_ids[-1] == STOP and len(text) == 6


def test_other_limits_on_tokens_act_together_with_a_grammar(model: RealModel) -> None:
    word = StructuredSpec(kind="regex", text="[a-z ]{6}")
    some = [TOKENS.index(c) for c in (b"a", b"b", b"ab", b"1")]
    answer = serve(model, [request("r", word, 3, allowed_token_ids=some)])["r"]
    assert set(answer.token_ids[:-1]) <= set(some) and answer.token_ids[-1] == EOS, (
        "the end of a whole answer"
    )
    none = serve(model, [request("r", word, 3, allowed_token_ids=[TOKENS.index(b"1")])])["r"]
    assert none.finish is FinishReason.ERROR and "no token may follow" in str(none.error)
    assert none.is_refused, "the request's own doing, no fault of the engine"
    banned = serve(model, [request("r", word, 3, bad_words_ids=[[i] for i in some])])["r"]
    assert not set(banned.token_ids) & set(some)


def test_a_grammar_that_fails_ends_its_own_request_only(model: RealModel) -> None:
    bad = StructuredSpec(kind="regex", text="(")
    answers = serve(model, [request("bad", bad, 1), request("good", SPECS[0], 2), request("free", None, 3)])
    assert answers["bad"].finish is FinishReason.ERROR and "cannot be compiled" in str(answers["bad"].error)
    assert answers["good"].error is None and answers["free"].error is None


def test_an_engine_without_a_tokenizer_says_so(model: RealModel) -> None:
    made = model.plan()
    worker = Worker(model.executor, made, model.program.kv)
    try:
        answers = run(
            Engine(made, model.program.kv, worker), [request("r", SPECS[0], 1), request("f", None, 1)]
        )
    finally:
        worker.close()
    assert "no tokenizer" in str(answers["r"].error) and answers["f"].error is None


@pytest.mark.parametrize("moment", ["advance", "fill", "ends", "together"])
def test_a_matcher_that_breaks_never_breaks_the_step(
    model: RealModel, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Its request ends with the cause; those beside it, with grammars or without, are as they were."""
    rest = [request("good", SPECS[1], 2), request("free", None, 3)]
    alone = serve(model, rest)
    broken = StructuredSpec(kind="regex", text="[x-z]+")

    class Broken:
        """After two tokens it fails in one place or another."""

        def __init__(self, inner: Matcher) -> None:
            self.inner, self.seen = inner, 0

        def copy(self) -> Broken:
            return Broken(self.inner.copy())

        def advance(self, ids: Sequence[int]) -> int:
            self.seen += len(ids)
            if moment == "advance" and self.seen > 2:
                raise RuntimeError("broken in advance")
            return self.inner.advance(ids)

        def fill(self, row: object) -> None:
            if moment in ("fill", "together") and self.seen > 2:
                raise RuntimeError("broken in fill")
            self.inner.fill(row)  # type: ignore[arg-type]

        @property
        def is_accepting(self) -> bool:
            if moment == "ends" and self.seen > 2:
                raise RuntimeError("broken at the end")
            return self.inner.is_accepting

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

    true = GrammarStore.matcher

    def matcher(self: GrammarStore, spec: StructuredSpec) -> Matcher:
        made = true(self, spec)
        return Broken(made) if spec == broken else made  # type: ignore[return-value]

    monkeypatch.setattr(GrammarStore, "matcher", matcher)
    answers = serve(model, [request("broken", broken, 1), *rest], depth=2)
    assert answers["broken"].finish is FinishReason.ERROR and "broken" in str(answers["broken"].error)
    for name, answer in alone.items():
        assert answers[name].token_ids == answer.token_ids and answers[name].error is None


def test_masks_that_fail_together_are_made_one_by_one(
    model: RealModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [request(f"r{i}", spec, i) for i, spec in enumerate(SPECS)]
    expected = serve(model, requests)

    def fails(*_: object) -> None:
        raise GrammarError("all at once")

    monkeypatch.setattr(batch, "fill_all", fails)
    found = serve(model, requests)
    assert {n: a.token_ids for n, a in found.items()} == {n: a.token_ids for n, a in expected.items()}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.kind)
def test_masks_after_the_draw_give_what_masks_before_it_give(
    model: RealModel, spec: StructuredSpec, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone (so that steps go on with the batch before) and beside others; free rows draw as ever."""
    masks: list[int] = []
    fill = batch.fill_all

    def counted(matchers: Sequence[Matcher], rows_of_masks: U32, rows: Sequence[int]) -> None:
        masks.append(len(matchers))
        fill(matchers, rows_of_masks, rows)

    monkeypatch.setattr(batch, "fill_all", counted)

    def answers(most_redrawn: int) -> tuple[list[dict[str, object]], int]:
        monkeypatch.setattr(model.executor, "most_redrawn", most_redrawn)
        masks.clear()
        found = []
        for seed in range(3):
            wanted = request("target", spec, seed, temperature=temperature)
            mates = [request(f"m{i}", s, 50 + i) for i, s in enumerate([None, *SPECS])]
            for requests in ([wanted], [wanted, *mates]):
                served = serve(model, requests)
                found.append({n: (a.token_ids, a.finish, a.error) for n, a in served.items()})
        return found, sum(masks)

    after, fewer = answers(64)
    before, all_of_them = answers(0)
    assert after == before
    assert 0 < fewer < all_of_them


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.kind)
def test_a_token_is_accepted_exactly_where_the_mask_allows_it(spec: StructuredSpec) -> None:
    store = GrammarStore(lambda: VOCABULARY)
    rng = random.Random(3)
    for _ in range(4):
        matcher = store.matcher(spec)
        if not isinstance(matcher, Accepts):
            continue
        for _ in range(12):
            row = np.zeros(VOCABULARY.num_words, np.uint32)
            matcher.fill(row)
            allowed = [i for i in range(VOCAB) if row[i >> 5] >> np.uint32(i & 31) & np.uint32(1)]
            forced = matcher.forced()
            took = [forced] if forced is not None else [i for i in range(VOCAB) if _copy(matcher).accept(i)]
            assert took == allowed
            if not allowed:
                break
            assert matcher.accept(rng.choice(allowed))
    store.close()


def _copy(matcher: Accepts) -> Accepts:
    copied = matcher.copy()
    assert isinstance(copied, Accepts)
    return copied


def test_constrained_requests_that_are_aborted_leave_the_others_as_they_were(model: RealModel) -> None:
    """With two steps in flight, at every length of the answer; the slots are used again at once."""
    kept = [request("kept", SPECS[1], 2), request("free", None, 3)]
    alone = serve(model, kept)
    for cut in range(1, 6):
        store = GrammarStore(lambda: VOCABULARY)
        made = model.plan(depth=2)
        worker = Worker(model.executor, made, model.program.kv, store)
        store.wake = worker.wake
        engine = Engine(made, model.program.kv, worker, gates=(GrammarGate(store),))
        answers = {name: Answer() for name in ("kept", "free", "gone", "next")}
        try:
            for one in (request("gone", SPECS[0], 4), *kept):
                engine.add(one)
            while engine.has_work():
                for delta in engine.pump(timeout_s=60):
                    answers[delta.id].take(delta)
                gone = answers["gone"]
                if len(gone.token_ids) >= cut and gone.finish is None:
                    engine.abort(["gone"])
                    engine.add(request("next", SPECS[3], 5))
        finally:
            worker.close()
            store.close()
        assert answers["gone"].finish is FinishReason.ABORT and answers["gone"].error is None
        for name, answer in alone.items():
            assert answers[name].token_ids == answer.token_ids and answers[name].error is None
        assert_follows(SPECS[3], answers["next"])
