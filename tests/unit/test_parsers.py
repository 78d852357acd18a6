"""Every tool row: well-formed, cut anywhere, split anywhere, as control tokens, hostile, in linear time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.toy_codec import ToyCodec
from tests.unit.parser_samples import BARE, CALLS, ONE_CALL, SAMPLES, SINGLE, TOOLS, VARIANTS

from octavo.api.text.parsers.choose import choose
from octavo.api.text.parsers.machine import Ask, Formats, OutputParser
from octavo.api.text.parsers.reasoning_rows import REASONING_ROWS
from octavo.api.text.parsers.tool_rows import TOOL_ROWS
from octavo.api.text.parts import CallPart, ContentPart, Part

NAMES = sorted(set(TOOL_ROWS) - {"hf"})  # that one follows a checkpoint: tests/unit/test_response_template.py


@dataclass
class Folded:
    content: str = ""
    reasoning: str = ""
    calls: list[list[Any]] = field(default_factory=list)  # [name, arguments]
    ids: list[str] = field(default_factory=list)
    is_whole: bool = False

    def add(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if isinstance(part, CallPart):
                if part.id is not None:
                    assert part.index == len(self.calls)
                    assert part.name
                    self.calls.append([part.name, ""])
                    self.ids.append(part.id)
                assert part.index == len(self.calls) - 1
                assert (part.id is None) == (part.name is None)
                self.calls[-1][1] += part.arguments
            elif isinstance(part, ContentPart):
                self.content += part.text
            else:
                self.reasoning += part.text

    @property
    def parsed(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]

    def same(self, other: Folded) -> bool:
        mine = (self.content, self.reasoning, self.calls, self.is_whole)
        return mine == (other.content, other.reasoning, other.calls, other.is_whole)


def play(formats: Formats, pieces: Iterable[str], ask: Ask | None = None) -> Folded:
    parser = OutputParser(formats, ask or Ask(tools=TOOLS))
    folded = Folded()
    for piece in pieces:
        folded.add(parser.feed(piece))
    folded.add(parser.close())
    folded.is_whole = parser.has_whole_calls
    assert len(set(folded.ids)) == len(folded.ids)
    return folded


def plain(name: str) -> Formats:
    return Formats(TOOL_ROWS[name])


def wanted(name: str) -> list[tuple[str, Any]]:
    return list(SINGLE if name in ONE_CALL else CALLS)


def test_every_row_has_a_sample() -> None:
    assert set(SAMPLES) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_well_formed(name: str) -> None:
    before = "" if name in BARE else "Let me look.\n\n"
    if name == "openai":
        before = "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant"
    got = play(plain(name), [before + SAMPLES[name]])
    assert got.parsed == wanted(name)
    assert got.content == ("Let me look." if before else "")
    assert got.is_whole
    assert got.calls[-1][1] == "{}" or name in ONE_CALL


@pytest.mark.parametrize(("name", "text"), VARIANTS)
def test_other_spellings(name: str, text: str) -> None:
    got = play(plain(name), [text])
    assert got.parsed == wanted(name)
    assert (got.content, got.is_whole) == ("", True)


@pytest.mark.parametrize("name", NAMES)
def test_cut_at_every_character(name: str) -> None:
    """No exception; the pieces are the whole; a call that was cut is not called whole."""
    text = SAMPLES[name]
    for end in range(len(text)):
        whole = play(plain(name), [text[:end]])
        assert whole.same(play(plain(name), text[:end]))
        for call_name, arguments in whole.calls[:-1]:
            assert call_name
            json.loads(arguments)
        if whole.is_whole:
            assert whole.parsed == wanted(name)[: len(whole.calls)]


@pytest.mark.parametrize("name", NAMES)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=60))
@settings(max_examples=15, deadline=None)
def test_grouping_does_not_matter(name: str, sizes: list[int]) -> None:
    text = f"Hm. {SAMPLES[name]} Done." if name not in BARE else SAMPLES[name]
    pieces, at = [], 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    assert play(plain(name), [text]).same(play(plain(name), pieces))


@given(st.sampled_from(NAMES), st.data())
@settings(max_examples=400, deadline=None)
def test_hostile_text(name: str, data: st.DataObject) -> None:
    """Any mix of a format's own pieces: no exception, no lost text where there is no call, any grouping."""
    row = TOOL_ROWS[name]
    bits = [
        *row.markers,
        *TOOLS,
        "{",
        "}",
        "[",
        "]",
        '"',
        ":",
        ",",
        "\\",
        "(",
        ")",
        "=",
        "'",
        "name",
        "x",
        " ",
        "\n",
    ]
    text = "".join(data.draw(st.lists(st.sampled_from([*bits, SAMPLES[name][:40]]), max_size=30)))
    whole = play(plain(name), [text])
    assert whole.same(play(plain(name), text))
    if not whole.calls and row.family != "harmony":
        assert whole.content == text


