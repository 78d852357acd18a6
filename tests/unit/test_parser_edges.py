"""What models really write beside the format: ends missing, brackets too many, marks where none belong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.toy_codec import ToyCodec
from tests.unit.parser_samples import CALLS, SAMPLES, TOOLS
from tests.unit.test_parsers import NAMES, Folded, plain, play

from octavo.api.text.parsers.choose import choose
from octavo.api.text.parsers.machine import Ask, Formats, OutputParser
from octavo.api.text.parsers.reasoning_rows import REASONING_ROWS
from octavo.api.text.parsers.tool_rows import TOOL_ROWS
from octavo.api.text.parsers.values import as_json, property_schema


def heard(formats: Formats, text: str, ask: Ask | None = None) -> Folded:
    """Whole and character by character: the same."""
    whole = play(formats, [text], ask)
    assert whole.same(play(formats, text, ask))
    return whole


# ---- control tokens --------------------------------------------------------------------------------


def test_a_control_token_within_a_value_is_dropped_and_breaks_no_answer() -> None:
    """A lone surrogate in arguments could not be sent at all."""
    for name, text in (
        ("qwen3_coder", "<function=weather><parameter=city>Kö\ud800ln</parameter></function>"),
        ("gemma4", '<|tool_call>call:weather{city:<|"|>Kö\ud800ln<|"|>}<tool_call|>'),
        ("glm45", "<tool_call>weather\n<arg_key>city</arg_key><arg_value>Kö\ud800ln</arg_value></tool_call>"),
        ("openai", "<|channel|>commentary to=functions.weather<|message|>{\"city\": \"Kö\ud800ln\"}<|call|>"),
        ("minimax_m3", (']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="weather">]<]minimax[>[<city>Kö\ud800ln'
         "]<]minimax[>[</city>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>")),
    ):  # fmt: skip
        got = heard(plain(name), text)
        assert got.parsed == [("weather", {"city": "Köln"})], name
        assert got.calls[0][1].encode()


def test_a_name_of_control_tokens_only_is_none() -> None:
    assert heard(plain("qwen3_coder"), "<function=\ud800></function>").calls == []


_MARK = "]<]minimax[>["
TWICE = {
    "qwen3_coder": "<function=weather><parameter=city>A</parameter><parameter=days>1</parameter>"
    "<parameter=city>B</parameter>",
    "glm45": "<tool_call>weather\n<arg_key>city</arg_key><arg_value>A</arg_value><arg_key>days</arg_key>"
    "<arg_value>1</arg_value><arg_key>city</arg_key><arg_value>B</arg_value>",
    "minimax_m3": f'{_MARK}<tool_call>{_MARK}<invoke name="weather">{_MARK}<city>A{_MARK}</city>{_MARK}<days>1'
    f"{_MARK}</days>{_MARK}<city>B{_MARK}</city>",
    "gemma4": '<|tool_call>call:weather{city:<|"|>A<|"|>,days:1,city:<|"|>B<|"|>',
}
CLOSES = {
    "qwen3_coder": "</function>",
    "glm45": "</tool_call>",
    "minimax_m3": f"{_MARK}</invoke>{_MARK}</tool_call>",
    "gemma4": "}<tool_call|>",
}


@pytest.mark.parametrize("name", TWICE)
def test_of_a_parameter_that_is_said_twice_the_last_value_counts(name: str) -> None:
    """As in the families' own parsers, which fill a dict; no key stands twice in the JSON."""
    got = heard(plain(name), TWICE[name] + CLOSES[name])
    assert got.calls == [["weather", '{"city": "B", "days": 1}']]


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "minimax_m3"])
def test_a_call_that_is_cut_keeps_its_whole_parameters(name: str) -> None:
    assert heard(plain(name), TWICE[name]).calls == [["weather", '{"city": "B", "days": 1']]


