"""One choice: any grouping of tokens into deltas gives the same answer."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.toy_codec import BYTE_0, ToyCodec

from octavo.api.text.pipeline import ChoicePipeline
from octavo.wire.messages import FinishReason, TokenDelta, TokenLogprobs
from octavo.wire.sampling import SamplingParams

CODEC = ToyCodec()


@dataclass
class Folded:
    text: str
    ids: list[int]
    tokens: list[str]
    data: bytes
    finish: str | None
    reason: int | str | None
    count: int


def scored(i: int) -> TokenLogprobs:
    return TokenLogprobs(i, -0.5, 1, [i, 2], [-0.5, -1.0])


def play(ids: list[int], sizes: list[int], finish: FinishReason, params: SamplingParams) -> Folded:
    pipeline = ChoicePipeline(CODEC, params)
    out = Folded("", [], [], b"", None, None, 0)
    groups, rest = [], list(ids)
    for size in sizes:
        groups.append(rest[:size])
        rest = rest[size:]
    groups.append(rest)
    if finish == FinishReason.STOP and not groups[-1]:
        groups = [g for g in groups if g]
    for n, group in enumerate(groups):
        event = pipeline.feed(
            TokenDelta(
                id="x",
                token_ids=group,
                logprobs=[scored(i) for i in group],
                finish=finish if n == len(groups) - 1 else None,
            )
        )
        out.text += event.text
        out.ids += event.token_ids
        out.tokens += [e.text for e in event.entries]
        out.data += b"".join(e.data for e in event.entries)
        if event.is_last:
            out.finish, out.reason = event.finish, event.stop_reason
            break
    out.count = pipeline.num_tokens
    return out


@given(
    st.lists(st.integers(0, CODEC.vocab_size - 1), min_size=1, max_size=20),
    st.lists(st.integers(0, 5), max_size=20),
    st.sampled_from([FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT]),
    st.lists(st.sampled_from(["a", "FG", "HIJ", " D", "ng", "EFGH", "中"]), max_size=3, unique=True),
    st.integers(0, 6),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_grouping_does_not_matter(
    ids: list[int],
    sizes: list[int],
    finish: FinishReason,
    stops: list[str],
    min_tokens: int,
    include: bool,
    skip: bool,
) -> None:
    params = SamplingParams(
        stop=stops, min_tokens=min_tokens, include_stop_str_in_output=include, skip_special_tokens=skip
    )
    one = play(ids, [1] * len(ids), finish, params)
    other = play(ids, sizes, finish, params)
    assert one == other
    assert one.finish is not None
    assert one.count == len(one.ids) == len(one.tokens)
    if not isinstance(one.reason, str):
        assert "".join(one.tokens) == one.text


def test_the_token_that_ends_the_answer_is_counted_but_not_shown() -> None:
    got = play([*CODEC.encode("Hello", False), 2], [], FinishReason.STOP, SamplingParams())
    assert (got.text, got.count, got.tokens, got.data) == ("Hello", 2, ["Hello", ""], b"Hello")


def test_tokens_after_the_match_are_neither_shown_nor_counted() -> None:
    ids = CODEC.encode("ABC DEFGHIJ KLM", False)
    got = play(ids, [], FinishReason.LENGTH, SamplingParams(stop=["EF"]))
    assert (got.text, got.finish, got.reason, got.count) == ("ABC D", "stop", "EF", 3)


def test_tokens_behind_an_undecided_match_wait_for_the_decision() -> None:
    ids = [BYTE_0 + ord(c) for c in "xabcdeX"]
    got = play(ids, [1] * 7, FinishReason.LENGTH, SamplingParams(stop=["bc", "abcdef"]))
    assert (got.text, got.reason, got.count) == ("xa", "bc", 4)


def test_logprob_bytes_are_true_and_join_to_the_text() -> None:
    """BB-016, BB-018, P025."""
    ids = [BYTE_0 + b for b in "😀 中".encode()]
    got = play(ids, [], FinishReason.LENGTH, SamplingParams())
    assert got.data == "😀 中".encode()
    assert "".join(got.tokens) == "😀 中"
    assert not any("\ufffd" in t for t in got.tokens)


def test_error_is_reported_and_is_not_a_stop() -> None:
    pipeline = ChoicePipeline(CODEC, SamplingParams())
    event = pipeline.feed(TokenDelta(id="x", token_ids=[20], finish=FinishReason.ERROR, error="slot fault"))
    assert event.error == "slot fault"
    assert event.finish is None
