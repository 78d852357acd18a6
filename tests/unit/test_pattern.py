"""The regular expressions of checkpoints: what `re` finds is found, in pieces or whole, in linear time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.api.text.parsers.checkpoint.pattern import Match, Matcher, compiled
from octavo.api.text.parsers.checkpoint.pattern_tree import Hole, PatternError, parsed, shortest

PATTERNS = [
    r"\s*<tool_call>",
    r"\s*<t>\s*<f=(?P<name>[^>\n]+)>",
    r"<p=(?P<key>\w+)>\s*(?P<value>.*?)\s*</p>",
    r"</f>\s*</t>",
    r"a|ab|abc",
    r"(?:a|ab)(?:c|bcd)",
    r"a{2,3}?b",
    r"a{2,3}b*",
    r"\bab\b",
    r"\Bb",
    r"<\|c\|>x to=(?P<name>\w+).*?<\|m\|>",
    r"^a",
    r"[^a]+a",
    r"(?P<x>a+)(?P<y>a*)b",
    r"x?y?z",
    r"(?:ab?)+?c",
    r"a.*b",
    r"a.*?b|b.*c",
    r"[a-c<\]\-]{2}>",
    r"(?s)a.b\Z",
]
BITS = [
    *"abc<>=/|m x\nyz-]",
    "<tool_call>",
    "<t> <f=ab>",
    "<p=ab> x y </p>",
    "</f> </t>",
    "<|c|>x to=abc <|m|>",
    *(char * 9 for char in " ab<x"),
]


def search(pattern: str, pieces: list[str], *, limit: int | None = None) -> tuple[Match | None, int]:
    matcher = Matcher(compiled(pattern), limit=limit)
    for piece in pieces:
        matcher.feed(piece)
        assert matcher.pending <= matcher.position
        if matcher.found is not None:
            break
    matcher.close()
    return matcher.found, matcher.work


@given(st.sampled_from(PATTERNS), st.lists(st.sampled_from(BITS), max_size=25), st.integers(1, 5))
@settings(max_examples=1_500, deadline=None)
def test_it_finds_what_re_finds(pattern: str, bits: list[str], size: int) -> None:
    text = "".join(bits)
    wanted = next((m for m in re.finditer(pattern, text, re.DOTALL) if m.group()), None)
    whole, _ = search(pattern, [text])
    pieces, _ = search(pattern, [text[i : i + size] for i in range(0, len(text), size)])
    assert whole == pieces
    if wanted is None:
        assert whole is None
        return
    assert whole is not None
    assert (whole.start, whole.end) == wanted.span()
    assert whole.groups == {n: wanted.span(n) for n, v in wanted.groupdict().items() if v is not None}


@pytest.mark.parametrize(
    "text", ["<p=a>" + "x" * 20_000, "<p=a>" + " " * 20_000, "<p=" * 7_000, " " * 20_000, "<p=a>b" * 4_000]
)
def test_work_is_linear(text: str) -> None:
    for pattern in PATTERNS:
        for pieces in ([text], list(text)):
            _, work = search(pattern, pieces)
            assert work <= 60 * len(text), pattern


@pytest.mark.parametrize("pattern", [p for p in PATTERNS if r"\s*" in p])
def test_a_run_of_one_character_costs_a_few_steps(pattern: str) -> None:
    """200,000 blanks in a parameter took seconds of the event loop."""
    short, long = (search(pattern, ["<tool_call><p=a>" + " " * count])[1] for count in (2_000, 200_000))
    assert long <= short + 100


def test_a_match_has_a_limit() -> None:
    assert search("a.*b", ["a" + "x" * 8 + "b"], limit=10)[0] == Match(0, 10, {})
    for pieces in (["a" + "x" * 9 + "b" + "aab"], list("a" + "x" * 9 + "b" + "aab")):
        assert search("a.*b", pieces, limit=10)[0] == Match(11, 14, {})


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(?=a)", "lookaround"),
        (r"(?<!a)b", "lookaround"),
        (r"(?P=x)", "not supported"),
        (r"(a)\1", "not supported"),
        (r"a++", "possessive"),
        (r"(", "missing"),
        (r"a)", "unbalanced"),
        (r"[a", "missing"),
        (r"*a", "nothing to repeat"),
        (r"(?:(?:a{1000}){1000})", "larger than"),
        (r"a{2000}", "repeats more"),
        (r"(?P<x>a)+", "named group"),
        ("(" * 60 + ")" * 60, "deep"),
        (r"\p{L}", "not supported"),
        (r"[b-a]", "range"),
    ],
)
def test_what_is_not_supported_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(PatternError, match=why):
        compiled(pattern)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_shortest_text_is_taken(pattern: str) -> None:
    parts = shortest(parsed(pattern))
    text = "".join("aa" if isinstance(p, Hole) else p for p in parts)
    if r"\B" in pattern:
        return
    found, _ = search(pattern, [text])
    assert found is not None
    assert (found.start, found.end) == (0, len(text))


def test_control_tokens_are_one_character() -> None:
    held = compiled(
        r"<\|c\|>(?P<name>[^<]+).*?<\|m\|>", {"<|c|>": "\ud800", "<|m|>": "\ud801", "<|x|>": "\ud802"}
    )
    matcher = Matcher(held)
    matcher.feed("<|c|>a\ud800ab\ud802c\ud801")  # [^<] does not take a token whose spelling has a '<'
    assert matcher.found == Match(6, 12, {"name": (7, 9)})