@pytest.mark.parametrize("name", [n for n in NAMES if TOOL_ROWS[n].family != "harmony"])
@pytest.mark.parametrize("body", ["nope", "{", '{"name": 5}', "[]", "{}", "\n\n"])
def test_what_is_no_call_is_content_in_full(name: str, body: str) -> None:
    row = TOOL_ROWS[name]
    opening = row.section[0] if row.section else (row.opens or row.bare)[0]
    text = f"a {opening}{body} b"
    if row.family == "xml" and not row.section:
        text = text.replace(row.head_end, "").replace('"', "")
    assert play(plain(name), [text]).content == text


def spelled_with_controls(name: str) -> tuple[ToyCodec, list[str]]:
    """A vocabulary that has the format's markers as control tokens, and those."""
    row = TOOL_ROWS[name]
    tokens = [*row.needs, *re.findall(r"<\|[^<>|]+\|>|<｜[^<>｜]+｜>|\[[A-Z_]+\]", " ".join(row.markers))]
    tokens = list(dict.fromkeys(tokens))[:13]
    return ToyCodec(words=False, special=tokens), tokens


CONTROLLED = [n for n in NAMES if spelled_with_controls(n)[1]]


@pytest.mark.parametrize("name", CONTROLLED)
def test_control_tokens_are_markers_and_never_text(name: str) -> None:
    codec, tokens = spelled_with_controls(name)
    parsers = choose("{{ tools }}", codec, tool=name)
    chars = parsers.formats.controls
    assert len(chars) == len({t for t in tokens if t in "".join(TOOL_ROWS[name].markers)})

    def stream(text: str) -> list[str]:
        ids = codec.encode(text, False)
        data = [chars[i] if codec.is_special(i) else codec.token_bytes(i).decode("latin-1") for i in ids]
        return [
            d if len(d) == 1 and d >= "\ud800" else d.encode("latin-1").decode("utf-8", "ignore")
            for d in data
        ]

    text = SAMPLES[name].replace("ö", "o")
    got = play(parsers.formats, stream(text))
    assert [
        (n, {k: str(v).replace("o", "ö") if k == "city" else v for k, v in a.items()}) for n, a in got.parsed
    ] == wanted(name)
    assert not any(t in got.content for t in tokens)
    # The same letters as ordinary text are no marker.
    opening = next(iter(TOOL_ROWS[name].section or TOOL_ROWS[name].opens))
    if opening in tokens and name != "openai":
        assert play(parsers.formats, [f"say {opening} x"]).content == f"say {opening} x"
        dropped = play(parsers.formats, ["a", chars[codec.encode(opening, False)[0]], "nope"])
        assert (dropped.content, dropped.calls) == ("anope", [])


@pytest.mark.parametrize("name", NAMES)
def test_work_grows_with_the_text_and_no_faster(name: str) -> None:
    """Work is counted: characters that are looked at, also those that were held back and looked at again."""
    row = TOOL_ROWS[name]
    marks = [m for m in row.markers if len(m) > 1] or ["["]
    hostile = [
        SAMPLES[name],
        marks[0],
        marks[0][:-1],
        marks[0] + '{"name": "weather", "arguments": {"a": "',
        " \n",
        '\\"',
        "[[[{",
        "".join(marks),
    ]
    for text in filter(None, hostile):
        times = 1 + 6_000 // len(text)
        parser = OutputParser(plain(name), Ask(tools=TOOLS))
        for char in text * times:
            parser.feed(char)
        parser.close()
        assert parser.source.work <= 50 * len(text) * times, (name, text)


@pytest.mark.parametrize("name", NAMES)
def test_one_call_is_enough(name: str) -> None:
    """P039: with parallel_tool_calls false nothing is read behind the first call."""
    parser = OutputParser(plain(name), Ask(tools=TOOLS, max_calls=1))
    folded = Folded()
    for char in SAMPLES[name]:
        folded.add(parser.feed(char))
        if parser.is_done:
            break
    folded.add(parser.close())
    assert folded.parsed == SINGLE
    assert parser.has_whole_calls


@pytest.mark.parametrize("name", sorted(set(REASONING_ROWS) - {"hf"}))
def test_reasoning_rows(name: str) -> None:
    row = REASONING_ROWS[name]
    if row.prefixes:
        assert play(Formats(None, row), "Yes.", Ask()).content == row.prefixes + "Yes."
        return
    if row.is_harmony:
        text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>"
    else:
        text = f"{row.opens[0]}Hm.{row.closes[0]}Yes."
    for pieces in ([text], list(text)):
        got = play(Formats(None, row), pieces, Ask())
        assert (got.reasoning, got.content) == ("Hm.", "Yes.")
    if not row.is_harmony:
        begun = Ask(starts_in_reasoning=True)
        for start in ("", row.opens[0]):
            got = play(Formats(None, row), f"{start}Hm.{row.closes[0]}Yes.", begun)
            assert (got.reasoning, got.content) == ("Hm.", "Yes.")
        assert play(Formats(None, row), "Hm. And so on", begun).reasoning == "Hm. And so on"
        assert play(Formats(None, row), "Yes.", Ask()).content == "Yes."


def test_bb_034_a_call_without_parameters_has_empty_arguments() -> None:
    """BB-034, P035."""
    for text in (
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        '<tool_call>{"name": "now"}</tool_call>',
    ):
        for size in (1, 3, len(text)):
            got = play(plain("hermes"), [text[i : i + size] for i in range(0, len(text), size)])
            assert got.calls == [["now", "{}"]]