def test_python_refuses_a_keyword_twice_and_keeps_the_last_of_equal_keys() -> None:
    assert heard(plain("pythonic"), "[weather(city='A', city='B')]").calls == []
    got = heard(plain("pythonic"), "[weather(city={'a': 1, 'b': [2], 'a': {'c': 3, 'c': 4}})]")
    assert got.calls == [["weather", '{"city": {"a": {"c": 4}, "b": [2]}}']]


# ---- missing and superfluous marks -----------------------------------------------------------------


def test_the_next_call_ends_one_whose_end_is_missing() -> None:
    coder = "<function=weather><parameter=city>A</parameter>\n"
    coder += "<function=weather><parameter=city>B</parameter></function>"
    glm = "<tool_call>weather\n<arg_key>city</arg_key><arg_value>{}</arg_value>"
    for name, text in (("qwen3_coder", coder), ("glm45", glm.format("A") + glm.format("B") + "</tool_call>")):
        got = heard(plain(name), text)
        assert got.parsed == [("weather", {"city": "A"}), ("weather", {"city": "B"})]
        assert (got.content, got.is_whole) == ("", True)
    hy = f"<tool_calls>{glm.format('A')}</tool_calls>"
    got = heard(plain("hy_v4"), hy)
    assert (got.parsed, got.content, got.is_whole) == ([("weather", {"city": "A"})], "", True)


def test_a_bracket_too_many_before_the_end_is_no_answer() -> None:
    text = '<tool_call>\n{"name": "now", "arguments": {}}}\n</tool_call>'
    got = heard(plain("hermes"), text + "\n" + text)
    assert (got.parsed, got.content) == ([("now", {}), ("now", {})], "")
    assert heard(plain("hermes"), '<tool_call>{"name": "now", "arguments": {}}} so').content == "} so"


def test_a_section_in_which_no_call_was_told_has_not_begun() -> None:
    row = TOOL_ROWS["deepseek_v31"]
    assert row.section is not None
    text = f"{row.section[0]}{row.opens[0]}f{row.section[1]}"
    assert heard(plain("deepseek_v31"), text).content == text


def test_harmony_ended_by_its_own_last_token_is_whole_and_cut_is_not() -> None:
    begun = "<|channel|>commentary to=functions.weather<|message|>"
    assert heard(plain("openai"), begun + '{"city": "K"}').is_whole
    assert not heard(plain("openai"), begun + '{"city": "K"').is_whole


BLOCK = '```json\n{\n  "name": "weather",\n  "arguments": {\n    "city": "K"\n  }\n}\n```'


def test_a_model_that_forgets_the_tags_has_called_all_the_same() -> None:
    """Qwen2.5-Coder; only where an answer begins, only known functions, not beside a grammar."""
    for text in (BLOCK, BLOCK[8:-4], f"\n{BLOCK}\n", BLOCK.replace("json", "")):
        got = heard(plain("hermes"), text)
        assert (got.parsed, got.content, got.is_whole) == ([("weather", {"city": "K"})], "", True), text
    assert len(heard(plain("hermes"), f"{BLOCK}\n{BLOCK}").calls) == 2
    for text in (
        f"So: {BLOCK}",
        BLOCK.replace("weather", "wether"),
        "```python\nprint()\n```",
        '{"a": 1}',
        "`x`",
        "{{}}",
    ):
        assert heard(plain("hermes"), text).content == text
    assert heard(plain("hermes"), BLOCK, Ask(tools=TOOLS, reads_loose=False)).content == BLOCK
    assert heard(plain("hermes"), BLOCK, Ask()).content == BLOCK


def test_an_answer_that_is_json_is_not_held_back() -> None:
    parser = OutputParser(plain("hermes"), Ask(tools=TOOLS))
    parser.feed('```json\n{"temperature": ')
    held = parser.feed("1")
    assert held


# ---- shapes ----------------------------------------------------------------------------------------


def test_objects_in_objects_do_not_exhaust_the_stack() -> None:
    text = '<tool_call>{"function":' + '{"function":' * 30_000
    assert heard_in_pieces(text, 1_000).calls == []
    inner = '<tool_call>{"type": "function", "function": {"name": "now", "arguments": {}}}</tool_call>'
    assert heard(plain("hermes"), inner).parsed == [("now", {})]


