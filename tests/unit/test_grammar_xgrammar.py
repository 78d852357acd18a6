"""What the adapter to xgrammar has beside patterns and choices (tests/unit/test_grammar_backends.py)."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tests.fakes.walks import VOCABULARY, accepts, allowed, compiled, walk

from octavo.grammar.base import GrammarError, Vocabulary
from octavo.grammar.xgr import XgrammarBackend
from octavo.wire.sampling import StructuredSpec


def test_objects_are_json_and_repeat_no_key() -> None:
    matcher, rng, done = compiled("json_object", "", backend="xgrammar"), random.Random(7), 0
    for _ in range(60):
        text, how = walk(matcher, rng)
        if how == "complete":
            assert isinstance(json.loads(text, object_pairs_hook=_unique), dict), text
            done += 1
    assert done > 30
    assert accepts(matcher, '{"a":1,"b":{"a":[2]}}') and not accepts(matcher, '{"a":1,"a":2}')


def _unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(items)) == len(items), items
    return dict(items)


def test_white_space_is_compact_or_bounded() -> None:
    assert not accepts(compiled("json_object", "", backend="xgrammar"), '{"a": 1}')
    loose = compiled("json_object", "", backend="xgrammar", any_whitespace=True)
    assert accepts(loose, '{"a": 1}') and not accepts(loose, '{"a":' + " " * 40 + "1}")
    with pytest.raises(GrammarError, match="whitespace_pattern"):
        compiled("json_object", "", backend="xgrammar", whitespace_pattern=" ?")


@pytest.mark.parametrize("kind", ["gbnf", "ebnf"])
def test_grammars(kind: str) -> None:
    matcher = compiled(kind, 'root ::= ("yes" | "no") "!"{1,2}', backend="xgrammar")
    assert accepts(matcher, "yes!!") and not accepts(matcher, "no") and not accepts(matcher, "yes!!!")
    with pytest.raises(GrammarError):
        compiled(kind, "root ::= (", backend="xgrammar")


def test_a_token_that_is_no_text_is_never_allowed() -> None:
    matcher = compiled("regex", "[^x]*", backend="xgrammar")
    assert {i for i in VOCABULARY.special if i in allowed(matcher)} == set()
    assert matcher.advance([max(VOCABULARY.special)]) == 0


def test_a_vocabulary_without_an_end_is_refused() -> None:
    with pytest.raises(GrammarError, match="needs a model with an end token"):
        XgrammarBackend().compile(
            StructuredSpec(kind="regex", text="a"), Vocabulary([b"a"], frozenset(), frozenset())
        )
