"""Structured output over HTTP, with scripted tokens: what reaches the engine, and what is said of a bad answer.

The scripted engine follows no grammar, so it can give the answers that a fault of ours would.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.fakes.api_world import sse, world

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}


async def test_a_spec_reaches_the_engine_and_a_right_answer_the_client() -> None:
    async with world('{"a":12}') as w:
        for field in ({"response_format": FORMAT}, {"structured_outputs": {"json": SCHEMA}}):
            for answer in (await w.chat(**field), await w.complete(**field, max_tokens=60)):
                assert answer.status_code == 200, answer.text
            spec = w.engine.seen[-1].params.structured
            assert spec is not None and json.loads(spec.text) == SCHEMA and not spec.any_whitespace
        assert w.engine.seen[0].params.structured_outputs is None
        plain = await w.chat(response_format={"type": "text"}, structured_outputs={})
        assert plain.status_code == 200 and w.engine.seen[-1].params.structured is None


@pytest.mark.parametrize("text", ['{"a":"x"}', '{"a":1', '{"a": 1}', "hello", '{"a":1,"a":2}'])
async def test_an_answer_that_breaks_its_grammar_is_an_error_and_never_a_stop(text: str) -> None:
    async with world(text) as w:
        whole = await w.chat(response_format=FORMAT)
        assert whole.status_code == 500 and "breaks its own grammar" in whole.json()["error"]["message"]
        streamed = await w.chat(response_format=FORMAT, stream=True)
        assert "breaks its own grammar" in streamed.text
        reasons = [c["choices"][0].get("finish_reason") for c in sse(streamed.text)[0] if c.get("choices")]
        assert "stop" not in reasons


async def test_an_answer_that_was_cut_says_so_by_its_reason() -> None:
    """With length, or a stop string, nobody claims that it is complete."""
    async with world('{"a":12}') as w:
        cut = (await w.chat(response_format=FORMAT, max_tokens=3)).json()["choices"][0]
        assert cut["finish_reason"] == "length"
        stopped = (await w.chat(response_format=FORMAT, stop=["1"])).json()["choices"][0]
        assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", "1")
        one = w.engine.codec.encode("1", False)
        by_token = (await w.chat(response_format=FORMAT, stop_token_ids=one)).json()["choices"][0]
        assert (by_token["finish_reason"], by_token["stop_reason"]) == ("stop", one[0])


REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
    ({"structured_outputs": {"json": {"type": "str"}}}, "/type", "type at /type"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs", "structured_outputs: .*regex"),
    ({"structured_outputs": {"grammar": "rout::=1"}}, "structured_outputs", "line 1, column"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos", "ends where its grammar"),
    ({"guided_json": {}}, "guided_json", "structured_outputs"),
    ({"structured_outputs": {"json": {}, "backend": "outlines"}}, "structured_outputs", "has no json_schema"),
    ({"response_format": FORMAT, "structured_outputs": {"regex": "a"}}, "structured_outputs", "both"),
]


@pytest.mark.parametrize(("fields", "param", "said"), REFUSALS)
async def test_what_cannot_act_is_a_400_before_anything_runs(
    fields: dict[str, Any], param: str, said: str
) -> None:
    async with world() as w:
        for answer in (
            await w.chat(**fields),
            await w.chat(**fields, stream=True),
            await w.complete(**fields),
        ):
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert error["param"] == param
            assert re.search(said, error["message"])
        assert w.engine.seen == []


async def test_the_table_of_keywords_is_served() -> None:
    async with world() as w:
        found = (await w.http.get("/structured_outputs")).json()
    assert found["backend"] == "llguidance" and "json" in found["constraints"]
    assert found["keywords"]["minItems"]["support"] == "enforced"
    assert (
        found["keywords"]["not"]["support"] == "refused"
        and found["keywords"]["title"]["support"] == "annotation"
    )