def heard_in_pieces(text: str, size: int) -> Folded:
    return play(plain("hermes"), [text[i : i + size] for i in range(0, len(text), size)])


def test_arguments_in_a_string_must_be_an_object() -> None:
    call = '<tool_call>{{"name": "f", "arguments": {}}}</tool_call>'
    assert heard(plain("hermes"), call.format('"{\\"a\\": 1}"')).calls == [["f", '{"a": 1}']]
    for wrong in ('"{bad"', '"3"', "[1]", "5"):
        got = heard(plain("hermes"), call.format(wrong))
        assert (got.calls, got.content) == ([], call.format(wrong))


def test_ids_that_a_model_counts_wrong_stay_unique() -> None:
    one = "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    text = f"<|tool_calls_section_begin|>{one}{one}<|tool_calls_section_end|>"
    parser = OutputParser(plain("kimi_k2"), Ask(tools=TOOLS))
    folded = Folded()
    folded.add([*parser.feed(text), *parser.close()])
    assert folded.ids[0] == "functions.now:0"
    assert len(set(folded.ids)) == 2


def test_other_spellings_of_the_table() -> None:
    args = '{"city": "Köln <b>", "days": 3}'
    dots = f'<dots_function_call>{{"name": "weather", "arguments": {args}}}</dots_function_call>'
    assert heard(plain("dots"), dots).calls == [["weather", args]]
    assert heard(plain("dots"), "<dots_function_call>{}</dots_function_call>").calls == []
    for begin in ("<｜DSML｜toolcalls>", "<｜DSML｜tool>"):
        got = heard(plain("deepseek_v4"), SAMPLES["deepseek_v4"].replace("<｜DSML｜tool_calls>", begin))
        assert (got.parsed, got.content) == (CALLS, "")


@pytest.mark.parametrize("name", ["hy_v3", "hy_v4"])
def test_tags_with_a_checkpoints_own_suffix(name: str) -> None:
    tags = ["think", "tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value"]
    special = [f"<{slash}{tag}:6124c78e>" for tag in tags for slash in ("", "/")][:13]
    codec = ToyCodec(words=False, special=special)
    parsers = choose("{{ tools }}", codec, tool=name, reasoning=name)
    text = f"<think>Hm.</think>{SAMPLES[name]}"
    for tag in tags:
        text = text.replace(f"<{tag}>", f"<{tag}:6124c78e>").replace(f"</{tag}>", f"</{tag}:6124c78e>")
    got = play(parsers.plain, [text], Ask(tools=TOOLS))
    assert (got.parsed, got.reasoning, got.content) == (CALLS, "Hm.", "")
    template = "{{ tools }}<tool_calls:ab><tool_call:ab>n<tool_sep:ab><arg_key:ab>"
    found = choose(template, ToyCodec()).tool
    assert found is not None
    assert found.name == "hy_v3"


def test_a_type_in_the_tag_counts_where_the_schema_is_silent() -> None:
    text = SAMPLES["kimi_k3"].replace('key="days"', 'key="more"')
    got = heard(plain("kimi_k3"), text)
    assert got.parsed[0] == ("weather", {"city": "Köln <b>", "more": 3})


# ---- thoughts --------------------------------------------------------------------------------------


def thinking(tool: str) -> Formats:
    return Formats(TOOL_ROWS[tool], REASONING_ROWS["qwen3"])


OPEN = Ask(tools=TOOLS, starts_in_reasoning=True)


def test_a_thought_about_a_mark_goes_on() -> None:
    text = 'I could write <tool_call> or {"name": "x"} or ```json [1]``` here.</think>Yes.'
    for tool in ("hermes", "llama3_json", "xlam", "qwen3_coder", "glm45"):
        got = heard(thinking(tool), text, OPEN)
        assert got.reasoning == text.partition("</think>")[0], tool
        assert (got.content, got.calls) == ("Yes.", [])


