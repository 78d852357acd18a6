"""The composed grammar is the inverse of the parser: what it lets through is read as the calls it asked for."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from tests.fakes.toy_codec import ToyCodec
from tests.unit.parser_samples import TOOLS
from tests.unit.test_parsers import NAMES, Folded, spelled_with_controls

from octavo.api.limits import Limits
from octavo.api.output_grammar import Shape, compose
from octavo.api.text.parsers.choose import Parsers, choose
from octavo.api.text.parsers.machine import Ask, OutputParser
from octavo.api.text.parsers.tool_rows import TOOL_ROWS
from octavo.api.tools import ToolWish, tool_wish
from octavo.errors import InvalidRequest
from octavo.grammar.backends import compile_spec
from octavo.grammar.vocabulary import of_tokenizer
from octavo.wire.sampling import StructuredSpec

NOW = {"type": "object", "properties": {}, "additionalProperties": False}


def closers_of(name: str) -> tuple[str, ...]:
    row = TOOL_ROWS[name]
    return tuple(c for c in (row.parameter_close, row.value[1], *row.closes) if c)


def functions(*, strict: bool = False, **schemas: Any) -> list[dict[str, Any]]:
    held = schemas or TOOLS
    return [
        {"type": "function", "function": {"name": n, "parameters": s, **({"strict": True} if strict else {})}}
        for n, s in held.items()
    ]


def wish_of(
    choice: Any = "required", *, parallel: bool = True, strict: bool = False, **schemas: Any
) -> ToolWish:
    return tool_wish(functions(strict=strict, **schemas), choice, is_parallel=parallel, limits=Limits())


def walk(
    spec: StructuredSpec, codec: ToyCodec, seed: int, *, limit: int = 400, closers: tuple[str, ...] = ()
) -> list[int] | None:
    """Token ids drawn from what the grammar allows; None when it did not come to an end."""
    vocabulary = of_tokenizer(codec, codec.vocab_size)
    matcher = compile_spec(spec, vocabulary).copy()
    rng = random.Random(seed)
    ids: list[int] = []
    row = np.zeros(vocabulary.num_words, np.uint32)
    for _ in range(limit):
        if matcher.is_terminated:
            return ids
        if matcher.is_accepting and rng.random() < 0.6:
            return ids
        if closers and rng.random() < 0.2:  # what ends a text is not found by chance
            tail = codec.encode(rng.choice(closers), False)
            probe = matcher.copy()
            if probe.advance(tail) == len(tail):
                matcher = probe
                ids += tail
                continue
        matcher.fill(row)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[: codec.vocab_size])
        if not len(allowed):
            assert matcher.is_accepting, codec.decode(ids, False)
            return ids
        # What ends things is drawn more often, so that texts end.
        ends = [i for i in allowed if codec.is_special(i) or codec.token_bytes(i)[:1] in b'"}])<\n']
        pick = int(rng.choice(ends if ends and rng.random() < 0.85 else list(allowed)))
        assert matcher.advance([pick]) == 1
        ids.append(pick)
    return None


def read(parsers: Parsers, codec: ToyCodec, ids: list[int], ask: Ask) -> Folded:
    parser = OutputParser(parsers.formats, ask)
    folded, data = Folded(), b""
    for i in ids:
        if codec.is_special(i):
            folded.add(parser.feed(data.decode("utf-8", "replace") + parsers.formats.controls.get(i, "")))
            data = b""
        else:
            data += codec.token_bytes(i)
    folded.add(parser.feed(data.decode("utf-8", "replace")))
    folded.add(parser.close())
    folded.is_whole = parser.has_whole_calls
    return folded


def bench(name: str, reasoning: str | None = None, **options: Any) -> tuple[ToyCodec, Parsers]:
    codec, tokens = spelled_with_controls(name)
    codec = ToyCodec(words=False, special=tokens, **options)
    return codec, choose("{{ tools }}", codec, tool=name, reasoning=reasoning)


def composed(shape: Shape, parsers: Parsers, codec: ToyCodec) -> StructuredSpec:
    spec = compose(shape, parsers, codec, list(codec.eos_ids)).spec
    assert spec is not None
    return spec


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_strict", [False, True])
def test_required_calls_are_read_back(name: str, is_strict: bool) -> None:
    codec, parsers = bench(name)
    wish = wish_of(strict=is_strict)
    spec = composed(Shape(wish=wish), parsers, codec)
    num_read = 0
    for seed in range(5):
        ids = walk(spec, codec, seed, closers=closers_of(name))
        if ids is None:
            continue
        got = read(parsers, codec, ids, Ask(tools=wish.schemas))
        text = codec.decode(ids, False)
        assert got.is_whole, text
        assert got.content == "", text
        for called, arguments in got.parsed:
            jsonschema.validate(arguments, TOOLS[called])
        num_read += 1
    assert num_read


@pytest.mark.parametrize("name", NAMES)
def test_named_and_single(name: str) -> None:
    codec, parsers = bench(name)
    for wish in (
        wish_of({"type": "function", "function": {"name": "now"}}, now=NOW, other=NOW),
        wish_of("required", parallel=False, now=NOW),
    ):
        spec = composed(Shape(wish=wish), parsers, codec)
        for seed in range(2):
            ids = walk(spec, codec, seed)
            assert ids is not None
            got = read(parsers, codec, ids, Ask(tools=wish.schemas))
            assert got.parsed == [("now", {})]
            assert got.is_whole


@pytest.mark.parametrize("name", NAMES)
def test_free_text_with_well_formed_calls(name: str) -> None:
    """--tool-strict-level function: whatever looks like a call is one; with one call at most when asked."""
    codec, parsers = bench(name)
    for parallel in (True, False):
        wish = wish_of("auto", parallel=parallel)
        spec = composed(Shape(wish=wish, level="function"), parsers, codec)
        for seed in range(3):
            ids = walk(spec, codec, seed, limit=300)
            if ids is None:
                continue
            got = read(parsers, codec, ids, Ask(tools=wish.schemas))
            assert all(called in TOOLS for called, _ in got.parsed)
            assert parallel or len(got.calls) <= 1
            assert got.is_whole or not got.calls


END, OPEN = "</think>", "<think>"
SCHEMA = StructuredSpec(
    kind="json_schema",
    text='{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additio'
    'nalProperties": false}',
)


@pytest.mark.parametrize("is_token", [True, False])
@pytest.mark.parametrize("thinking", ["open", "may"])
def test_thinking_call_and_answer_in_one_grammar(is_token: bool, thinking: Any) -> None:
    """BB-089, P060, P061: thought, then a call or the schema; nothing contradicts."""
    added = [END, OPEN] if is_token else []
    codec, parsers = bench("hermes", "qwen3", added=added)
    wish = wish_of("auto")
    spec = composed(Shape(wish=wish, thinking=thinking, answer=SCHEMA), parsers, codec)
    ask = Ask(tools=wish.schemas, starts_in_reasoning=thinking == "open", follows_grammar=True)
    seen = set()
    for seed in range(6):
        ids = walk(spec, codec, seed, closers=(END, "<tool_call>"))
        if ids is None:
            continue
        got = read(parsers, codec, ids, ask)
        if got.calls:
            assert got.is_whole
            assert not got.content.strip()
        else:
            jsonschema.validate(json.loads(got.content), json.loads(SCHEMA.text))
        seen.add(bool(got.calls))
    assert seen


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_a_budget_of_thinking_tokens_is_kept_exactly(budget: int) -> None:
    codec, parsers = bench("hermes", "qwen3", added=[END])
    end = codec.encode(END, False)[0]
    for answer, wish in ((SCHEMA, ToolWish()), (None, wish_of()), (None, ToolWish())):
        shape = Shape(wish=wish, thinking="open", budget=budget, answer=answer)
        spec = composed(shape, parsers, codec)
        lengths = set()
        for seed in range(12):
            ids = walk(spec, codec, seed, limit=300)
            if ids is None:
                continue
            lengths.add(ids.index(end))
        assert lengths
        assert max(lengths) <= budget
    letter = codec.encode("x", False)[0]
    vocabulary = of_tokenizer(codec, codec.vocab_size)
    matcher = compile_spec(spec, vocabulary).copy()
    assert matcher.advance([letter] * (budget + 1)) == budget


@pytest.mark.parametrize("budget", [0, 1, 7])
@pytest.mark.parametrize("thinking", ["open", "may"])
def test_a_budget_is_kept_where_the_end_is_several_tokens(budget: int, thinking: Any) -> None:
    """The mark is forced when the budget is used up; what follows it is shaped as ever."""
    codec, parsers = bench("hermes", "qwen3")
    end = codec.encode(END, False)
    assert len(end) > 1
    spec = composed(Shape(wish=ToolWish(), thinking="open", budget=budget, answer=SCHEMA), parsers, codec)
    letter, answer = codec.encode("x", False), codec.encode('{"a":1}', False)
    vocabulary = of_tokenizer(codec, codec.vocab_size)
    for count in range(budget + 1):
        matcher = compile_spec(spec, vocabulary).copy()
        ids = [*letter * count, *end, *answer]
        assert matcher.advance(ids) == len(ids), count
    matcher = compile_spec(spec, vocabulary).copy()
    assert matcher.advance(letter * (budget + 1)) == budget
    assert matcher.advance([*end, *answer]) == len(end) + len(answer)
    matcher = compile_spec(spec, vocabulary).copy()
    assert matcher.advance([*end, *letter]) == len(end)  # a thought that has ended does not go on
    spec = composed(Shape(wish=ToolWish(), thinking=thinking, budget=budget), parsers, codec)
    for seed in range(6):
        ids = walk(spec, codec, seed, limit=300, closers=(END,))
        if ids is not None:
            got = read(parsers, codec, ids, Ask(starts_in_reasoning=thinking == "open", follows_grammar=True))
            assert len(got.reasoning) <= budget  # a token is a byte here


def test_a_budget_without_marks_is_refused() -> None:
    codec, parsers = bench("hermes")
    with pytest.raises(InvalidRequest, match="reasoning-parser"):
        compose(Shape(wish=ToolWish(), budget=3), parsers, codec, [2])


@pytest.mark.parametrize(
    "answer",
    [
        StructuredSpec(kind="json_object", text=""),
        StructuredSpec(kind="regex", text="[0-9]{3}"),
        StructuredSpec(kind="choice", text='["yes", "no \\"x\\""]'),
        StructuredSpec(kind="gbnf", text='root ::= "a" | "start"'),
        StructuredSpec(kind="lark", text='start: "start" other\nother: /[ab]/'),
    ],
)
def test_every_kind_of_answer_goes_behind_a_thought(answer: StructuredSpec) -> None:
    codec, parsers = bench("hermes", "qwen3", added=[END])
    spec = composed(Shape(wish=ToolWish(), thinking="open", answer=answer), parsers, codec)
    assert any(walk(spec, codec, seed, limit=200) is not None for seed in range(6))


def test_nothing_is_composed_where_nothing_is_asked() -> None:
    codec, parsers = bench("hermes", "qwen3")
    for shape in (
        Shape(wish=ToolWish()),
        Shape(wish=wish_of("auto")),
        Shape(wish=ToolWish(), answer=SCHEMA),
        Shape(wish=ToolWish(), thinking="may"),
    ):
        assert compose(shape, parsers, codec, [2]).spec is None


BAD = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


def test_a_keyword_that_cannot_act_is_refused_when_strict_and_told_of_otherwise() -> None:
    codec, parsers = bench("hermes")
    with pytest.raises(InvalidRequest, match="uniqueItems"):
        compose(Shape(wish=wish_of(strict=True, f=BAD)), parsers, codec, [2])
    made = compose(Shape(wish=wish_of(f=BAD)), parsers, codec, [2])
    assert made.spec is not None
    assert "uniqueItems" in made.notes[0]
    codec, parsers = bench("qwen3_coder")
    text = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}
    with pytest.raises(InvalidRequest, match="maxLength"):
        compose(Shape(wish=wish_of(strict=True, f=text)), parsers, codec, [2])


BLOCK = '```json\n{\n  "name": "f",\n  "arguments": {\n    "a": %s\n  }\n}\n```'


def test_a_strict_call_without_its_marks_follows_its_schema_too() -> None:
    codec, parsers = bench("hermes")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    made = compose(Shape(wish=wish_of("auto", strict=True, f=schema)), parsers, codec, [2])
    assert made.spec is not None
    assert made.has_loose
    matcher = compile_spec(made.spec, of_tokenizer(codec, codec.vocab_size))

    def takes(text: str) -> bool:
        probe, ids = matcher.copy(), codec.encode(text, False)
        return probe.advance(ids) == len(ids) and probe.is_accepting

    for text in (BLOCK % 5, (BLOCK % 5) + "\n" + (BLOCK % 6), '{"name": "f", "arguments": {"a":1}}'):
        assert takes(text)
        got = read(parsers, codec, codec.encode(text, False), Ask(tools={"f": schema}, follows_grammar=True))
        assert got.is_whole
        assert got.content == ""
        for _, arguments in got.parsed:
            jsonschema.validate(arguments, schema)
    for text in (BLOCK % '"x"', BLOCK.replace('"f"', '"g"') % 5, '{"b": 1}', "```json\n{}\n```"):
        assert not takes(text)
    for text in ("", "Hello {}", "```python\nx = {}\n```", "`a`", "```js\n{}```", "A <tool_call"):
        assert takes(text)
    marked = 'So <tool_call>\n{"name": "f", "arguments": {"a":1}}\n</tool_call>\n'
    assert takes(marked + BLOCK % '"x"')  # behind a marked call it is text
    got = read(parsers, codec, codec.encode(marked[3:] + BLOCK % '"x"', False), Ask(tools={"f": schema}))
    assert len(got.calls) == 1


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "pythonic", "gemma4", "minimax_m3", "hermes"])
def test_a_key_that_is_required_and_not_described_is_written(name: str) -> None:
    codec, parsers = bench(name)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "b"]}
    wish = wish_of(f=schema)
    spec = composed(Shape(wish=wish), parsers, codec)
    made = [
        walk(spec, codec, seed, closers=(*closers_of(name), '<|"|>', "]<]minimax[>[</b>"))
        for seed in range(8)
    ]
    assert any(made)
    for ids in filter(None, made):
        for _, arguments in read(parsers, codec, ids, Ask(tools=wish.schemas)).parsed:
            assert {"a", "b"} <= set(arguments)


#: Everything that values of a syntax of their own can be.
DEEP: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "kind": {"enum": ["a b", 3, None]},
        "num": {"type": ["integer", "null"], "minimum": 5, "maximum": 7},
        "flag": {"type": "boolean"},
        "names": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
        "rows": {"type": "array", "items": {"$ref": "#/$defs/row"}},
        "empty": {"type": "array", "items": {"type": "integer"}, "maxItems": 0},
        "more": {"type": "number", "exclusiveMinimum": 0},
    },
    "required": ["text", "num", "rows", "more"],
    "additionalProperties": False,
    "$defs": {
        "row": {
            "type": "object",
            "properties": {"id": {"type": "integer"}, "next": {"$ref": "#/$defs/row"}},
            "required": ["id"],
            "additionalProperties": False,
        }
    },
}


@pytest.mark.parametrize("name", ["functiongemma", "gemma4", "minimax_m3"])
def test_values_of_an_own_syntax_follow_a_deep_schema(name: str) -> None:
    codec, parsers = bench(name)
    wish = wish_of(strict=True, f=DEEP)
    spec = composed(Shape(wish=wish), parsers, codec)
    ends = ("<escape>", '<|"|>', "]<]minimax[>[</text>", "]<]minimax[>[</item>")
    num_read = 0
    for seed in range(30):
        ids = walk(spec, codec, seed, limit=900, closers=ends)
        if ids is None:
            continue
        got = read(parsers, codec, ids, Ask(tools=wish.schemas))
        assert (got.is_whole, got.content) == (True, ""), codec.decode(ids, False)
        for _, arguments in got.parsed:
            jsonschema.validate(arguments, DEEP)
        num_read += 1
    assert num_read >= 5


@pytest.mark.parametrize(
    ("name", "schema", "keyword"),
    [
        ("gemma4", {"type": "string", "maxLength": 3}, "maxLength"),
        ("gemma4", {"type": "array", "prefixItems": [{}]}, "prefixItems"),
        ("functiongemma", {"minimum": 3}, "minimum"),
        ("minimax_m3", {"anyOf": [{"type": "object"}, {"type": "null"}]}, "anyOf"),
        ("minimax_m3", {"type": "string", "pattern": "a"}, "pattern"),
    ],
)
def test_what_an_own_syntax_does_not_enforce_is_refused_by_name(name: str, schema: Any, keyword: str) -> None:
    codec, parsers = bench(name)
    held = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    with pytest.raises(InvalidRequest, match=f"{keyword} at /properties/a/{keyword}"):
        compose(Shape(wish=wish_of(strict=True, f=held)), parsers, codec, [2])
    assert keyword in compose(Shape(wish=wish_of(f=held)), parsers, codec, [2]).notes[0]
