"""Law 1: same request, same tokens, whatever else is in the batch and however it came to be computed.

One request is served alone; then in random worlds: batch mates, chunk sizes, a cold, warm or absent
prefix cache, a pool so small that requests are preempted, one or two steps in flight, 1 to 3 threads,
an engine restart with the tokens so far as a forced prefix. Ids and logprobs must be *equal*.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.real_engine import Answer, RealModel
from tests.models.checkpoints import VOCAB, write

from octavo.kernels import native
from octavo.weights.load import open_model
from octavo.wire.messages import EngineRequest, FinishReason
from octavo.wire.sampling import SamplingParams

WORLDS = 25  # on the best instruction set of this machine; the others get FEWER_WORLDS
FEWER_WORLDS = 8
CASES = [(isa, weights) for isa in native.isas() for weights in ("f32", "bf16", "w8", "w4")]


@pytest.fixture(scope="module", params=["llama", "gemma3_text"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(params=CASES, ids=lambda case: "-".join(case))
def models(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[list[RealModel]]:
    """The same model with 1, 2 and 3 threads."""
    isa, weights = request.param
    source = open_model(str(checkpoint))
    made = [RealModel(source, weights=weights, isa=isa, threads=threads) for threads in (1, 2, 3)]
    yield made
    for model in made:
        model.close()


def random_request(rng: random.Random, name: str, shared: list[int]) -> EngineRequest:
    prompt = shared[: rng.randrange(len(shared))] if rng.random() < 0.5 else []
    prompt = prompt + [rng.randrange(3, VOCAB) for _ in range(rng.randrange(1, 70))]
    greedy = rng.random() < 0.3
    params = SamplingParams(
        temperature=0.0 if greedy else rng.choice([0.5, 1.0, 1.7]),
        top_p=rng.choice([1.0, 0.9]),
        top_k=rng.choice([0, 0, 20]),
        min_p=rng.choice([0.0, 0.0, 0.05]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
        presence_penalty=rng.choice([0.0, 0.5]),
        frequency_penalty=rng.choice([0.0, 0.4]),
        logit_bias=rng.choice([None, {5: 3.0, 9: -100.0}]),
        min_tokens=rng.choice([0, 4]),
        logprobs=rng.choice([None, 0, 3]),
        stop_token_ids=[7] if rng.random() < 0.3 else [],
    )
    return EngineRequest(
        id=name,
        prompt=prompt,
        params=params,
        max_tokens=rng.randrange(1, 24),
        seed=rng.randrange(2**63),
        eos_ids=[2],
    )


MODES = ("raw_logprobs", "processed_logits", "raw_logits", "processed_logprobs")


def target(
    rng: random.Random, shared: list[int], prompt_logprobs: int | None, chosen: list[int] | None = None
) -> EngineRequest:
    request = random_request(rng, "target", shared)
    params = SamplingParams(
        temperature=rng.choice([0.0, 0.9]),
        frequency_penalty=rng.choice([0.0, 0.3]),
        logprobs=4 if chosen is None else None,
        logprob_token_ids=chosen,
        prompt_logprobs=prompt_logprobs,
    )
    return EngineRequest(
        id="target",
        prompt=request.prompt,
        params=params,
        max_tokens=20,
        seed=request.seed,
        skip_reading_prefix_cache=prompt_logprobs is not None,
    )


def assert_same(world: str, answer: Answer, alone: Answer) -> None:
    assert answer.token_ids == alone.token_ids, world
    assert answer.logprobs == alone.logprobs, world
    assert answer.prompt_logprobs == alone.prompt_logprobs, world
    assert answer.finish == alone.finish, world


def test_the_target_is_the_same_in_every_world(models: list[RealModel]) -> None:
    rng = random.Random(20261130)
    preempted = cached = 0
    worlds = WORLDS if models[0].isa == native.best_isa() else FEWER_WORLDS
    for number in range(worlds):
        shared = [rng.randrange(3, VOCAB) for _ in range(64)]
        mode = MODES[number // 2 % 4]
        chosen = [9, VOCAB - 1, 5, 9] if number % 3 == 1 else None
        wanted = target(rng, shared, prompt_logprobs=2 if number % 4 == 3 else None, chosen=chosen)
        alone = models[0].serve(models[0].plan(max_tokens=256, logprobs_mode=mode), [wanted])["target"]
        assert alone.finish in (FinishReason.LENGTH, FinishReason.STOP), alone.error
        mates = [random_request(rng, f"mate{i}", shared) for i in range(rng.randrange(0, 7))]
        model = rng.choice(models)
        # Hardly more blocks than the longest request takes: others are preempted. (Windows take fewer
        # blocks when chunks are small.)
        is_tight = rng.random() < 0.4
        tight_blocks = 23 if len(model.program.kv.groups) > 1 else 12
        plan = model.plan(
            num_blocks=tight_blocks if is_tight else 96,
            max_tokens=rng.choice([16, 17] if is_tight else [16, 17, 33, 64, 256]),
            max_seqs=rng.choice([4, 16]),
            depth=rng.choice([1, 2]),
            prefix_caching=rng.random() < 0.7,
            reserve=not is_tight,
            logprobs_mode=mode,
        )
        order = [*mates, wanted]
        rng.shuffle(order)
        answers = model.serve(plan, order)
        world = f"world {number}: {len(mates)} mates, {plan.cache}, {plan.scheduler}, {model.threads} threads, {mode}"
        assert_same(world, answers["target"], alone)
        preempted += sum(a.preemptions for a in answers.values())
        cached += answers["target"].num_cached
    assert worlds == FEWER_WORLDS or (preempted and cached), "no preemption or no cache hit in any world"


def test_a_restart_continues_as_if_nothing_had_happened(models: list[RealModel]) -> None:
    rng = random.Random(7)
    for _ in range(6):
        wanted = target(rng, [3, 4, 5], prompt_logprobs=None)
        model = rng.choice(models)
        alone = models[0].serve(models[0].plan(), [wanted])["target"]
        cut = rng.randrange(1, len(alone.token_ids))
        wanted.forced = alone.token_ids[:cut]
        again = model.serve(model.plan(depth=rng.choice([1, 2]), max_tokens=rng.choice([16, 64])), [wanted])[
            "target"
        ]
        assert again.token_ids == alone.token_ids[cut:]
        assert again.logprobs == alone.logprobs[cut:]


def test_a_warm_cache_gives_the_cold_answer(models: list[RealModel]) -> None:
    from tests.engine.real_engine import run

    from octavo.core.engine import Engine
    from octavo.worker.worker import Worker

    rng = random.Random(3)
    model = models[1]
    plan = model.plan(depth=2)
    worker = Worker(model.executor, plan, model.program.kv)
    engine = Engine(plan, model.program.kv, worker)
    try:
        wanted = target(rng, [rng.randrange(3, VOCAB) for _ in range(64)], prompt_logprobs=None)
        wanted.prompt = [rng.randrange(3, VOCAB) for _ in range(80)]
        cold = run(engine, [wanted])["target"]
        warm = run(engine, [wanted])["target"]
    finally:
        worker.close()
    assert cold.num_cached == 0 and warm.num_cached >= 64
    assert_same("warm", warm, cold)


def test_modes_of_logprobs_agree_with_each_other(models: list[RealModel]) -> None:
    """The same draws in all four modes: log-probabilities are logits less one number for each position."""
    model, answers = models[0], {}
    chosen = list(range(3, 67))
    for mode in MODES:
        params = SamplingParams(temperature=0.7, top_k=5, logprob_token_ids=chosen, prompt_logprobs=3)
        best = SamplingParams(temperature=0.7, top_k=5, logprobs=9)
        requests = [
            EngineRequest(id=name, prompt=[5, 6, 7, 8], params=p, max_tokens=8, seed=4)
            for name, p in (("chosen", params), ("best", best))
        ]
        answers[mode] = model.serve(model.plan(logprobs_mode=mode), requests)
    assert len({tuple(a["chosen"].token_ids) for a in answers.values()}) == 1
    for kind in ("raw", "processed"):
        for position in range(8):
            values, logits = (
                answers[f"{kind}_{what}"]["chosen"].logprobs[position].top_logprobs
                for what in ("logprobs", "logits")
            )
            finite = [x - y for x, y in zip(logits, values, strict=True) if y > float("-inf")]
            assert max(finite, default=0.0) - min(finite, default=0.0) < 1e-4
            assert [x > float("-inf") for x in logits] == [y > float("-inf") for y in values]
            assert len(finite) == len(chosen) if kind == "raw" else len(finite) <= 5
        best_of = answers[f"{kind}_logprobs"]["best"].logprobs
        assert {len(p.top_ids) for p in best_of} == {9 if kind == "raw" else 5}, "no id that is no token"
    raw, processed = (answers[f"{kind}_logits"]["chosen"] for kind in ("raw", "processed"))
    assert raw.prompt_logprobs == processed.prompt_logprobs, "nothing processes a prompt"
    scored = answers["raw_logprobs"]["chosen"].prompt_logprobs
    assert raw.prompt_logprobs is not None and scored is not None
    for x, y in zip(raw.prompt_logprobs[1:], scored[1:], strict=True):
        assert x is not None and y is not None
        assert (x.top_ids, x.rank) == (y.top_ids, y.rank) and x.logprob != y.logprob


def test_a_request_that_bans_every_token_fails_alone(models: list[RealModel]) -> None:
    model = models[0]
    doomed = EngineRequest(
        id="doomed",
        prompt=[5, 6],
        params=SamplingParams(allowed_token_ids=[9], logit_bias={9: float("-inf")}),
        max_tokens=5,
        seed=1,
    )
    wanted = target(random.Random(1), [3], prompt_logprobs=None)
    alone = model.serve(model.plan(), [wanted])["target"]
    answers = model.serve(model.plan(depth=2), [doomed, wanted])
    assert answers["doomed"].finish is FinishReason.ERROR
    assert "no token may follow" in (answers["doomed"].error or "")
    assert_same("beside a doomed request", answers["target"], alone)
