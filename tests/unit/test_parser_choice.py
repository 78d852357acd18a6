"""Which parser a model gets: by the markers of its template, or by name; checked against the vocabulary."""

from __future__ import annotations

import pytest
from tests.fakes.toy_codec import ToyCodec

from octavo.api.text.parsers.choose import choose, fitting_reasoning_row, fitting_tool_row
from octavo.api.text.parsers.reasoning_rows import REASONING_ROWS
from octavo.api.text.parsers.tool_rows import TOOL_ROWS
from octavo.errors import ConfigError

#: The telling lines of templates, shortened.
TEMPLATES = [
    ("qwen2.5", '<tool_call>\n{"name": <function-name>, "arguments": <args>}\n</tool_call>', "hermes", None),
    ("qwen3", '<tool_call>\n{"name", "arguments"}\n</tool_call><think>\n\n</think>', "hermes", "qwen3"),
    ("qwen3-coder", "<tool_call>\n<function=f>\n<parameter=p>", "qwen3_coder", None),
    ("seed", "<seed:tool_call><function=f><parameter=p><seed:think>", "seed_oss", "seed_oss"),
    ("glm", "<tool_call>{name}<arg_key>k</arg_key><think></think>", "glm45", "qwen3"),
    ("hunyuan", "<tool_calls><tool_call>n<tool_sep><arg_key>", "hy_v3", None),
    ("mistral", "[AVAILABLE_TOOLS][TOOL_CALLS][THINK]", "mistral", "mistral"),
    ("llama", '<|eot_id|>{"name": n, "parameters": p}<|python_tag|>', "llama3_json", None),
    ("kimi", "<|tool_call_begin|>x<|tool_call_argument_begin|><|tool_calls_section_begin|><think>",
        "kimi_k2", "kimi_k2"),
    ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>```json<think>",
        "deepseek_v3", "qwen3"),
    ("deepseek31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>n<｜tool▁sep｜>", "deepseek_v31", None),
    ("minimax", '<minimax:tool_call><invoke name="n"><think>', "minimax_m2", "minimax_m2"),
    ("gpt-oss", "<|channel|>analysis<|message|>", "openai", "openai_gptoss"),
    ("gemma4", '<|tool_call>call:<|"|><|channel>thought', "gemma4", "gemma4"),
    ("phi4", "functools[", "phi4_mini_json", None),
    ("lfm2", "<|tool_call_start|>[f()]<|tool_call_end|>", "lfm2", None),
    ("step3", "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=", "step3", None),
    ("none", "{{ messages }}", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("model", "template", "tool", "reasoning"), TEMPLATES)
def test_the_template_tells(model: str, template: str, tool: str | None, reasoning: str | None) -> None:
    found, thinks = fitting_tool_row(template), fitting_reasoning_row(template)
    assert (found.name if found else None, thinks.name if thinks else None) == (tool, reasoning), model


#: Every name that vLLM's flags know.
TOOL_NAMES = """apertus cohere_command3 cohere_command4 deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41
dots ernie45 functiongemma gemma4 gigachat3 glm45 glm47 ling3 granite granite4 granite-20b-fc hermes qwen3_json hf
hunyuan_a13b hy_v3 hy_v4 inkling internlm jamba k2_horizon kimi_k2 kimi_k3 lfm2 llama3_json llama4_json llama4_pythonic
longcat mimo minicpm5 minimax_m2 minimax_m3 mistral muse_glimmer olmo3 openai phi4_mini_json plamo3 poolside_v1 pythonic
qwen3_coder qwen3_xml seed_oss step3 step3p5 xlam"""
REASONING_NAMES = """deepseek_r1 deepseek_v3 holo2 deepseek_v4 deepseek_v41 poolside_v1 cohere_command3 cohere_command4
ernie45 gemma4 glm45 glm47 ling3 openai_gptoss granite granite_thinking_parser nemotron_v3 hf hunyuan_a13b hy_v3 hy_v4
kimi_k2 kimi_k3 k2_horizon mimo qwen3 minicpmv minimax_m2 minimax_m2_append_think minimax_m3 mistral muse_glimmer olmo3
plamo3 seed_oss step3 step3p5 inkling"""


def test_all_names_are_known() -> None:
    assert set(TOOL_ROWS) == set(TOOL_NAMES.split())
    assert set(REASONING_ROWS) == set(REASONING_NAMES.split())
    assert (len(TOOL_ROWS), len(REASONING_ROWS)) == (54, 38)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"did you mean hermes\? allowed is one of apertus, "):
        choose("x", ToyCodec(), tool="hermez")
    with pytest.raises(ConfigError, match="qwen3"):
        choose("x", ToyCodec(), reasoning="qwen")


def test_a_format_whose_tokens_are_missing_ends_the_start_or_is_passed_over() -> None:
    with pytest.raises(ConfigError, match="TOOL_CALLS"):
        choose("x", ToyCodec(), tool="mistral")
    chosen = choose("{{ tools }}[TOOL_CALLS]", ToyCodec())
    assert chosen.tool is not None
    assert chosen.tool.name == "hermes"
    chosen = choose("{{ tools }}[TOOL_CALLS]", ToyCodec(special=["[TOOL_CALLS]"]))
    assert chosen.tool is not None
    assert chosen.tool.name == "mistral"
    assert chosen.formats.controls


def test_the_table_says_what_was_chosen_and_why() -> None:
    named = choose("{{ tools }}", ToyCodec(), tool="hermes", reasoning="qwen3").table
    assert [row[:2] for row in named] == [["tool calls", "hermes"], ["reasoning", "qwen3"]]
    assert "--tool-call-parser" in named[0][2]
    assert "system message" in choose("{{ messages }}", ToyCodec()).table[0][2]
    assert choose(None, ToyCodec()).table[0][1] == "not parsed"


@pytest.mark.parametrize(
    ("name", "tail", "variables", "effort", "starts"),
    [
        ("deepseek_r1", "assistant\n", {}, None, True),
        ("deepseek_r1", "assistant\n<think>\n\n</think>\n\n", {}, None, False),
        ("qwen3", "assistant\n", {}, None, True),
        ("qwen3", "assistant\n", {"enable_thinking": False}, None, False),
        ("deepseek_v3", "assistant\n", {}, None, False),
        ("deepseek_v3", "assistant\n", {"thinking": True}, None, True),
        ("deepseek_v3", "assistant\n<think>", {}, None, True),
        ("deepseek_v4", "assistant\n", {}, "none", False),
        ("deepseek_v4", "assistant\n", {}, "high", True),
        ("hy_v3", "assistant\n", {}, None, False),
        ("hy_v3", "assistant\n", {}, "high", True),
        ("hy_v3", "assistant\n", {"reasoning_effort": "no_think"}, "high", False),
        ("gemma4", "model\n", {}, None, False),
        ("gemma4", "model\n<|channel>thought\n", {}, None, True),
        ("mistral", "what does [THINK] mean?[/INST]", {}, None, False),
    ],
)
def test_where_an_answer_begins(
    name: str, tail: str, variables: dict[str, object], effort: str | None, starts: bool
) -> None:
    parsers = choose("x", ToyCodec(), reasoning=name)
    assert parsers.starts_in_reasoning(tail, variables, effort=effort) is starts


def test_a_parser_that_nobody_named_waits_for_the_mark() -> None:
    parsers = choose("<think>", ToyCodec())
    assert not parsers.starts_in_reasoning("assistant\n", {})
    assert parsers.starts_in_reasoning("assistant\n<think>\n", {})
    assert parsers.starts_in_reasoning("<think>\nI have", {}, continues=True)