def test_bb_036_id_and_name_come_once() -> None:
    wrap = "<tool_call>{}</tool_call>".format
    text = wrap('{"name":"f","arguments":{"a":1}}') + wrap('{"name":"g","arguments":{"b":2}}')
    parser = OutputParser(plain("hermes"), Ask(tools={}))
    parts = [p for c in text for p in parser.feed(c) if isinstance(p, CallPart)]
    firsts = [p for p in parts if p.id is not None]
    assert [(p.index, p.name) for p in firsts] == [(0, "f"), (1, "g")]
    assert len({p.id for p in firsts}) == 2
    assert all(p.name is None for p in parts if p.id is None)
    assert [p.index for p in parts] == sorted(p.index for p in parts)


def test_bb_038_two_calls_in_one_piece() -> None:
    parser = OutputParser(plain("hermes"), Ask(tools={}))
    first = parser.feed('<tool_call>{"name":"f","arguments":{"a":1}')
    second = parser.feed('}</tool_call><tool_call>{"name":"g","argu')
    third = parser.feed('ments":{}}</tool_call>') + parser.close()
    folded = Folded()
    folded.add([*first, *second, *third])
    assert folded.parsed == [("f", {"a": 1}), ("g", {})]


def test_bb_040_a_thought_that_the_prompt_has_closed_is_over() -> None:
    """BB-040, P040."""
    parsers = choose("{{ tools }}<think><tool_call>arguments", ToyCodec())
    ask = Ask(
        tools={},
        starts_in_reasoning=parsers.starts_in_reasoning("user\nx\nassistant\n<think>\n\n</think>\n\n", {}),
    )
    call = '<tool_call>{{"name":"w","arguments":{{"c":"{}"}}}}</tool_call>'
    for pieces in (
        [call.format("Tokyo") + call.format("Paris")],
        call.format("Tokyo") + call.format("Paris"),
    ):
        got = play(parsers.formats, pieces, ask)
        assert got.parsed == [("w", {"c": "Tokyo"}), ("w", {"c": "Paris"})]
        assert (got.reasoning, got.content, got.is_whole) == ("", "", True)


def test_bb_044_values_follow_their_schema() -> None:
    """BB-044, P042."""
    schema = {
        "type": "object",
        "properties": {"s": {"type": "string"}, "i": {"type": ["integer", "null"]}, "b": {"type": "boolean"}},
    }
    text = "".join(
        f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in (("s", "null"), ("i", "None"), ("b", "maybe"))
    )
    text = f"<tool_call>\n<function=f>\n{text}</function>\n</tool_call>"
    for pieces in ([text], text):
        got = play(plain("qwen3_coder"), pieces, Ask(tools={"f": schema}))
        assert got.parsed == [("f", {"s": "null", "i": None, "b": "maybe"})]


def test_bb_046_mistral_integers_are_forwarded_as_they_are() -> None:
    text = '[TOOL_CALLS][{"name":"add","arguments":{"a":12,"b":-3}}]'
    for size in (1, 3, len(text)):
        got = play(plain("mistral"), [text[i : i + size] for i in range(0, len(text), size)])
        assert got.calls == [["add", '{"a":12,"b":-3}']]
        assert len(got.ids[0]) == 9


def test_a_thought_ends_where_a_call_begins() -> None:
    formats = Formats(TOOL_ROWS["hermes"], REASONING_ROWS["qwen3"])
    got = play(formats, f"I must look.\n{SAMPLES['hermes']}", Ask(tools=TOOLS, starts_in_reasoning=True))
    assert got.parsed == CALLS
    assert got.reasoning == "I must look.\n"


def test_markers_inside_arguments_are_arguments() -> None:
    formats = Formats(TOOL_ROWS["hermes"], REASONING_ROWS["qwen3"])
    text = '<tool_call>{"name": "w", "arguments": {"a": "<think> </tool_call> \\" <tool_call>"}}</tool_call>'
    for pieces in ([text], text):
        got = play(formats, pieces)
        assert got.parsed == [("w", {"a": '<think> </tool_call> " <tool_call>'})]
        assert (got.content, got.reasoning) == ("", "")


def test_arguments_are_forwarded_byte_for_byte_and_at_once() -> None:
    text = '{"a" : [1.0,  1e5, "\\u00e9"],"b":-0 }'
    parser = OutputParser(plain("hermes"), Ask(tools={}))
    parser.feed('<tool_call>{"name": "f", "arguments": ')
    seen = ""
    for char in text:
        seen += "".join(p.arguments for p in parser.feed(char) if isinstance(p, CallPart))
        assert len(seen) <= len(text)
    assert seen == text


def test_a_call_that_breaks_behind_its_name_keeps_what_was_written() -> None:
    got = play(plain("hermes"), ['a<tool_call>{"name": "f", "arguments": {"a": ]}}</tool_call>b'])
    assert got.calls == [["f", '{"a": ]}}']]
    assert (got.content, got.is_whole) == ("ab", False)
