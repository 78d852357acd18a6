"""Offline use on a real model: the same engine, the same text pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from octavo import LLM, BeamSearchParams, RepetitionDetectionParams, SamplingParams
from octavo.errors import EngineDead, InvalidRequest

GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def llm(smollm2_path: str) -> Iterator[LLM]:
    with LLM(smollm2_path, max_model_len=512, max_num_seqs=8, threads=1, strict=True) as made:
        yield made


def test_one_prompt(llm: LLM) -> None:
    (got,) = llm.generate("The capital of France is", GREEDY, use_tqdm=False)
    (choice,) = got.outputs
    assert got.finished
    assert got.prompt == "The capital of France is"
    assert choice.text.startswith(" Paris")
    assert choice.finish_reason == "length"
    assert len(choice.token_ids) == 12


def test_outputs_come_in_the_order_of_the_prompts_and_do_not_depend_on_company(llm: LLM) -> None:
    prompts = [f"Item {i} of the list is" for i in range(12)]
    together = llm.generate(prompts, GREEDY, use_tqdm=False)
    alone = [llm.generate(p, GREEDY, use_tqdm=False)[0] for p in prompts]
    assert [o.prompt for o in together] == prompts
    assert [o.outputs[0].token_ids for o in together] == [o.outputs[0].token_ids for o in alone]


def test_token_ids_and_mappings_are_prompts_too(llm: LLM) -> None:
    text = llm.generate("One, two, three,", GREEDY, use_tqdm=False)[0]
    for prompt in (
        text.prompt_token_ids,
        {"prompt_token_ids": text.prompt_token_ids},
        {"prompt": text.prompt},
    ):
        assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].outputs[0].text == text.outputs[0].text


def test_chat_answers_one_or_several(llm: LLM) -> None:
    one = [{"role": "user", "content": "What is the capital city of France? Answer in one sentence."}]
    (single,) = llm.chat(one, SamplingParams(temperature=0, max_tokens=32), use_tqdm=False)
    assert "Paris" in single.outputs[0].text
    assert single.outputs[0].finish_reason == "stop"
    assert len(llm.chat([one, one], GREEDY, use_tqdm=False)) == 2


def test_an_answer_that_repeats_itself_ends(llm: LLM) -> None:
    asked = RepetitionDetectionParams(max_pattern_size=2, min_count=5)
    params = SamplingParams(temperature=0, max_tokens=30, logit_bias={100: 100.0}, repetition_detection=asked)
    (got,) = llm.generate("x", params, use_tqdm=False)
    choice = got.outputs[0]
    assert (choice.finish_reason, choice.stop_reason) == ("repetition", "repetition_detected")
    assert choice.token_ids == [100] * 5


def test_logprobs_of_chosen_tokens(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, logprob_token_ids=[70, 5, 900])
    (got,) = llm.generate("The capital of France is", params, use_tqdm=False)
    best = SamplingParams(temperature=0, max_tokens=3, logprobs=0)
    (plain,) = llm.generate("The capital of France is", best, use_tqdm=False)
    rows, drawn = got.outputs[0].logprobs, plain.outputs[0].logprobs
    assert rows is not None and drawn is not None
    for row, one in zip(rows, drawn, strict=True):
        ((token, logprob),) = one.items()
        assert list(row) == [token, 70, 5, 900] and row[token] == logprob
        assert all(row[i].rank is None and row[i].logprob < logprob.logprob for i in (70, 5, 900))


def test_stop_strings_cut_and_are_named(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=64, stop=["six"])
    (got,) = llm.generate("The numbers: one, two, three,", params, use_tqdm=False)
    assert "six" not in got.outputs[0].text
    assert (got.outputs[0].finish_reason, got.outputs[0].stop_reason) == ("stop", "six")


def test_choices_are_reproducible_by_seed(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=7, n=3, max_tokens=8)
    first, second = (llm.generate("Once upon a time", params, use_tqdm=False)[0] for _ in range(2))
    assert [c.text for c in first.outputs] == [c.text for c in second.outputs]
    assert [c.index for c in first.outputs] == [0, 1, 2]
    assert len({c.text for c in first.outputs}) > 1


def test_logprobs_and_prompt_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=3, prompt_logprobs=2)
    (got,) = llm.generate("The sky is", params, use_tqdm=False)
    choice = got.outputs[0]
    assert choice.logprobs is not None
    assert len(choice.logprobs) == len(choice.token_ids) == 4
    for token_id, row in zip(choice.token_ids, choice.logprobs, strict=True):
        assert row[token_id].rank == 1
        assert 3 <= len(row) <= 4
    assert got.prompt_logprobs is not None
    assert got.prompt_logprobs[0] is None
    assert len(got.prompt_logprobs) == len(got.prompt_token_ids)


def test_a_second_call_finds_the_prefix(llm: LLM) -> None:
    prompt = "A long and shared beginning. " * 12
    llm.generate(prompt, GREEDY, use_tqdm=False)
    (again,) = llm.generate(prompt, GREEDY, use_tqdm=False)
    assert again.num_cached_tokens
    assert llm.reset_prefix_cache()


@pytest.mark.parametrize("prompt", ["", {"text": "x"}, [10**9], 5, 1.5, [1.5], None, ["nested"]])
def test_bad_prompts_are_refused_before_anything_runs(llm: LLM, prompt: object) -> None:
    with pytest.raises(InvalidRequest):
        llm.generate(["good", prompt], GREEDY, use_tqdm=False)  # type: ignore[list-item]
    assert llm.generate("good", GREEDY, use_tqdm=False)[0].finished


def test_what_is_no_prompt_or_parameters_is_refused_by_its_type(llm: LLM) -> None:
    wrong: list[tuple[Any, Any, str]] = [
        (5, GREEDY, "prompt is of the type int"),
        ("x", {"max_tokens": 3}, "sampling_params is or holds a dict"),
        (["x"], [{"max_tokens": 3}], "sampling_params is or holds a dict"),
    ]
    for prompts, params, words in wrong:
        with pytest.raises(InvalidRequest, match=words):
            llm.generate(prompts, params, use_tqdm=False)
    with pytest.raises(InvalidRequest, match="BeamSearchParams"):
        llm.beam_search("x", GREEDY)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="messages is a string"):
        llm.chat("hi", GREEDY)  # type: ignore[arg-type]


def test_an_answer_ends_with_the_context(llm: LLM) -> None:
    (answer,) = llm.generate(
        "word " * 500, SamplingParams(max_tokens=10_000, ignore_eos=True), use_tqdm=False
    )
    assert answer.outputs[0].finish_reason == "length"
    assert len(answer.prompt_token_ids) + len(answer.outputs[0].token_ids) == 512


def test_too_long_a_prompt_is_refused_with_numbers(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="512"):
        llm.generate("word " * 600, GREEDY, use_tqdm=False)


def test_beam_search_gives_the_best_answers_first(llm: LLM) -> None:
    prompts = ["The capital of France is", "Two plus two is"]
    both = llm.beam_search(prompts, BeamSearchParams(beam_width=4, max_tokens=8))
    for prompt, got in zip(prompts, both, strict=True):
        assert got.finished
        assert len(got.outputs) == len({tuple(c.token_ids) for c in got.outputs}) == 4
        scores = [(c.cumulative_logprob or 0.0) / len(c.token_ids) for c in got.outputs]
        assert scores == sorted(scores, reverse=True)
        (alone,) = llm.beam_search(prompt, BeamSearchParams(beam_width=4, max_tokens=8, logprobs=2))
        assert [c.token_ids for c in alone.outputs] == [c.token_ids for c in got.outputs]
        for choice in alone.outputs:
            scored = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
            (again,) = llm.generate([[*got.prompt_token_ids, *choice.token_ids]], scored, use_tqdm=False)
            rows = (again.prompt_logprobs or [])[len(got.prompt_token_ids) :]
            exact = [next(iter((row or {}).values())).logprob for row in rows]
            assert [
                row[i].logprob for row, i in zip(choice.logprobs or [], choice.token_ids, strict=True)
            ] == exact
            assert choice.cumulative_logprob == pytest.approx(sum(exact))
    greedy = llm.generate(prompts[0], SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)[0]
    (one,) = llm.beam_search(prompts[0], BeamSearchParams(beam_width=1, max_tokens=8))
    assert one.outputs[0].token_ids == greedy.outputs[0].token_ids
    with pytest.raises(InvalidRequest, match="width"):
        llm.beam_search("x", BeamSearchParams(beam_width=99, max_tokens=8))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 1.5}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_k": 1.5}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {5: "a"}}, "logit_bias"),
        ({"bad_words": ["x" * 9000]}, "bad_words"),
        ({"min_tokens": 600, "max_tokens": None}, "min_tokens"),
        ({"stream_interval": 2}, "stream_interval"),
        ({"stop": ["x"], "detokenize": False}, "stop"),
        ({"prompt_logprobs": 1, "skip_reading_prefix_cache": False}, "skip_reading_prefix_cache"),
    ],
)
def test_parameters_that_cannot_act_are_refused_by_name(llm: LLM, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        llm.generate("x", SamplingParams(**fields), use_tqdm=False)
    assert caught.value.param == param
    with pytest.raises(TypeError, match="watermarking"):
        SamplingParams(watermarking=True)  # type: ignore[call-arg]


def test_parameters_may_be_spelled_as_in_a_body(llm: LLM) -> None:
    text = SamplingParams(temperature=0, max_tokens=40, stop="six")  # type: ignore[arg-type]
    (got,) = llm.generate("One, two, three,", text, use_tqdm=False)
    assert got.outputs[0].stop_reason == "six"
    biased = SamplingParams(temperature=0, max_tokens=2, logit_bias={"100": 900})  # type: ignore[dict-item]
    assert llm.generate("x", biased, use_tqdm=False)[0].outputs[0].token_ids == [100, 100]
    drawn = SamplingParams(temperature=1, max_tokens=8, seed=-1)
    assert len({llm.generate("x", drawn, use_tqdm=False)[0].outputs[0].text for _ in range(4)}) > 1


def test_without_detokenising_there_are_ids_and_no_text(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=1)
    (full,) = llm.generate("The capital of France is", params, use_tqdm=False)
    bare = SamplingParams(temperature=0, max_tokens=6, logprobs=1, detokenize=False)
    (got,) = llm.generate("The capital of France is", bare, use_tqdm=False)
    assert (got.outputs[0].text, got.outputs[0].token_ids) == ("", full.outputs[0].token_ids)
    assert got.outputs[0].cumulative_logprob == full.outputs[0].cumulative_logprob


def test_a_prompt_may_be_computed_whole(llm: LLM) -> None:
    prompt = "A prompt that is long enough to have a block of its own, so that it can be found again. " * 2
    llm.generate(prompt, GREEDY, use_tqdm=False)
    params = SamplingParams(temperature=0, max_tokens=12, skip_reading_prefix_cache=True)
    cached = [llm.generate(prompt, p, use_tqdm=False)[0].num_cached_tokens for p in (GREEDY, params)]
    assert cached[0] and cached[1] == 0


def test_a_closed_one_says_so(smollm2_path: str) -> None:
    with LLM(smollm2_path, max_model_len=64, max_num_seqs=1, threads=1) as made:
        pass
    made.close()  # again does nothing
    for use in (made.generate, made.chat):
        with pytest.raises(EngineDead, match="closed"):
            use("x")  # type: ignore[operator]
