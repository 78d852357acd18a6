"""Formats that a checkpoint describes itself: read as transformers reads them; written backwards."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.toy_codec import ToyCodec
from tests.unit.parser_samples import TOOLS
from tests.unit.test_output_grammar import DEEP, composed, read, walk, wish_of
from tests.unit.test_parsers import Folded, play
from transformers.utils.chat_parsing import parse_response

from octavo.api.output_grammar import Shape, compose
from octavo.api.text.parsers.choose import Parsers, choose
from octavo.api.text.parsers.machine import Ask, OutputParser
from octavo.errors import ConfigError, InvalidRequest

FUNCTION = {"type": "function", "function": "{content}"}
CAPTURED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
THINK = {"open": "<think>", "close": "</think>", "content": "text"}
CHATML = {"defaults": {"role": "assistant"}, "start_anchor": "<|im_start|>assistant\n"}
ARGS = '{"city": "Köln <b>", "days": 3}'
W, N = f'{{"name": "weather", "arguments": {ARGS}}}', '{"name": "now", "arguments": {}}'


def tags(key: str, tail: str) -> dict[str, Any]:
    return {"tag_pattern": rf"<{key}=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*{tail}"}


#: name -> (template, an answer with a thought, text and both calls)
KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "json": (
        {
            **CHATML,
            "fields": {
                "thinking": THINK,
                "tool_calls": {"open_pattern": r"\s*<tool_call>", "close": "</tool_call>", "repeats": True,
                               "content": "json", "transform": FUNCTION},
                "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)", "content": "text"},
            },
        },
        f"<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{W}\n</tool_call>\n<tool_call>{N}</tool_call><|im_end|>",
    ),
    "tags": (
        {
            **CHATML,
            "fields": {
                "reasoning_content": THINK,
                "tool_calls": {
                    "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
                    "close_pattern": r"</function>\s*</tool_call>", "repeats": True,
                    "content": "xml-inline", "content_args": tags("parameter", "</parameter>"), "transform": CAPTURED,
                },
                "content": {"close_pattern": r"\s*<\|im_end\|>", "content": "text"},
            },
        },
        ("<think>Hm.</think>I look.<tool_call>\n<function=weather>\n<parameter=city>\nKöln <b>\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call><function=now></function></tool_call>"),
    ),
    "loose": (
        {
            "start_anchor": ["<|turn>model\n", "<tool_response|>"],
            "fields": {
                "reasoning": {"open": "<|channel>thought\n", "close": "<channel|>"},
                "tool_calls": {
                    "open_pattern": r"<\|tool_call>call:(?P<name>\w+)", "close": "<tool_call|>", "repeats": True,
                    "content": "json",
                    "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
                    "transform": CAPTURED,
                },
                "content": {"close": ["<turn|>", "<eos>"]},
            },
        },
        ('<|channel>thought\nHm.<channel|>I look.<|tool_call>call:weather{city:<|"|>Köln <b><|"|>,days:3}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|>"),
    ),
    "harmony": (
        {
            "start_anchor": "<|start|>assistant",
            "fields": {
                "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
                "content": {"open": "<|channel|>final<|message|>", "close": ["<|return|>", "<|end|>"]},
                "tool_calls": {
                    "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
                    "close": "<|call|>", "repeats": True, "content": "json", "transform": CAPTURED,
                },
            },
        },
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>I look.<|end|>"
        f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ARGS}<|call|>"
        "<|start|>assistant<|channel|>commentary to=functions.now<|message|>{}"),
    ),
    "list": (
        {
            "start_anchor": "<|CHATBOT_TOKEN|>",
            "fields": {
                "thinking": {"open": "<|START_THINKING|>", "close": "<|END_THINKING|>"},
                "content": {"open": "<|START_RESPONSE|>", "close": "<|END_RESPONSE|>"},
                "tool_calls": {
                    "open": "<|START_ACTION|>", "close": "<|END_ACTION|>", "content": "json", "transform_each": True,
                    "transform": {"type": "function",
                                  "function": {"name": "{tool_name}", "arguments": "{parameters}"}},
                },
            },
        },
        ("<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>I look.<|END_RESPONSE|><|START_ACTION|>[\n"
        f'{{"tool_call_id": "0", "tool_name": "weather", "parameters": {ARGS}}},\n'
        '{"tool_name": "now", "parameters": {}}]<|END_ACTION|>'),
    ),
    "python": (
        {
            **CHATML,
            "fields": {
                "thinking": THINK,
                "content": {"close": "<|im_end|>"},
                "tool_calls": {
                    "open": "<|tool_call_start|>", "close": "<|tool_call_end|>", "content": "python-call-list",
                    "transform_each": True,
                    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
                },
            },
        },
        "<think>Hm.</think>I look.<|tool_call_start|>[weather(city='Köln <b>', days=3), now()]<|tool_call_end|>",
    ),
    "lines": (
        {
            **CHATML,
            "fields": {
                "thinking": THINK,
                "content": {},
                "tool_calls": {"open_pattern": r"<call (?P<name>\w+)>", "close": "</call>", "repeats": True,
                               "content": "kv-lines", "transform": CAPTURED},
            },
        },
        "<think>Hm.</think>I look.<call weather>\ncity: Köln <b>\n\ndays: 3\n</call><call now></call>",
    ),
}  # fmt: skip
TOOL_LIST: list[Any] = [
    {"type": "function", "function": {"name": n, "parameters": s}} for n, s in TOOLS.items()
]
NAMES = sorted(KINDS)


def chosen(template: Any, *, special: tuple[str, ...] = (), **flags: str) -> tuple[ToyCodec, Parsers]:
    codec = ToyCodec(words=False, special=special, metadata={"response_template": template})
    return codec, choose("{{ tools }}", codec, **(flags or {"tool": "hf"}))


def heard(template: Any, text: str, prompt: str = "") -> Folded:
    """Whole and character by character: the same."""
    _, parsers = chosen(template)
    ask = Ask(tools=TOOLS, starts_in_reasoning=parsers.starts_in_reasoning(prompt, {}))
    whole = play(parsers.plain, [text], ask)
    assert whole.same(play(parsers.plain, text, ask))
    return whole


def reference(template: Any, text: str, prompt: str = "") -> tuple[str, str, list[tuple[str, Any]]]:
    message = parse_response(text, template, prefix=prompt, tools=TOOL_LIST)
    thought = next((message[k] for k in ("thinking", "reasoning", "reasoning_content") if k in message), "")
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])]
    return thought, message.get("content", ""), calls


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_read_as_transformers_reads_it(name: str) -> None:
    template, text = KINDS[name]
    got = heard(template, text)
    assert (got.reasoning, got.content, got.parsed) == reference(template, text)
    assert (got.reasoning, got.content) == ("Hm.", "I look.")
    assert got.parsed == [("weather", {"city": "Köln <b>", "days": 3}), ("now", {})]
    assert got.is_whole


@pytest.mark.parametrize("name", NAMES)
def test_cut_anywhere_nothing_is_lost_and_no_half_call_is_whole(name: str) -> None:
    template, text = KINDS[name]
    for end in range(len(text)):
        got = heard(template, text[:end])
        assert all(json.loads(arguments) is not None for _, arguments in got.calls)
        if got.is_whole:
            assert got.parsed == [("weather", {"city": "Köln <b>", "days": 3}), ("now", {})][: len(got.calls)]


@pytest.mark.parametrize(
    ("name", "prompt", "text", "wanted"),
    [
        ("json", "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think>\n", "Hm.\n</think>\n\nYes.",
         ("Hm.", "Yes.")),
        ("json", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "Yes.", ("", "Yes.")),
        ("json", "<|im_start|>assistant\n<think>a<|im_end|><|im_start|>assistant\n", "Yes.", ("", "Yes.")),
        ("harmony", "<|start|>assistant<|channel|>analysis<|message|>", "Hm.<|end|><|channel|>final<|message|>Yes.",
         ("Hm.", "Yes.")),
        ("loose", "<|turn>model\n<|channel>thought\n", "Hm.<channel|>Yes.", ("Hm.", "Yes.")),
        ("harmony", "<|start|>assistant", "an answer without any marks", ("", "an answer without any marks")),
    ],
)  # fmt: skip
def test_the_prompt_may_have_opened_a_thought(
    name: str, prompt: str, text: str, wanted: tuple[str, str]
) -> None:
    got = heard(KINDS[name][0], text, prompt)
    assert (got.reasoning, got.content) == wanted


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_hostile_text(name: str, data: st.DataObject) -> None:
    template, text = KINDS[name]
    _, parsers = chosen(template)
    assert parsers.tool is not None
    assert parsers.tool.response is not None
    bits = [
        *parsers.tool.response.literals(),
        *TOOLS,
        *'{}[]":,\\()=',
        "name",
        " ",
        "\n",
        text[40:80],
        text[-60:],
    ]
    hostile = "".join(data.draw(st.lists(st.sampled_from(bits), max_size=25)))
    got = heard(template, hostile)
    for _, arguments in got.calls:
        assert isinstance(json.loads(arguments, strict=False), dict)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_call_is_content_as_it_was_written(name: str) -> None:
    template, _ = KINDS[name]
    literal = {"tags": "<tool_call><function=f><parameter=a>1</function></tool_call>"}.get(name)
    if literal is not None:  # a tag that does not end is no tag: a call without arguments
        assert heard(template, literal).parsed == [("f", {})]
        return
    opens, close = {
        "json": ("<tool_call>", "</tool_call>"),
        "loose": ("<|tool_call>call:f", "<tool_call|>"),
        "harmony": ("<|channel|>commentary to=functions.f<|message|>", "<|call|>"),
        "list": ("<|START_ACTION|>", "<|END_ACTION|>"),
        "python": ("<|tool_call_start|>", "<|tool_call_end|>"),
        "lines": ("<call >", "</call>"),
    }[name]
    broken = f'{opens}{{"name": nope {close}'
    got = heard(template, broken)
    assert (got.content, got.calls) == (broken, [])


@pytest.mark.parametrize("name", NAMES)
def test_work_grows_with_the_text_and_no_faster(name: str) -> None:
    template, text = KINDS[name]
    _, parsers = chosen(template)
    for bit in (
        text,
        text[: len(text) // 2],
        " ",
        "<tool_call>",
        "<",
        "<|channel|>commentary to=functions.f x ",
    ):
        times = 1 + 6_000 // len(bit)
        parser = OutputParser(parsers.plain, Ask(tools=TOOLS))
        for char in bit * times:
            parser.feed(char)
        parser.close()
        assert parser.source.work <= 120 * len(bit) * times, bit


def test_arguments_are_forwarded_byte_for_byte() -> None:
    template, _ = KINDS["json"]
    body = '{"a" : [1.0,  1e5, "\\u00e9"],"b":-0 }'
    got = heard(template, f'<tool_call>{{"arguments": {body}, "name": "f"}}</tool_call>')
    assert got.calls == [["f", body]]


def test_control_tokens_are_marks_and_never_text() -> None:
    template, text = KINDS["loose"]
    special = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<turn|>")
    codec, parsers = chosen(template, special=special)
    text = text.replace("ö", "o")
    ids = codec.encode(text + "<turn|>", False)
    got = read(parsers, codec, ids, Ask(tools=TOOLS))
    assert got.parsed == [("weather", {"city": "Koln <b>", "days": 3}), ("now", {})]
    assert (got.reasoning, got.content) == ("Hm.", "I look.")
    said = "as letters: <|tool_call>call:now{}<tool_call|>"
    assert play(parsers.formats, [said], Ask(tools=TOOLS)).content == said


def test_one_call_is_enough() -> None:
    for name in NAMES:
        template, text = KINDS[name]
        _, parsers = chosen(template)
        got = play(parsers.plain, [text], Ask(tools=TOOLS, max_calls=1))
        assert [called for called, _ in got.parsed] == ["weather"]
        assert got.is_whole


def test_without_tools_calls_are_not_looked_for() -> None:
    template, text = KINDS["json"]
    _, parsers = chosen(template)
    got = play(parsers.plain, [text], Ask())
    assert got.calls == []
    assert got.reasoning == "Hm."
    assert W in got.content


def test_regions_of_one_field_may_be_joined() -> None:
    template = {**CHATML, "fields": {"thinking": {**THINK, "repeats": True, "join": "\n--\n"}, "content": {}}}
    text = "<think>a</think><think> b </think>c"
    _, parsers = chosen(template, reasoning="hf")
    for pieces in ([text], list(text)):
        got = play(parsers.plain, pieces, Ask())
        assert (got.reasoning, got.content) == ("a\n--\nb", "c")
    assert reference(template, text)[:2] == ("a\n--\nb", "c")


# ---- the start -----------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["tool", "reasoning"])
def test_without_metadata_the_start_ends(flag: str) -> None:
    with pytest.raises(ConfigError, match=r"response_template in tokenizer_config\.json, which this model"):
        choose("x", ToyCodec(), **{flag: "hf"})
    codec = ToyCodec(metadata={"response_schema": {"type": "object"}})
    with pytest.raises(ConfigError, match="response_schema is an older form"):
        choose("x", codec, **{flag: "hf"})


def test_hf_reads_both_or_neither() -> None:
    codec, parsers = chosen(KINDS["json"][0], tool="hf")
    assert (parsers.tool and parsers.tool.name, parsers.reasoning and parsers.reasoning.name) == ("hf", "hf")
    with pytest.raises(ConfigError, match="for both, or for neither"):
        choose("x", codec, tool="hf", reasoning="qwen3")
    with pytest.raises(ConfigError, match="no field of reasoning"):
        chosen({**CHATML, "fields": {"content": {}}}, reasoning="hf")


def test_a_checkpoint_that_describes_itself_needs_no_flag_where_its_template_shows_nothing() -> None:
    codec = ToyCodec(metadata={"response_template": KINDS["lines"][0]})
    own = choose("{{ tools }}", codec)
    assert own.tool is not None
    assert own.tool.name == "hf"
    assert own.table[0][2] == "the checkpoint's response_template"
    shown = choose("{{ tools }}<tool_call>{arguments}", codec).tool
    assert shown is not None
    assert shown.name == "hermes"
    broken = choose("{{ tools }}", ToyCodec(metadata={"response_template": {"fields": 3}}))
    assert broken.tool is not None
    assert broken.tool.name == "hermes"
    assert "not used: the checkpoint's response_template: fields must be" in broken.table[0][2]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "version 2"),
        ({"fields": {}}, "at least one field"),
        ({"more": 1}, "'more'"),
        ({"defaults": {"x": 1}}, "defaults"),
        ({"start_anchor": None}, "start_anchor"),
        ({"fields": {"citations": {"open": "a"}}}, "no place in an answer"),
        ({"fields": {"thinking": {}, "content": {}}}, "only one may"),
        ({"fields": {"content": {"content": "json"}}}, "cannot be streamed"),
        ({"fields": {"content": {"open": "a", "open_pattern": "b"}}}, "both"),
        ({"fields": {"content": {"open": ""}}}, "a text"),
        ({"fields": {"content": {"open_pattern": "(?=a)"}}}, "lookaround"),
        ({"fields": {"content": {"nope": 1}}}, "'nope'"),
        ({"fields": {"tool_calls": {"content": "json"}}}, "no open"),
        ({"fields": {"tool_calls": {"open": "a", "content": "yaml"}}}, "'yaml'"),
        ({"fields": {"tool_calls": {"open": "a", "content": "xml-inline"}}}, "tag_pattern"),
        ({"fields": {"tool_calls": {"open": "a", "content": "json", "transform": "x {content}"}}}, "mixes"),
        ({"fields": {"tool_calls": {"open": "a", "content": "json", "transform": "{name}"}}}, "names {name}"),
        ({"fields": {"tool_calls": {"open": "a", "content": "json", "content_args": {"x": 1}}}}, "'x'"),
    ],
)
def test_a_template_that_cannot_act_ends_the_start(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        chosen({**CHATML, "fields": {"content": {}}, **change}, tool="hf")


# ---- the grammar ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in NAMES if n != "lines"])
@pytest.mark.parametrize("is_strict", [False, True])
def test_required_calls_are_written_as_they_are_read(name: str, is_strict: bool) -> None:
    codec, parsers = chosen(KINDS[name][0])
    wish = wish_of(strict=is_strict)
    spec = composed(Shape(wish=wish), parsers, codec)
    num_read = 0
    for seed in range(8):
        ids = walk(spec, codec, seed, closers=("</parameter>", '<|"|>', "</tool_call>"))
        if ids is None:
            continue
        got = read(parsers, codec, ids, Ask(tools=wish.schemas))
        assert (got.is_whole, got.content) == (True, ""), codec.decode(ids, False)
        for called, arguments in got.parsed:
            jsonschema.validate(arguments, TOOLS[called])
        num_read += 1
    assert num_read


def test_a_loose_syntax_follows_a_deep_schema() -> None:
    codec, parsers = chosen(KINDS["loose"][0])
    wish = wish_of(strict=True, f=DEEP)
    spec = composed(Shape(wish=wish), parsers, codec)
    made = [walk(spec, codec, seed, limit=900, closers=('<|"|>',)) for seed in range(12)]
    for ids in filter(None, made):
        ((_, arguments), *_) = read(parsers, codec, ids, Ask(tools=wish.schemas)).parsed
        jsonschema.validate(arguments, DEEP)
    assert any(made)


def test_a_thought_and_its_budget_come_before_a_call() -> None:
    codec, parsers = chosen(KINDS["harmony"][0], special=("<|channel|>", "<|message|>", "<|end|>"))
    assert parsers.reasoning is not None
    assert parsers.reasoning.closes == ("<|end|>",)
    shape = Shape(wish=wish_of(), thinking="open", budget=4)
    spec = composed(shape, parsers, codec)
    end = codec.encode("<|end|>", False)[0]
    made = [ids for ids in (walk(spec, codec, seed) for seed in range(10)) if ids is not None]
    assert made
    for ids in made:
        assert ids.index(end) <= 4
        got = read(parsers, codec, ids, Ask(tools=TOOLS, starts_in_reasoning=True, follows_grammar=True))
        assert got.is_whole


def test_what_cannot_be_turned_round_is_refused_by_name() -> None:
    codec, parsers = chosen(KINDS["lines"][0])
    with pytest.raises(InvalidRequest, match="lines of text"):
        compose(Shape(wish=wish_of()), parsers, codec, [2])
    codec, parsers = chosen(KINDS["harmony"][0])
    with pytest.raises(InvalidRequest, match="a-b"):
        compose(
            Shape(wish=wish_of("required", parallel=True, strict=False, **{"a-b": {}})), parsers, codec, [2]
        )
