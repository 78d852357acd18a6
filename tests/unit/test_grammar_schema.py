"""Each JSON Schema keyword: what a grammar lets through validates, or the schema is refused naming the keyword."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from jsonschema_specifications import REGISTRY
from tests.fakes.schemas import MAKERS, Schema, nested, scalar
from tests.fakes.walks import WALKS, accepts, check, compiled, walk

from octavo.grammar.base import GrammarError
from octavo.grammar.keywords import ANNOTATIONS, ENFORCED, NEUTRAL, REFUSED, table

SCHEMAS = 20  # per keyword


def test_every_enforced_keyword_has_a_maker() -> None:
    assert set(MAKERS) == set(ENFORCED)
    listed = [row[0] for row in table()]
    assert len(listed) == len(set(listed)) == len(ENFORCED) + len(ANNOTATIONS) + len(REFUSED)


@pytest.mark.parametrize("keyword", sorted(ENFORCED))
def test_generated_schemas_are_enforced_or_refused_by_name(keyword: str) -> None:
    rng = random.Random(keyword)
    done = 0
    for _ in range(SCHEMAS):
        schema = MAKERS[keyword](rng)
        assert keyword in json.dumps(schema)
        try:
            done += check(schema, rng)
        except GrammarError as error:
            assert error.keyword and error.pointer, f"{schema}: {error}"
            assert error.keyword in schema, f"{schema}: {error}"
    assert done >= SCHEMAS, f"only {done} of {SCHEMAS * WALKS} answers ended"


def test_every_keyword_of_the_drafts_is_in_the_table() -> None:
    """Drafts 7, 2019-09 and 2020-12, by their own meta-schemas."""
    found: set[str] = set()
    for uri in REGISTRY:
        if re.search(r"draft-07|draft/20", uri):
            found |= set(REGISTRY.contents(uri).get("properties", ()))
    assert len(found) > 55 and {"$recursiveRef", "$dynamicRef", "dependencies", "additionalItems"} < found
    assert found <= {row[0] for row in table()}


@pytest.mark.parametrize("keyword", sorted(REFUSED))
def test_a_keyword_that_cannot_be_enforced_is_refused_with_its_pointer(keyword: str) -> None:
    """BB-091, over HTTP in tests/multi."""
    rng = random.Random(keyword)
    for _ in range(SCHEMAS):
        schema: Schema = scalar(rng) | {keyword: rng.choice([{"type": "string"}, True, ["a"], 1, {}])}
        pointer = f"/{keyword}"
        for _ in range(rng.randint(0, 3)):
            at, wrap = rng.choice(PLACES)
            schema, pointer = wrap(schema), at + pointer
        with pytest.raises(GrammarError) as refused:
            compiled("json_schema", json.dumps(schema))
        assert (refused.value.keyword, refused.value.pointer) == (keyword, pointer)
        assert keyword in str(refused.value) and REFUSED[keyword] in str(refused.value)


PLACES: list[tuple[str, Callable[[Schema], Schema]]] = [
    ("/properties/a~1b", lambda s: {"type": "object", "properties": {"a/b": s}}),
    ("/items", lambda s: {"type": "array", "items": s}),
    ("/anyOf/1", lambda s: {"anyOf": [{"type": "null"}, s]}),
    ("/$defs/~0", lambda s: {"$ref": "#/$defs/~0", "$defs": {"~": s}}),
    ("/additionalProperties", lambda s: {"additionalProperties": s}),
]


def test_annotations_and_neutral_values_change_nothing() -> None:
    noted: Schema = dict.fromkeys(ANNOTATIONS, "text") | {"x-order": 1} | NEUTRAL
    assert accepts(compiled("json_schema", json.dumps({"type": "integer", **noted})), "12")


def test_an_unknown_keyword_is_refused() -> None:
    with pytest.raises(GrammarError, match=r"requierd at /requierd .* spelling") as refused:
        compiled("json_schema", '{"type": "object", "requierd": ["a"]}')
    assert refused.value.keyword == "requierd"


REFUSALS: list[tuple[Any, str, str]] = [
    ({"type": "str"}, "type", "/type"),
    ({"properties": {"a": {"type": "string", "pattern": "(?=x)y"}}}, "pattern", "/properties/a/pattern"),
    ({"oneOf": [{"type": "string"}, {"minLength": 2}]}, "oneOf", "/oneOf"),
    ({"type": "object", "properties": {"a": {}}, "minProperties": 3}, "minProperties", "/minProperties"),
    ({"$ref": "#/$defs/x"}, "$ref", "/$ref"),
    ({"$ref": "http://example.org/s"}, "$ref", "/$ref"),
    ({"$ref": "#/enum/0", "enum": [{"type": "string"}]}, "$ref", "/$ref"),
    ({"items": {"multipleOf": 0}}, "multipleOf", "/items/multipleOf"),
    ({"items": [{"type": "string"}]}, "items", "/items"),
    ({"enum": []}, "enum", "/enum"),
    ({"type": "string", "format": "iban"}, "format", "/format"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, "minimum", "/minimum"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "allOf", "/allOf"),
    ({"minLength": -1}, "minLength", "/minLength"),
    ({"anyOf": []}, "anyOf", "/anyOf"),
    ({"properties": {"a": 3}}, "a", "/properties/a"),
]


@pytest.mark.parametrize(("schema", "keyword", "pointer"), REFUSALS, ids=lambda x: str(x)[:30])
def test_what_the_backend_cannot_do_is_found_and_named(schema: Any, keyword: str, pointer: str) -> None:
    """BB-079 is the first."""
    with pytest.raises(GrammarError) as refused:
        compiled("json_schema", json.dumps(schema))
    assert (refused.value.keyword, refused.value.pointer) == (keyword, pointer), refused.value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "must be an object"),
        ('{"a":', "not JSON"),
        ('{"const": NaN}', "NaN"),
        ('{"type": "string", "type": "null"}', "twice"),
        ('{"items":' * 65 + "{}" + "}" * 65, "more than 64 deep"),
        ('{"const":' + "[" * 100_000 + "]" * 100_000 + "}", "more than 64 deep"),
        ('{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}', "no text"),
    ],
)
def test_a_schema_that_is_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(GrammarError, match=said):
        compiled("json_schema", text)


def test_bb_085_properties_keep_their_order_and_their_schemas() -> None:
    """BB-085: a property out of order is not taken for an additional one."""
    schema = {
        "type": "object",
        "properties": {"a": {"const": "foo"}, "b": {"const": "bar"}},
        "required": ["b"],
    }
    matcher = compiled("json_schema", json.dumps(schema))
    assert not accepts(matcher, '{"b":"bar","a":"BAD"}')
    assert accepts(matcher, '{"a":"foo","b":"bar"}')


def test_bb_075_a_property_that_a_pattern_names_too_ends() -> None:
    """BB-075: `score` is named twice; the answer is valid, and never white space without end."""
    schema = {
        "type": "object",
        "properties": {"score": {"type": "integer", "maximum": 99, "minimum": 0}},
        "required": ["score"],
        "additionalProperties": False,
        "patternProperties": {"^score$": {"type": "integer"}},
    }
    assert check(schema, random.Random(1), walks=20) == 20


def test_days_that_do_not_exist_are_no_dates() -> None:
    matcher, rng = compiled("json_schema", '{"type": "string", "format": "date"}'), random.Random(3)
    for _ in range(40):
        text, how = walk(matcher, rng)
        assert how == "complete" and date.fromisoformat(json.loads(text))
    for bad in ("2023-02-29", "2024-13-01", "0000-01-01", "2024-06-31"):
        assert not accepts(matcher, f'"{bad}"')
    moment = compiled("json_schema", '{"format": "date-time", "type": "string"}')
    assert accepts(moment, '"2024-02-28T23:59:59.5+01:00"') and not accepts(moment, '"2024-02-30T00:00:00Z"')


def test_white_space_is_compact_or_bounded() -> None:
    schema = '{"type": "object", "properties": {"a": {"type": "array", "items": {"type": "null"}}}}'
    pretty, compact = '{\n  "a": [null, null]\n}', '{"a":[null,null]}'
    assert accepts(compiled("json_schema", schema), compact)
    assert not accepts(compiled("json_schema", schema), pretty)
    loose = compiled("json_schema", schema, any_whitespace=True)
    assert accepts(loose, compact) and accepts(loose, pretty)
    assert not accepts(loose, '{  "a":[null]}') and not accepts(loose, '{\n\n"a":[null]}')
    spaced = compiled("json_schema", schema, whitespace_pattern="_")
    assert accepts(spaced, '{_"a":_[null]}')


def test_silent_objects_are_closed_on_request() -> None:
    schema = '{"type": "object", "properties": {"a": {"type": "object"}}, "required": ["a"]}'
    assert accepts(compiled("json_schema", schema), '{"a":{"x":1},"b":2}')
    shut = compiled("json_schema", schema, additional_properties=False)
    assert (
        accepts(shut, '{"a":{}}')
        and not accepts(shut, '{"a":{},"b":2}')
        and not accepts(shut, '{"a":{"x":1}}')
    )


def test_two_hundred_nested_schemas_validate() -> None:
    """Schemas of several keywords in each other, as people write them."""
    rng = random.Random(200)
    done = refused = 0
    for _ in range(200):
        schema = nested(rng, 2)
        try:
            done += check(schema, rng, walks=2)
        except GrammarError as error:
            assert error.keyword, f"{schema}: {error}"
            refused += 1
    assert done > 250 and refused < 20


def test_patterns_that_list_keys_are_properties() -> None:
    """A pattern with a few keys cannot lead to a comma after which no key is left."""
    schema = {
        "type": "object",
        "patternProperties": {"^(x|y\\.z)$": {"type": "integer"}, "^n": {"type": "null"}},
        "additionalProperties": False,
        "properties": {"x": {"minimum": 3}},
    }
    matcher = compiled("json_schema", json.dumps(schema))
    assert accepts(matcher, '{"x":4,"y.z":1,"n1":null,"n2":null}')
    assert not accepts(matcher, '{"x":2}') and not accepts(matcher, '{"yz":1}')
    check(schema, random.Random(5), walks=20)
