"""Every kind of grammar but JSON Schema, and the protocol that all matchers keep."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from tests.fakes.walks import END, TOKENS, VOCABULARY, accepts, allowed, compiled, walk

from octavo.grammar.backends import backend, resolve
from octavo.grammar.base import GrammarError, Vocabulary
from octavo.grammar.batch import fill_all
from octavo.grammar.ebnf import is_lark, to_lark
from octavo.grammar.keys import UniqueKeys

KINDS = [
    ("regex", "[a-c]{2}x*", ["ab", "ccxx"], ["a", "abc", "dd"]),
    ("choice", '["yes", "no", "q\\"\\n\\u0001é"]', ["yes", 'q"\n\x01é'], ["maybe", "ye", ""]),
    ("json_object", "", ["{}", '{"a":[1,{"b":null}]}'], ["[]", "1", '{"a":1 }', '{"a":1,"a":2}']),
    ("lark", 'start: "a" b+\nb: /[0-9]/ | "(" b ")"', ["a1", "a((2))3"], ["a", "a()"]),
    ("gbnf", 'root ::= "a" [b-d]+ ("x" | y){2,3} # note\ny ::= [^"\\n] | "\\u00e9"',
     ["abxx", "abdé]\\"], ["ab", "axx"]),
    ("ebnf", "root = 'a' ('-' | item)* ; (* note *) item = 'b' . ;", ["a", "a-b]"], ["ab", "b"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "good", "bad"), KINDS, ids=lambda x: str(x)[:12])
def test_what_each_kind_accepts(kind: str, text: str, good: list[str], bad: list[str]) -> None:
    matcher = compiled(kind, text)
    assert [accepts(matcher, one) for one in good] == [True] * len(good)
    assert [accepts(matcher, one) for one in bad] == [False] * len(bad)


def test_a_copy_is_independent_and_tokens_can_be_taken_back() -> None:
    for kind, text, good, _ in KINDS:
        matcher = compiled(kind, text)
        ids = VOCABULARY.spell(good[-1].encode())
        before = allowed(matcher)
        other = matcher.copy()
        assert matcher.advance(ids) == len(ids) and matcher.is_accepting
        assert allowed(other) == before, "the copy did not move"
        assert matcher.rollback(len(ids)) and allowed(matcher) == before
        assert matcher.advance(ids) == len(ids)


def test_a_token_that_does_not_fit_is_not_taken_and_says_so() -> None:
    matcher = compiled("regex", "ab")
    assert matcher.advance(VOCABULARY.spell(b"ax")) == 1
    done = compiled("choice", '["ab"]')
    done.advance(VOCABULARY.spell(b"ab"))
    assert done.is_terminated and done.is_accepting and done.problem is None and allowed(done) == []


def test_special_tokens_are_no_text_and_are_named_in_lark() -> None:
    assert END not in allowed(compiled("regex", "(?s:.*)")), "the end is the caller's to allow"
    named = compiled("lark", 'start: "x"? <tool> "y"')
    assert END + 1 in allowed(named)
    assert named.advance([END + 1, ord("y")]) == 2 and named.is_terminated
    assert END + 1 not in allowed(compiled("regex", "<tool>"))


def test_rows_together_are_rows_one_by_one() -> None:
    matchers = [compiled(kind, text) for kind, text, _, _ in KINDS] + [
        compiled("json_schema", '{"const": 1}')
    ]
    for matcher in matchers[:3]:
        matcher.advance(allowed(matcher)[:1])
    masks = np.full((2 * len(matchers), VOCABULARY.num_words), 0xFFFFFFFF, np.uint32)
    rows = [2 * i for i in range(len(matchers))]
    fill_all(matchers, masks, rows)
    for matcher, row in zip(matchers, rows, strict=True):
        alone = np.zeros(VOCABULARY.num_words, np.uint32)
        matcher.fill(alone)
        assert (masks[row] == alone).all()
        assert (masks[row + 1] == 0xFFFFFFFF).all(), "a row of somebody else was written"


# ---- keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"b":2,"a":3}',
        '{"a":1,"\\u0061":2}',
        '{"\\u0061":1,"a":2}',
        '{"é":{"é":1,"x":[{"x":1},{"x":2}]},"é":2}',
        '{"q\\"":1,"q\\"":2}',
        '{"":1,"":2}',
        '[{"a":{"b":1,"b":1}}]',
    ],
)
def test_a_key_is_never_repeated(text: str) -> None:
    """Up to the quotation mark that would complete the key again everything is allowed, then that is not."""
    matcher = UniqueKeys(compiled("regex", "(?s:.*)"), VOCABULARY)  # a backend that allows any spelling
    again, ids = matcher.copy(), VOCABULARY.spell(text.encode())
    at = 0
    while ids[at] in allowed(matcher):
        assert matcher.advance([ids[at]]) == 1
        at += 1
    sizes = [len(b"".join(TOKENS[i] for i in ids[:n])) for n in (at, at + 1)]
    assert sizes[0] <= text.encode().rindex(b'"') < sizes[1], "not at the quotation mark"
    assert again.advance(ids) == at, "replayed, it is not taken either"


def test_equal_keys_of_different_objects_are_fine() -> None:
    assert accepts(compiled("json_schema", "{}"), '{"a":{"a":[{"a":1},{"a":2}]},"b":{"a":"\\"a\\":"}}')


def test_schemas_that_name_every_key_pay_nothing_for_it() -> None:
    inner = '"properties": {"a": {"type": "array", "items": {"type": "null"}}}'
    shut = f'{{"type": "object", {inner}, "additionalProperties": false}}'
    assert not isinstance(compiled("json_schema", shut), UniqueKeys)
    for text in (
        "{}",
        '{"type": "array"}',
        '{"properties": {"a": {"type": "object"}}, "additionalProperties": false}',
    ):
        assert isinstance(compiled("json_schema", text), UniqueKeys)


def test_keys_are_unique_in_ten_thousand_drawn_tokens() -> None:
    matcher, rng = (
        compiled("json_schema", '{"additionalProperties": {"maxLength": 3}, "type": "object"}'),
        random.Random(9),
    )
    for _ in range(40):
        text, how = walk(matcher, rng, most=250)
        if how == "complete":
            pairs: list[list[str]] = []
            json.loads(text, object_pairs_hook=lambda p, kept=pairs: kept.append([k for k, _ in p]))  # type: ignore[misc]
            assert all(len(set(keys)) == len(keys) for keys in pairs)


# ---- EBNF ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('rout::="x"', "line 1, column 1: there is no rule 'root'.*'rout'"),
        ('root ::= "a" other', "line 1, column 14: there is no rule 'other'"),
        ('root ::= ("a"\n', "line 2, column 1: '\\)' is missing"),
        ('root ::= "a"\n\n  % b', "line 3, column 3: '%' cannot stand here"),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 1: the rule 'root' is there already"),
        ('root ::= "\\u12"', "hexadecimal"),
        ("root ::= []", "empty set"),
        ("", "no rule 'root'"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "nested more than 64"),
        ('root ::= "a', "line 1, column 10"),
    ],
)
def test_bb_081_a_grammar_that_is_none_is_refused_with_line_and_column(text: str, said: str) -> None:
    """BB-081, and its relatives; over HTTP in tests/multi."""
    with pytest.raises(GrammarError, match=said):
        compiled("gbnf", text)


def test_which_language_a_grammar_is_written_in() -> None:
    assert is_lark('start: "a"') and is_lark("%llguidance {}\nstart: x") and is_lark("x: /a/\n?start: x")
    assert not is_lark('root ::= "a"') and not is_lark('start ::= "a"')
    assert "start: r0" in to_lark('root ::= "a"')


# ---- structural tags ----------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}


def test_triggered_tags() -> None:
    tag = {
        "type": "structural_tag",
        "structures": [{"begin": "<f=a>", "schema": SCHEMA, "end": "</f>"}],
        "triggers": ["<f="],
    }
    matcher = compiled("structural_tag", json.dumps(tag))
    for good in ("no call", 'x <f=a>{"x":1}</f> y', '<f=a>{"x":1}</f><f=a>{"x":2}</f>', "a <f"):
        assert accepts(matcher, good), good
    for bad in ('<f=a>{"x":"s"}</f>', "<f=b>", '<f=a>{"x":1}', '<f=a>{"x": 1}</f>', "a <f= b"):
        assert not accepts(matcher, bad), bad


def test_a_tree_of_nodes() -> None:
    tree = {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": "hi "},
            {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"},
            {"type": "or", "elements": [
                {"type": "regex", "pattern": "a/b|c"}, {"type": "json_schema", "json_schema": SCHEMA},
            ]},
            {
                "type": "tags_with_separator",
                "separator": ";",
                "tags": [{"begin": "[", "content": {"type": "regex", "pattern": "[0-9]+"}, "end": "]"}],
            },
        ],
    }  # fmt: skip
    matcher = compiled("structural_tag", json.dumps({"format": tree}))
    for good in ("hi <t>x</t>a/b", 'hi <t></t>{"x":3}[1];[22]', "hi <t><t></t>c[0]"):
        assert accepts(matcher, good), good
    for bad in ("hi <t>x</t>", "hi <t>x</t>y</t>c", "hi <t>x</t>c[1][2]"):
        assert not accepts(matcher, bad), bad


def test_at_least_one_and_stop_after_first() -> None:
    node = {
        "type": "triggered_tags",
        "triggers": ["<"],
        "tags": [{"begin": "<a>", "content": {"type": "const_string", "value": "1"}, "end": "</a>"}],
        "at_least_one": True,
        "stop_after_first": True,
    }
    matcher = compiled("structural_tag", json.dumps({"format": node}))
    assert (
        accepts(matcher, "so <a>1</a>") and not accepts(matcher, "so") and not accepts(matcher, "<a>1</a>x")
    )


@pytest.mark.parametrize(
    ("tag", "said"),
    [
        ({}, "neither a format nor structures"),
        ([], "must be an object"),
        (
            {"format": {"type": "grammar", "grammar": "x"}},
            "/format/type is 'grammar'; known are const_string",
        ),
        ({"format": {"type": "const_string", "value": 3}}, "/format/value must be text"),
        ({"format": {"type": "any_text", "excludes": ["a"]}}, "/format/excludes is not supported"),
        ({"format": {"type": "json_schema", "json_schema": {"not": {}}}}, "not at /not"),
        ({"structures": [{"begin": "x", "schema": {}, "end": ""}], "triggers": ["y"]}, "starts with none"),
    ],
)
def test_a_tag_that_cannot_act_is_refused_by_name(tag: object, said: str) -> None:
    with pytest.raises(GrammarError, match=said):
        compiled("structural_tag", json.dumps(tag))


# ---- backends and vocabularies ------------------------------------------------------------------


def test_backends_by_name() -> None:
    assert resolve("auto") == resolve("guidance") == backend("auto").name == "llguidance"
    with pytest.raises(GrammarError, match="no grammar backend 'xyz'; known are auto"):
        resolve("xyz")


def test_forced_text_is_spelled_exactly_or_by_the_longest_tokens() -> None:
    tokens = [b"a", b"ab", b"abc", b"c", b"<s>"]
    plain = Vocabulary(tokens, frozenset({4}), frozenset({4}))
    assert plain.spell(b"abcc") == [2, 3] and plain.spell(b"ax") == []
    wrong = Vocabulary(tokens, frozenset({4}), frozenset({4}), lambda text: [3])
    assert wrong.spell(b"abcc") == [2, 3], "an encoding of other bytes is not taken"
    own = Vocabulary(tokens, frozenset({4}), frozenset({4}), lambda text: [1, 3, 3])
    assert own.spell(b"abcc") == [1, 3, 3]


def test_as_many_choices_as_a_request_may_have_are_one_automaton() -> None:
    """As alternatives of a rule they passed the parser's limit of items after the first token."""
    choices = [f"word {i}" for i in range(4_096)]
    matcher = compiled("choice", json.dumps(choices))
    assert all(accepts(matcher, choice) for choice in choices[::512])
    text, end = walk(matcher, random.Random(1))
    assert end == "complete"
    assert text in choices
    either = compiled("choice", json.dumps(["yes", "yes, but", ""]))
    assert [accepts(either, text) for text in ("", "yes", "yes, but", "yes,")] == [True, True, True, False]
