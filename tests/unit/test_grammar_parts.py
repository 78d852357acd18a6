"""Keys of JSON among other text: never repeated where a schema leaves them open; free text is left alone."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy as np
import pytest
from tests.fakes.walks import accepts, allowed, compiled, walk

from octavo.grammar.base import Vocabulary
from octavo.grammar.llg import LlguidanceBackend
from octavo.grammar.parts import UniqueKeysInParts
from octavo.wire.sampling import StructuredSpec

OPEN = json.dumps({"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9}})
CALL = f'start: head part "</call>"\nhead[lazy]: /(?s:.*)/ "<call>"\npart: %json {OPEN}'


@pytest.mark.parametrize(
    "before", ["", 'a 5" nail, {"x": 1, "x": 2} and {"a":1, ', '{"a":{"b":', '"', "{", '{"']
)
def test_a_key_is_not_repeated_behind_free_text(before: str) -> None:
    matcher = compiled("lark", CALL)
    assert accepts(matcher, before + '<call>{"a":1,"b":2}</call>')
    assert not _is_allowed(matcher, before + '<call>{"a":1,"b":2,"a', '"')
    assert not _is_allowed(matcher, before + '<call>{"a":1,"', 'a"')
    assert _is_allowed(matcher, before + '<call>{"a":1,"b":2,"aa', '"')


def _is_allowed(matcher: Any, text: str, more: str) -> bool:
    """Whether every byte of `more` may follow `text`."""
    state = matcher.copy()
    ids = list(text.encode())
    assert state.advance(ids) == len(ids), text
    for byte in more.encode():
        if byte not in allowed(state):
            return False
        state.advance([byte])
    return True


def test_inner_objects_have_keys_of_their_own() -> None:
    grammar = 'start: "> " part\npart: %json {"type": "object"}'
    matcher = compiled("lark", grammar)
    assert isinstance(matcher, UniqueKeysInParts)
    for good in ('{"a":{"a":1},"b":[{"a":2},{"a":3}]}', '{"a":"{\\"a\\":1,","b":"}{"}', '{"a":"b","b":"a"}'):
        assert _is_allowed(matcher, "> ", good), good
    for bad in ('{"a":{"b":1,"b":2}}', '{"a":[1,{"x":{}}],"a":2}', '{"a":"}","a":1}', '{"\\u0061":1,"a":2}'):
        assert not _is_allowed(matcher, "> ", bad), bad


def test_what_is_taken_back_is_forgotten() -> None:
    matcher = compiled("lark", 'start: "> " part\npart: %json {"type": "object"}')
    other = matcher.copy()
    ids = list(b'> {"a":1,"a')
    assert matcher.advance(ids) == len(ids) and ord('"') not in allowed(matcher)
    assert matcher.rollback(len(b'"a":1,"a')) and matcher.advance(list(b'"a')) == 2
    assert ord('"') in allowed(matcher) and ord(">") in allowed(other)


def test_structural_tags() -> None:
    tag = {
        "structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}],
        "triggers": ["<f"],
    }
    matcher = compiled("structural_tag", json.dumps(tag))
    assert not _is_allowed(matcher, 'see {"k":1,"k":2} <f>{"k":1,', '"k"')
    assert _is_allowed(matcher, 'see {"k":1,', '"k":2} <f>{"k":1}</f>')


def test_closed_schemas_cost_nothing() -> None:
    closed = '{"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": false}'
    assert not isinstance(compiled("lark", f"start: part\npart: %json {closed}"), UniqueKeysInParts)


def test_walks_repeat_no_key() -> None:
    matcher = compiled("lark", 'start: /[a-z{}",: ]{0,9}/ "#" part\npart: %json ' + OPEN)
    rng, seen = random.Random(4), 0
    for _ in range(100):
        text, how = walk(matcher, rng)
        if how == "complete":
            pairs = json.loads(text.partition("#")[2], object_pairs_hook=lambda items: items)
            assert len(dict(pairs)) == len(pairs), text
            seen += len(pairs) > 1
    assert seen > 10
    assert re.fullmatch(r"[^#]*#\{.*\}", text, re.DOTALL)


def test_objects_far_outside_cost_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 60 objects that are open, with a key each, a mask looks at those alone that one token could go back to."""
    matcher = compiled("lark", 'start: "> " part\npart: %json {"type": "object"}')
    assert isinstance(matcher, UniqueKeysInParts)
    ids = list(b"> " + b'{"a":1,"b":' * 60 + b"{")
    assert matcher.advance(ids) == len(ids)
    tried: list[int] = []
    true = UniqueKeysInParts._try

    def counted(self: UniqueKeysInParts, row: Any, tokens: Any, ends: Any) -> None:
        tried.append(len(tokens))
        true(self, row, tokens, ends)

    monkeypatch.setattr(UniqueKeysInParts, "_try", counted)
    allowed(matcher)
    assert len(tried) <= 2, "the innermost, and one that a bracket leads back to"
    assert matcher.advance(list(b"}" * 60 + b',"')) == 62
    assert ord("a") in allowed(matcher), "a longer key"
    assert matcher.advance([ord("a")]) == 1 and ord('"') not in allowed(matcher), "the outermost key again"


def test_a_token_that_closes_objects_and_repeats_a_key_is_banned() -> None:
    """As many brackets as a token of the vocabulary can close are still looked behind."""
    tokens = [bytes([b]) for b in range(256)] + [b'1}},"a"', b'1}},"c"', b"<end>"]
    vocabulary = Vocabulary(tokens, frozenset((258,)), frozenset((258,)))
    spec = StructuredSpec(kind="lark", text='start: "> " part\npart: %json {"type": "object"}')
    matcher = LlguidanceBackend().compile(spec, vocabulary)
    ids = list(b'> {"a":{"b":{"d":')
    assert matcher.advance(ids) == len(ids)
    row = np.zeros(vocabulary.num_words, np.uint32)
    matcher.fill(row)
    assert not row[256 >> 5] >> np.uint32(0) & 1 and row[257 >> 5] >> np.uint32(1) & 1