def test_what_was_no_call_is_looked_at_once_more() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    got = heard(plain("hermes"), f'<tool_call>{{"name": {call}')
    assert (got.content, got.parsed) == ('<tool_call>{"name":', [("now", {})])
    glm = "<tool_call>now\n</tool_call>"
    got = heard(plain("glm45"), f"The mark <tool_call> or: {glm}")
    assert (got.content, got.parsed) == ("The mark <tool_call> or:", [("now", {})])


def test_a_call_within_a_thought_ends_it_and_its_end_is_no_text() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    got = heard(thinking("hermes"), f"Hm.\n{call}\n</think>\nDone.", OPEN)
    assert (got.reasoning, got.parsed, got.content) == ("Hm.\n", [("now", {})], "Done.")


@pytest.mark.parametrize("tool", NAMES)
def test_a_thought_that_is_never_closed_is_thought_in_full(tool: str) -> None:
    row = REASONING_ROWS["deepseek_r1"]
    text = f"Hm. {SAMPLES[tool]} and so on"
    if TOOL_ROWS[tool].family == "harmony":
        return
    got = heard(Formats(TOOL_ROWS[tool], row), text, OPEN)
    assert (got.reasoning, got.content, got.calls) == (text, "", [])


# ---- any bytes -------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
JSON_NAMES = [
    n for n in NAMES if TOOL_ROWS[n].family == "json" and not TOOL_ROWS[n].is_list and TOOL_ROWS[n].closes
]


@given(st.sampled_from(JSON_NAMES), st.dictionaries(st.text(), VALUES, max_size=4), st.booleans(), st.data())
@settings(max_examples=200, deadline=None)
def test_any_arguments_cut_at_any_byte_are_forwarded_byte_for_byte(
    name: str, arguments: dict[str, Any], ascii_only: bool, data: st.DataObject
) -> None:
    """UTF-8 split within characters, marks and brackets inside of strings, escapes of every kind."""
    row = TOOL_ROWS[name]
    key = data.draw(st.sampled_from([*row.markers, "}", "\\", '"', "\u2028"]))
    arguments = {**arguments, key: key * 2}
    try:
        body = json.dumps(arguments, ensure_ascii=ascii_only)
        body.encode()
    except UnicodeEncodeError:
        return
    text = f'{row.opens[0]}{{"{row.name_keys[0]}": "f", "{row.argument_keys[0]}": {body}}}{row.closes[0]}'
    raw = text.encode()
    size = data.draw(st.integers(1, 7))
    pieces, held = [], b""
    for i in range(0, len(raw), size):
        held += raw[i : i + size]
        end = len(held)
        while end and not _is_text(held[:end]):
            end -= 1
        pieces.append(held[:end].decode())
        held = held[end:]
    got = play(plain(name), pieces, Ask(tools={}))
    assert got.calls == [["f", body]]
    assert (got.content, got.is_whole) == ("", True)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "schema", "wanted"),
    [
        ("3.0", {"type": "integer"}, "3.0"),
        ("3.5", {"type": "integer"}, '"3.5"'),
        ("007", {"type": "integer"}, '"007"'),
        ("True", {"type": "boolean"}, "true"),
        ("null", {"type": "string"}, '"null"'),
        ("{'a': None}", {"type": "object"}, '{"a": null}'),
        ("[1, 2", {"type": "array"}, '"[1, 2"'),
        ("x", None, '"x"'),
    ],
)
def test_values_by_type(text: str, schema: Any, wanted: str) -> None:
    assert as_json(text, schema) == wanted


def test_references_lead_to_types() -> None:
    root = {
        "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
        "additionalProperties": {"type": "boolean"},
        "$defs": {"n": {"type": "integer"}},
    }
    assert as_json("5", property_schema(root, "a"), root) == "5"
    assert as_json("5", property_schema(root, "b"), root) == "5"
    assert as_json("true", property_schema(root, "c"), root) == "true"
