"""`structured_outputs`, `response_format` and --structured-outputs-config: names, shapes, what contradicts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.config.structured import StructuredPlan, structured_plan
from octavo.errors import ConfigError, InvalidRequest
from octavo.grammar.request import from_response_format, from_structured_outputs

PLAN = StructuredPlan()
SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"json": SCHEMA}, "json_schema", json.dumps(SCHEMA)),
        ({"json": json.dumps(SCHEMA)}, "json_schema", json.dumps(SCHEMA)),
        ({"regex": "a+"}, "regex", "a+"),
        ({"choice": ["a", "b", "a"]}, "choice", '["a", "b"]'),
        ({"grammar": 'root ::= "a"'}, "gbnf", 'root ::= "a"'),
        ({"grammar": 'start: "a"'}, "lark", 'start: "a"'),
        ({"grammar": "root = 'a';"}, "ebnf", "root = 'a';"),
        ({"json_object": True, "regex": None}, "json_object", ""),
        ({"structural_tag": {"format": {}}}, "structural_tag", '{"format": {}}'),
    ],
)
def test_what_becomes_of_each_constraint(given: dict[str, Any], kind: str, text: str) -> None:
    spec = from_structured_outputs(given, PLAN)
    assert spec is not None and (spec.kind, spec.text) == (kind, text)
    assert spec.backend == "llguidance" and not spec.any_whitespace and spec.additional_properties


@pytest.mark.parametrize(
    ("given", "param", "said"),
    [
        ({"json": SCHEMA, "regex": "a"}, "structured_outputs", "json and regex; exactly one"),
        ({"disable_any_whitespace": True}, "structured_outputs", "none of them"),
        ({"jsonn": 1}, "structured_outputs.jsonn", "not known"),
        ({"json": ""}, "structured_outputs.json", "empty"),
        ({"json": 3}, "structured_outputs.json", "JSON Schema"),
        ({"regex": ""}, "structured_outputs.regex", "at least one character"),
        ({"regex": "a\0"}, "structured_outputs.regex", "NUL"),
        ({"choice": []}, "structured_outputs.choice", "not empty"),
        ({"choice": [""]}, "structured_outputs.choice", "empty text"),
        ({"choice": [1]}, "structured_outputs.choice", "list of texts"),
        ({"choice": [str(i) for i in range(5_000)]}, "structured_outputs.choice", "4,096"),
        ({"json_object": False}, "structured_outputs.json_object", "only be true"),
        ({"grammar": 1}, "structured_outputs.grammar", "text"),
        ({"regex": "a", "backend": "x"}, "structured_outputs.backend", "known are auto"),
        ({"regex": "a", "disable_any_whitespace": True}, "structured_outputs.disable_any_whitespace", "acts on JSON"),
        ({"json": {}, "whitespace_pattern": 1}, "structured_outputs.whitespace_pattern", "pattern"),
        ({"json": {}, "disable_any_whitespace": 1}, "structured_outputs.disable_any_whitespace", "true or false"),
    ],
)  # fmt: skip
def test_what_cannot_act_is_refused_by_name(given: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        from_structured_outputs(given, PLAN)
    assert refused.value.param == param and refused.value.status == 400


def test_a_schema_that_is_nested_too_deep_is_refused() -> None:
    deep: Any = {}
    for _ in range(70):
        deep = {"items": deep}
    for given in (deep, {"properties": {"a": deep}}):
        with pytest.raises(InvalidRequest, match="more than 64 deep") as refused:
            from_structured_outputs({"json": given}, PLAN)
        assert refused.value.param == "structured_outputs.json"


def test_response_formats() -> None:
    assert from_response_format({"type": "text"}, PLAN) is None
    whole = from_response_format({"type": "json_object"}, PLAN)
    assert whole is not None and whole.kind == "json_object"
    for strict in ({}, {"strict": True}, {"strict": False}, {"strict": None}):
        held = {"name": "x", "description": "d", "schema": SCHEMA, **strict}
        spec = from_response_format({"type": "json_schema", "json_schema": held}, PLAN)
        assert spec is not None and json.loads(spec.text) == SCHEMA, "strict or not, it is enforced"
    tag = from_response_format({"type": "structural_tag", "format": {"type": "any_text"}}, PLAN)
    assert tag is not None and tag.kind == "structural_tag"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"type": "xml"}, "response_format.type"),
        ({}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": [1]}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "strikt": 1}}, "response_format.json_schema.strikt"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}, "response_format.json_schema.strict"),
    ],
)  # fmt: skip
def test_response_formats_that_cannot_act(given: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        from_response_format(given, PLAN)
    assert refused.value.param == param


def test_the_servers_defaults_and_what_a_request_says_of_its_own() -> None:
    plan = structured_plan(
        {"backend": "guidance", "disable_any_whitespace": False, "disable_additional_properties": True}
    )
    assert plan == StructuredPlan(any_whitespace=True, additional_properties=False)
    spec = from_structured_outputs({"json": {}}, plan)
    assert spec is not None and spec.any_whitespace and not spec.additional_properties
    own = {"json": {}, "disable_any_whitespace": True, "disable_additional_properties": False}
    spec = from_structured_outputs(own, plan)
    assert spec is not None and not spec.any_whitespace and spec.additional_properties
    assert structured_plan({}) == PLAN


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"backend": "sglang"}, "allowed: auto, guidance"),
        ({"backend": 3}, "allowed: auto"),
        ({"enable_in_reasoning": True}, "'enable_in_reasoning', which does not act"),
        ({"reasoning_parser": "x"}, "--reasoning-parser"),
        ({"bakend": "auto"}, "sets 'bakend'.*allowed: backend"),
        ({"disable_any_whitespace": "yes"}, "true or false"),
    ],
)
def test_a_config_that_cannot_act_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        structured_plan(asked)
