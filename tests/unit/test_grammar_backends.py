"""The extra backends keep the protocol of the first one: same pattern, same answers, or a refusal."""

from __future__ import annotations

import random
import re

import pytest
from tests.fakes.walks import END, VOCABULARY, accepts, allowed, compiled, walk

from octavo.grammar import backends
from octavo.grammar.base import GrammarError

EXTRAS = ("xgrammar", "outlines", "lm-format-enforcer")
KINDS = {"xgrammar": "choice, ebnf, gbnf, json_object, regex"}  # others: choice, regex
PATTERNS = [
    ("[a-c]{2}x*", ["ab", "ccxx"], ["a", "abc", "dd"]),
    ("(foo|ba+r)[0-9]{2,3}é?", ["foo12", "baar123é"], ["foo1", "bar1234"]),
    (r"\d{1,3}(\.\d+)?", ["1", "12.5"], ["", "1.", "a"]),
]


@pytest.mark.parametrize("name", EXTRAS)
@pytest.mark.parametrize(("pattern", "good", "bad"), PATTERNS)
def test_patterns(name: str, pattern: str, good: list[str], bad: list[str]) -> None:
    matcher = compiled("regex", pattern, backend=name)
    assert [accepts(matcher, one) for one in good] == [True] * len(good)
    assert [accepts(matcher, one) for one in bad] == [False] * len(bad)
    rng = random.Random(pattern)
    for _ in range(10):
        text, how = walk(matcher, rng)
        assert how in ("complete", "long") and (how == "long" or re.fullmatch(pattern, text))


@pytest.mark.parametrize("name", EXTRAS)
def test_the_protocol(name: str) -> None:
    matcher = compiled("choice", '["yes", "no", "q\\"(."]', backend=name)
    before, other = allowed(matcher), matcher.copy()
    assert END not in before and before
    ids = VOCABULARY.spell(b"yes")
    assert matcher.advance(ids) == 3 and matcher.is_accepting and matcher.is_terminated
    assert matcher.advance([ids[0]]) == 0 and matcher.problem is None
    assert allowed(matcher) == [] and allowed(other) == before
    assert matcher.rollback(3) and allowed(matcher) == before and not matcher.rollback(1)
    assert accepts(other, 'q"(.') and not accepts(other, "q")


@pytest.mark.parametrize("name", EXTRAS)
@pytest.mark.parametrize("pattern", ["(", "(?=a)b", r"a\bb"])
def test_patterns_that_they_do_not_do_are_refused(name: str, pattern: str) -> None:
    with pytest.raises(GrammarError):
        compiled("regex", pattern, backend=name)


@pytest.mark.parametrize("name", EXTRAS)
def test_kinds_that_they_do_not_do_are_refused_by_name(name: str) -> None:
    with pytest.raises(
        GrammarError, match=f"{name} has no json_schema; it has {KINDS.get(name, 'choice, regex')}$"
    ):
        compiled("json_schema", "{}", backend=name)


def test_a_backend_that_is_not_installed_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends.BACKENDS, "outlines", ("octavo.grammar.absent", "X", "outlines-core"))
    backends.backend.cache_clear()
    with pytest.raises(GrammarError, match=r"needs the package outlines-core .*pip install outlines-core"):
        compiled("regex", "a", backend="outlines")
    backends.backend.cache_clear()
