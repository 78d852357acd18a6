"""Every reasoning format by name. Data only; see rows for what a field means."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypedDict, Unpack

from octavo.api.text.parsers.harmony import TOKENS as HARMONY
from octavo.api.text.parsers.rows import ReasoningRow, Start

_BOTH = ("thinking", "enable_thinking")
_THINK = "<think>...</think>"


class _Fields(TypedDict, total=False):
    """What rows with `<think>` differ in. The names are those of ReasoningRow."""

    shape: str
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    start: Start
    switches: tuple[str, ...]
    default_on: bool
    effort_off: tuple[str, ...]
    is_ended_by_tools: bool
    drops: tuple[str, ...]
    strips: Literal["", "lead", "tail"]
    has_suffix: bool
    at: tuple[str, ...]


def _think(name: str, models: str, **fields: Unpack[_Fields]) -> ReasoningRow:
    row = ReasoningRow(
        name=name, models=models, shape=_THINK, opens=("<think>",), closes=("</think>",), start="reasoning"
    )
    return replace(row, **fields)


_qwen3 = _think(
    "qwen3",
    "Qwen 3 and later",
    start="asked",
    switches=("enable_thinking",),
    is_ended_by_tools=True,
    at=("<think>",),
)
_glm = _think("glm45", "GLM-4.5 and later", start="asked", switches=_BOTH, is_ended_by_tools=True)
_deepseek_v3 = _think("deepseek_v3", "DeepSeek V3.1", start="asked", switches=_BOTH, default_on=False)
_deepseek_v4 = _think(
    "deepseek_v4", "DeepSeek V4", start="asked", switches=("thinking",), effort_off=("none",)
)
_hy = _think(
    "hy_v3",
    "Hunyuan V3",
    has_suffix=True,
    start="asked",
    default_on=False,
    effort_off=("none", "no_think"),
)
_cohere = ReasoningRow(
    name="cohere_command3", models="Command A Reasoning", shape="<|START_THINKING|>...<|END_THINKING|>",
    opens=("<|START_THINKING|>",), closes=("<|END_THINKING|>",),
    drops=("<|START_RESPONSE|>", "<|END_RESPONSE|>"), at=("<|START_THINKING|>",),
)  # fmt: skip

_ROWS: tuple[ReasoningRow, ...] = (
    _think("deepseek_r1", "DeepSeek R1, QwQ"),
    _deepseek_v3,
    _think("holo2", "Holo2", start="asked", switches=_BOTH),
    _deepseek_v4,
    replace(_deepseek_v4, name="deepseek_v41", models="DeepSeek V4.1"),
    replace(_deepseek_v3, name="poolside_v1", models="Laguna"),
    _cohere,
    replace(_cohere, name="cohere_command4"),
    _think(
        "ernie45", "ERNIE 4.5 thinking", shape="...</think> <response>...</response>",
        drops=("<response>", "</response>"),
    ),
    ReasoningRow(
        name="gemma4", models="Gemma 4", shape="<|channel>thought ...<channel|>", opens=("<|channel>thought\n",),
        closes=("<channel|>",), at=("<|channel>",),
    ),
    _glm,
    replace(_glm, name="glm47", models="GLM-4.7, GLM-5"),
    replace(_glm, name="ling3", models="Ling 3"),
    ReasoningRow(
        name="openai_gptoss", models="gpt-oss", shape="analysis channel of harmony", opens=HARMONY, is_harmony=True,
        at=("<|channel|>", "<|message|>"),
    ),
    ReasoningRow(
        name="granite", models="Granite 3.2", shape="Here is my thought process: ... Here is my response: ...",
        opens=("Here is my thought process:", "Here's my thought process:"),
        closes=("Here is my response:", "Here's my response:"), at=("Here is your thought process",),
    ),
    _think("granite_thinking_parser", "Granite 4.2", start="asked", switches=("enable_thinking",), strips="lead"),
    _think("nemotron_v3", "Nemotron 3", start="asked", switches=("enable_thinking",)),
    ReasoningRow(
        name="hunyuan_a13b", models="Hunyuan A13B", shape="<think>...</think><answer>...</answer>",
        opens=("<think>\n", "<think>"), closes=("\n</think>", "</think>"),
        drops=("\n<answer>\n", "<answer>\n", "\n</answer>", "</answer>"), at=("<think>", "<answer>"),
    ),
    _hy,
    replace(_hy, name="hy_v4", models="Hunyuan V4"),
    _think(
        "kimi_k2", "Kimi K2 Thinking", start="asked", switches=_BOTH, is_ended_by_tools=True,
        at=("<|tool_calls_section_begin|>", "<think>"),
    ),
    ReasoningRow(
        name="kimi_k3", models="Kimi K3", shape="<|open|>think<|sep|>...<|close|>think<|sep|>",
        opens=("<|open|>think<|sep|>",), closes=("<|close|>think<|sep|>",),
        drops=("<|open|>response<|sep|>", "<|close|>response<|sep|>"), at=("<|open|>think",),
    ),
    _think(
        "k2_horizon", "K2 Horizon", shape="<ifm|think>...</ifm|think>, also think_fast and think_faster",
        opens=("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
        closes=("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"), at=("<ifm|think>",),
    ),
    replace(_qwen3, name="mimo", models="MiMo", at=()),
    _qwen3,
    replace(_qwen3, name="minicpmv", models="MiniCPM-V", unescapes=True, at=()),
    _think("minimax_m2", "MiniMax M2", shape="...</think>", at=("<minimax:tool_call>", "<think>")),
    ReasoningRow(
        name="minimax_m2_append_think", models="MiniMax M2",
        shape="nothing is split; <think> is put before the content",
        prefixes="<think>",
    ),
    ReasoningRow(
        name="minimax_m3", models="MiniMax M3", shape="<mm:think>...</mm:think>", opens=("<mm:think>",),
        closes=("</mm:think>",), at=("<mm:think>",),
    ),
    ReasoningRow(
        name="mistral", models="Magistral", shape="[THINK]...[/THINK] or <think>...</think>",
        opens=("[THINK]", "<think>"), closes=("[/THINK]", "</think>"), is_ended_by_tools=True, at=("[THINK]",),
    ),
    ReasoningRow(
        name="muse_glimmer", models="Muse Glimmer", shape="to=self<|message|>...<|eom|>",
        opens=("<|start|>assistant to=self<|message|>", " to=self<|message|>", "to=self<|message|>"),
        closes=("<|eom|>",),
        drops=("<|start|>assistant to=user<|message|>", " to=user<|message|>", "to=user<|message|>", "<|eom|>"),
        at=("to=self<|message|>",),
    ),
    _think("olmo3", "OLMo 3 Think", at=("<function_calls>", "<think>")),
    _think(
        "plamo3", "PLaMo 3", shape="<|plamo:begin_think:plamo|>...<|plamo:end_think:plamo|>",
        opens=("<|plamo:begin_think:plamo|>",), closes=("<|plamo:end_think:plamo|>",), start="asked",
        switches=("enable_thinking",), at=("<|plamo:begin_think:plamo|>",),
    ),
    _think(
        "seed_oss", "Seed-OSS", shape="<seed:think>...</seed:think>", opens=("<seed:think>",),
        closes=("</seed:think>",), start="asked", switches=("enable_thinking",), at=("<seed:think>",),
    ),
    _think("step3", "Step 3", shape="...</think>"),
    _think("step3p5", "Step 3.5, Step 3.7", strips="tail"),
    ReasoningRow(
        name="inkling", models="Inkling", shape="<|content_thinking|>...<|end_message|>",
        opens=("<|content_thinking|>",), closes=("<|end_message|>",), drops=("<|content_text|>", "<|end_message|>"),
        at=("<|content_thinking|>",),
    ),
)  # fmt: skip

REASONING_ROWS: dict[str, ReasoningRow] = {row.name: row for row in _ROWS}
REASONING_ROWS["hf"] = ReasoningRow(
    name="hf",
    shape="as the response_template in tokenizer_config.json says",
    models="any with a response_template",
)
