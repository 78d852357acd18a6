"""Structured output on a real server: SmolLM2, streamed and not, through crashes, with what others reported.

Names hold the ids of reported cases.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.fakes.schemas import MAKERS
from tests.multi.launched import Launched, launched
from tests.multi.traffic import Answer, Body, Traffic, traffic

ASK: list[Any] = [{"role": "user", "content": "Answer in JSON: who are you, and what do you like?"}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "likes": {"type": "array", "items": {"enum": ["tea", "rain", "rice"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(smollm2_path: str) -> Iterator[Launched]:
    with launched(smollm2_path, "--num-blocks", "192", "--served-model-name", "m") as running:
        yield running


@pytest.fixture
async def calls(server: Launched) -> AsyncIterator[Traffic]:
    async with traffic(server) as running:
        yield running


def formatted(schema: Any, **more: Any) -> Body:
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"messages": ASK, "temperature": 0, "max_tokens": 100, "response_format": shape, **more}


def outputs(**constraint: Any) -> Body:
    return {"messages": ASK, "temperature": 1, "max_tokens": 60, "structured_outputs": constraint}


async def refused(calls: Traffic, body: Body, *words: str) -> dict[str, Any]:
    reply = await calls.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 400, reply.text
    error: dict[str, Any] = reply.json()["error"]
    assert all(word in error["message"] for word in words), error
    return error


async def alive(calls: Traffic) -> None:
    answer = await calls.send({"prompt": "One, two,", "max_tokens": 2, "temperature": 0})
    assert answer.status == 200


async def one(calls: Traffic, body: Body) -> tuple[str, str]:
    """(streamed and whole text, which are the same; finish reason)."""
    whole, streamed = await calls.all([body, {**body, "stream": True}])
    assert whole.status == streamed.status == 200, (whole, streamed)
    assert whole == streamed
    return whole.only.text, whole.only.finish[0]


# ---- what was reported ----------------------------------------------------------------------------


async def test_bb_073_bounds_of_arrays_and_strings_hold(calls: Traffic) -> None:
    names = {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 2, "maxItems": 2}
    schema = {
        "type": "object",
        "properties": {"names": names},
        "required": ["names"],
        "additionalProperties": False,
    }
    text, finish = await one(calls, formatted(schema))
    assert finish == "stop" and len(json.loads(text)["names"]) == 2
    jsonschema.validate(json.loads(text), schema)


async def test_bb_075_a_pattern_that_names_a_property_again_never_runs_on(calls: Traffic) -> None:
    schema = {
        "type": "object",
        "properties": {"score": {"type": "integer", "maximum": 100}},
        "required": ["score"],
        "additionalProperties": False,
        "patternProperties": {"^score$": {"type": "integer"}},
    }
    text, finish = await one(calls, formatted(schema, temperature=0))
    assert finish == "stop" and isinstance(json.loads(text)["score"], int)


async def test_bb_077_white_space_cannot_be_pushed_in(calls: Traffic) -> None:
    schema = {"type": "object", "properties": {"kind": {"enum": ["a", "b"]}}, "required": ["kind"]}
    pushed = {"198": 100, "216": 100}
    closed = {**schema, "additionalProperties": False}
    text, finish = await one(calls, formatted(closed, logit_bias=pushed))
    assert finish == "stop" and json.loads(text) in ({"kind": "a"}, {"kind": "b"}) and " " not in text
    loose = {"messages": ASK, "temperature": 0, "max_tokens": 200, "logit_bias": pushed}
    loose["structured_outputs"] = {"json": closed, "disable_any_whitespace": False}
    text, finish = await one(calls, loose)
    assert finish == "stop" and "\n\n" not in text and json.loads(text)["kind"] in "ab"


async def test_bb_079_a_type_that_there_is_not_is_a_400(calls: Traffic) -> None:
    error = await refused(calls, formatted({"type": "str"}), "type at /type", '"str"')
    assert error["param"] == "/type"
    await alive(calls)


async def test_bb_081_a_grammar_without_root_is_a_400_with_its_place(calls: Traffic) -> None:
    await refused(calls, outputs(grammar='rout::="x"'), "line 1, column 1", "root")
    await alive(calls)


async def test_bb_083_many_grammars_are_not_all_kept(calls: Traffic) -> None:
    """BB-083 with 400 schemas; 2,000 of them in tests/unit/test_grammar_store.py."""
    (pid,) = calls.server.engine_pids()

    async def some(first: int) -> None:
        bodies = [formatted({"const": i}, max_tokens=8) for i in range(first, first + 50)]
        answers = await calls.all(bodies)
        assert all(a.status == 200 and a.only.text == str(i) for i, a in enumerate(answers, first))

    for first in range(0, 200, 50):
        await some(first)
    before = resident(pid)
    for first in range(200, 400, 50):
        await some(first)
    assert resident(pid) - before < 64 << 20
    kept = (await calls.http.get("/metrics")).text
    assert "octavo:grammars_compiled_total" in kept
    assert calls.server.engine_pids() == [pid]


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_bb_087_a_recursive_schema(calls: Traffic) -> None:
    node = {
        "type": "object",
        "properties": {
            "v": {"type": "integer"},
            "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]},
        },
        "required": ["v", "next"],
        "additionalProperties": False,
    }
    schema = {"$defs": {"n": node}, "$ref": "#/$defs/n"}
    text, finish = await one(calls, formatted(schema))
    assert finish in ("stop", "length")
    if finish == "stop":
        jsonschema.validate(json.loads(text), schema)
    await alive(calls)


@pytest.mark.parametrize("keyword", ["contentEncoding", "unevaluatedProperties"])
async def test_bb_091_an_unsupported_keyword_is_named_with_its_pointer(calls: Traffic, keyword: str) -> None:
    schema = {"type": "object", "properties": {"a": {keyword: False}}}
    error = await refused(calls, formatted(schema), keyword, f"/properties/a/{keyword}")
    assert error["param"] == f"/properties/a/{keyword}"


# ---- every kind, as clients send it ----------------------------------------------------------------


async def test_every_kind_of_structured_outputs(calls: Traffic) -> None:
    tag = {
        "format": {
            "type": "tag",
            "begin": "<a>",
            "content": {"type": "regex", "pattern": "[0-9]{2}"},
            "end": "</a>",
        }
    }
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"regex": "[a-c]{3}-[0-9]{2}"}, lambda t: len(t) == 6 and t[3] == "-"),
        ({"choice": ["yes", "no", "not now"]}, lambda t: t in ("yes", "no", "not now")),
        ({"grammar": 'root ::= "a" ("b" | "c"){2} "d"'}, lambda t: len(t) == 4 and t[0] + t[3] == "ad"),
        ({"grammar": 'start: "x" /[0-9]{3}/'}, lambda t: t[0] == "x" and t[1:].isdigit()),
        ({"json": json.dumps(PERSON)}, lambda t: jsonschema.validate(json.loads(t), PERSON) is None),
        ({"structural_tag": json.dumps(tag)}, lambda t: t.startswith("<a>") and t.endswith("</a>")),
    ]  # fmt: skip
    for constraint, is_right in cases:
        for body in (
            outputs(**constraint),
            {"prompt": "x", "max_tokens": 60, "seed": 3, "structured_outputs": constraint},
        ):
            text, finish = await one(calls, {**body, "seed": 3})
            assert finish == "stop" and is_right(text), (constraint, text)


async def test_json_object_and_length(calls: Traffic) -> None:
    body: Body = {
        "messages": ASK,
        "temperature": 0,
        "max_tokens": 3,
        "response_format": {"type": "json_object"},
    }
    text, finish = await one(calls, body)
    assert finish == "length" and text.startswith("{")
    plain = {**body, "response_format": {"type": "text"}}
    assert (await calls.send(plain)).only.text != text


async def test_what_contradicts_a_grammar_is_refused_or_gives_way(calls: Traffic) -> None:
    body = formatted({"const": 7})
    await refused(calls, {**body, "ignore_eos": True}, "ignore_eos")
    await refused(calls, {**body, "use_beam_search": True, "n": 2}, "use_beam_search")
    await refused(
        calls, {**body, "structured_outputs": {"regex": "a"}}, "response_format and structured_outputs"
    )
    # The grammar's end comes first: nothing else could follow.
    answer = await calls.send({**body, "min_tokens": 20})
    assert (answer.only.text, answer.only.finish) == ("7", ["stop"])
    # As long as it can go on, min_tokens and allowed_token_ids hold.
    long = await calls.send({**outputs(regex="[a-z ]+"), "min_tokens": 12, "seed": 5})
    assert len(long.only.token_ids) > 12
    nothing = await calls.send({**outputs(regex="[0-9]+"), "allowed_token_ids": [198]})
    assert nothing.status == 400 and "no token may follow" in str(nothing.error)
    await alive(calls)


async def test_random_schemas_at_temperature_1_validate(calls: Traffic) -> None:
    """36 of the 1,000 that benchmarks.structured draws."""
    rng = random.Random(36)
    wanted = [MAKERS[k](rng) for k in rng.sample(sorted(MAKERS), 18) for _ in range(2)]
    bodies = [formatted(s, temperature=1, seed=i, max_tokens=120) for i, s in enumerate(wanted)]
    answers = await calls.all(bodies)
    ended = 0
    for schema, answer in zip(wanted, answers, strict=True):
        if answer.status == 400:
            assert " at /" in str(answer.error), (schema, answer.error)
            continue
        assert answer.status == 200, (schema, answer)
        if answer.only.finish == ["stop"]:
            ended += 1
            jsonschema.Draft202012Validator(schema).validate(json.loads(answer.only.text))
    assert ended > 18


async def test_a_constrained_answer_is_the_same_in_company_and_through_a_crash(calls: Traffic) -> None:
    """Laws 1 and 4: the new engine takes up the grammar from the tokens that the client has."""
    bodies = [formatted(PERSON, temperature=1, seed=i, stream=True) for i in range(4)]
    bodies += [
        {**outputs(regex="([a-z]+ ){40}"), "seed": i, "stream": True, "max_tokens": 60} for i in range(4)
    ]
    alone = [await calls.send(body) for body in bodies]
    before = calls.num_chunks
    running = asyncio.create_task(calls.all(bodies))
    while calls.num_chunks < before + 24:
        await asyncio.sleep(0.01)
    for pid in calls.server.engine_pids():
        os.kill(pid, signal.SIGKILL)
    together: list[Answer] = await running
    assert together == alone


async def test_hostile_grammars_cost_their_own_request_only(calls: Traffic) -> None:
    (pid,) = calls.server.engine_pids()
    hostile = [
        outputs(regex="(" * 5_000 + "a" + ")" * 5_000),
        outputs(regex="((a{1,1000}){1,1000}){1,1000}"),
        outputs(grammar="start: " + "(" * 50_000 + '"a"' + ")" * 50_000),
        outputs(grammar="start: " + " | ".join(f'"w{i}"' for i in range(60_000))),
        outputs(json='{"items":' * 3_000 + "{}" + "}" * 3_000),
        formatted({"type": "integer", "multipleOf": 999999937}),
    ]
    answers = await calls.all([*hostile, {"prompt": "One, two,", "max_tokens": 20, "temperature": 0}])
    assert all(a.status in (200, 400, 500) for a in answers[:-1])
    assert [a.status for a in answers[:1] + answers[2:5]] == [400] * 4
    assert answers[-1].status == 200
    assert calls.server.engine_pids() == [pid], "the engine lives on"
    await alive(calls)


async def test_the_table_says_what_runs(calls: Traffic) -> None:
    assert any("structured output" in line and "llguidance" in line for line in calls.server.lines)
