"""The examples of docs/structured-output.md are sent as they stand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from tests.fakes.api_world import world
from tests.fakes.walks import accepts, compiled

TEXT = (Path(__file__).parents[2] / "docs" / "structured-output.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"curl -s http://127\.0\.0\.1:8000(\S+) .*?-d '(\{.*?\n\})'", TEXT, re.DOTALL)
ANSWERS = ['{"name":"Ada","age":36}', "grey", "09:30"]


def test_every_example_is_found() -> None:
    assert len(EXAMPLES) == len(ANSWERS) == TEXT.count("curl -s")


@pytest.mark.parametrize(("example", "answer"), list(zip(EXAMPLES, ANSWERS, strict=True)), ids=ANSWERS)
async def test_the_request(example: tuple[str, str], answer: str) -> None:
    path, body = example[0], json.loads(example[1])
    async with world(answer) as w:
        got = await w.post(path, body)
        assert got.status_code == 200, got.text
        spec = w.engine.seen[-1].params.structured
    (choice,) = got.json()["choices"]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert (text, choice["finish_reason"]) == (answer, "stop")
    assert spec is not None
    matcher = compiled(spec.kind, spec.text)
    assert accepts(matcher, answer) and not accepts(matcher, answer[:-1])


def test_the_answer_of_the_schema_validates() -> None:
    schema = json.loads(EXAMPLES[0][1])["response_format"]["json_schema"]["schema"]
    jsonschema.validate(json.loads(ANSWERS[0]), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"name": "Ada"}, schema)


@pytest.mark.parametrize("field", ["structured_outputs", "response_format"])
async def test_without_its_constraint_the_example_would_pass_anything(field: str) -> None:
    """So the tests above see the constraint act: an answer that breaks it is an error."""
    path, text = next(e for e in EXAMPLES if f'"{field}"' in e[1])
    async with world("no such answer") as w:
        assert (await w.post(path, json.loads(text))).status_code == 500
        free = {k: v for k, v in json.loads(text).items() if k != field}
        assert (await w.post(path, free)).status_code == 200
