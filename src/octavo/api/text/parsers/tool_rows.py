"""Every tool-call format by name. Data only; see rows for what a field means."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict, Unpack

from octavo.api.text.parsers.harmony import TOKENS as HARMONY
from octavo.api.text.parsers.rows import ToolRow

_DSML = "｜DSML｜"


class _Fields(TypedDict, total=False):
    """What rows of one family differ in. The names are those of ToolRow."""

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    bare: tuple[str, ...]
    loose: tuple[str, ...]
    name_keys: tuple[str, ...]
    argument_keys: tuple[str, ...]
    is_list: bool
    is_keyed: bool
    takes_json: bool
    separators: tuple[str, ...]
    fences: tuple[str, ...]
    name_ends: tuple[str, ...]
    keeps_newlines: bool
    key: tuple[str, str]
    value: tuple[str, str]
    kind: tuple[str, str]
    has_suffix: bool
    at: tuple[str, ...]
    not_at: tuple[str, ...]
    needs: tuple[str, ...]


def _json(name: str, models: str, shape: str, **fields: Unpack[_Fields]) -> ToolRow:
    return replace(ToolRow(name=name, family="json", models=models, shape=shape), **fields)


_hermes = _json(
    "hermes",
    "Hermes 2 and 3, Qwen 2.5, Qwen 3",
    '<tool_call>{"name", "arguments"}</tool_call>',
    opens=("<tool_call>",),
    closes=("</tool_call>",),
    loose=("{", "`"),  # Qwen2.5-Coder forgets the tags, and often writes a block of code
    fences=("```json", "```"),
    at=("<tool_call>", "arguments"),
    not_at=("<function=", "<arg_key>", "<tool_call>["),
)
_coder = ToolRow(
    name="qwen3_coder",
    family="xml",
    models="Qwen3-Coder, Qwen 3.5",
    shape="<tool_call><function=N><parameter=k>v</parameter></function></tool_call>",
    section=("<tool_call>", "</tool_call>"),
    opens=("<function=",),
    closes=("</function>",),
    parameter="<parameter=",
    parameter_close="</parameter>",
    at=("<function=", "<parameter=", "<tool_call>"),
    not_at=("<seed:tool_call>",),
)


def _invoke(
    name: str, models: str, section: tuple[str, str] | None, prefix: str = "", **fields: Unpack[_Fields]
) -> ToolRow:
    """`<invoke name="N"><parameter name="k">v</parameter></invoke>` with something before each tag's name."""
    (begin, end), tag = section or ("", ""), f"<{prefix}"
    row = ToolRow(
        name=name,
        family="xml",
        models=models,
        shape=f'{begin}{tag}invoke name="N">{tag}parameter name="k">v</{prefix}parameter></{prefix}invoke>{end}',
        section=section,
        opens=(f'<{prefix}invoke name="',),
        closes=(f"</{prefix}invoke>",),
        parameter=f'<{prefix}parameter name="',
        parameter_close=f"</{prefix}parameter>",
        quote='"',
        at=(f"<{prefix}invoke name=",),
    )
    return replace(row, **fields)


_GLM_SHAPE = "<tool_call>N<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>"


def _keyed(
    name: str,
    models: str,
    *,
    section: tuple[str, str] | None = None,
    shape: str = _GLM_SHAPE,
    **fields: Unpack[_Fields],
) -> ToolRow:
    row = ToolRow(
        name=name,
        family="keyed",
        models=models,
        shape=shape,
        section=section,
        opens=("<tool_call>",),
        closes=("</tool_call>",),
        key=("<arg_key>", "</arg_key>"),
        value=("<arg_value>", "</arg_value>"),
        name_ends=("\n",),
        at=("<arg_key>", "<tool_call>"),
        not_at=("<tool_sep>",),
    )
    return replace(row, **fields)


_glm = _keyed("glm45", "GLM-4.5, GLM-4.6")
_llama3 = _json(
    "llama3_json",
    "Llama 3.1, Llama 3.2",
    '[<|python_tag|>]{"name", "parameters"}; {...}',
    opens=("<|python_tag|>", "{"),
    bare=("{",),
    separators=(";",),
    argument_keys=("parameters", "arguments"),
    at=('"parameters"', "<|eot_id|>"),
)
_dsml = _invoke(
    "deepseek_v32",
    "DeepSeek V3.2",
    (f"<{_DSML}function_calls>", f"</{_DSML}function_calls>"),
    _DSML,
    keeps_newlines=True,
    at=(f"<{_DSML}function_calls>",),
)
_MM = "]<]minimax[>["
_PLAMO = "<|plamo:{}:plamo|>"

_ROWS: tuple[ToolRow, ...] = (
    _json(
        "apertus", "Apertus", '<|tools_prefix|>[{"N": {...}}]<|tools_suffix|>',
        opens=("<|tools_prefix|>",), closes=("<|tools_suffix|>",), is_list=True, is_keyed=True,
        at=("<|tools_prefix|>",), needs=("<|tools_prefix|>",),
    ),
    _json(
        "cohere_command3", "Command R, Command A",
        '<|START_ACTION|>[{"tool_call_id", "tool_name", "parameters"}]<|END_ACTION|>',
        opens=("<|START_ACTION|>",), closes=("<|END_ACTION|>",), is_list=True, name_keys=("tool_name",),
        argument_keys=("parameters",), at=("<|START_ACTION|>",), needs=("<|START_ACTION|>",),
    ),
    ToolRow(
        name="deepseek_v3", family="named", models="DeepSeek V3, R1-0528",
        shape="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>N ```json {...} ```<｜t"
        "ool▁call▁end｜><｜tool▁calls▁end｜>",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), opens=("<｜tool▁call▁begin｜>",),
        closes=("<｜tool▁call▁end｜>",), prefix="function<｜tool▁sep｜>", name_ends=("\n",),
        before_arguments=("```json",), after_arguments=("```",),
        at=("<｜tool▁call▁begin｜>", "```json"), needs=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    ),
    ToolRow(
        name="deepseek_v31", family="named", models="DeepSeek V3.1",
        shape="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>N<｜tool▁sep｜>{...}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), opens=("<｜tool▁call▁begin｜>",),
        closes=("<｜tool▁call▁end｜>",), name_ends=("<｜tool▁sep｜>",),
        at=("<｜tool▁call▁begin｜>",), not_at=("```json",),
        needs=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    ),
    _dsml,
    replace(
        _dsml, name="deepseek_v4", models="DeepSeek V4", section=(f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>"),
        shape=_dsml.shape.replace("function_calls", "tool_calls"), at=(f"<{_DSML}tool_calls>",),
        section_begins=(f"<{_DSML}toolcalls>", f"<{_DSML}tool>"),
    ),
    _invoke(
        "deepseek_v41", "DeepSeek V4.1", (f"<{_DSML} calls>", f"</{_DSML} calls>"), f"{_DSML} ",
        keeps_newlines=True, at=(f"<{_DSML} calls>",),
    ),
    _invoke(
        "dots", "dots", ("<dots_function_call>", "</dots_function_call>"), at=("<dots_function_call>",),
        takes_json=True,
    ),
    replace(_hermes, name="ernie45", models="ERNIE 4.5", at=("<tool_call>", "<response>")),
    ToolRow(
        name="functiongemma", family="braced", models="FunctionGemma",
        shape="<start_function_call>call:N{k:<escape>v<escape>}<end_function_call>",
        opens=("<start_function_call>",), closes=("<end_function_call>",), string_quote="<escape>",
        at=("<start_function_call>",), needs=("<start_function_call>",),
    ),
    ToolRow(
        name="gemma4", family="braced", models="Gemma 4", shape='<|tool_call>call:N{k:<|"|>v<|"|>,n:42}<tool_call|>',
        opens=("<|tool_call>",), closes=("<tool_call|>",), string_quote='<|"|>',
        at=("<|tool_call>",), needs=("<|tool_call>",),
    ),
    _json(
        "gigachat3", "GigaChat 3", 'function call<|role_sep|>{"name", "arguments"}',
        opens=("function call<|role_sep|>", "<|function_call|>"), at=("function call<|role_sep|>",),
    ),
    _glm,
    replace(_glm, name="glm47", models="GLM-4.7, GLM-5", at=()),
    replace(_glm, name="ling3", models="Ling 3", at=()),
    replace(_glm, name="poolside_v1", models="Laguna", at=()),
    _json(
        "granite", "Granite 3.0 and 3.1", '<|tool_call|>[{"name", "arguments"}]',
        opens=("<|tool_call|>", "<tool_call>"),
        closes=("</tool_call>",), is_list=True, at=("<|tool_call|>",),
    ),
    replace(_hermes, name="granite4", models="Granite 4", at=("<tool_call>", "<|start_of_role|>")),
    _json(
        "granite-20b-fc", "Granite-20B-FunctionCalling", '<function_call>{"name", "arguments"}',
        opens=("<function_call>",), at=("<function_call>",),
    ),
    _hermes,
    replace(_hermes, name="qwen3_json", models="Qwen 3", at=()),
    _json(
        "hunyuan_a13b", "Hunyuan A13B", '<tool_calls>[{"name", "arguments"}]</tool_calls>', opens=("<tool_calls>",),
        closes=("</tool_calls>",), is_list=True, at=("<tool_calls>", "<answer>"),
    ),
    _keyed(
        "hy_v3", "Hunyuan V3", section=("<tool_calls>", "</tool_calls>"), name_ends=("<tool_sep>", "\n"),
        at=("<tool_calls>", "<tool_sep>"), not_at=(), has_suffix=True,
        shape="<tool_calls><tool_call>N<tool_sep><arg_key>k</arg_key><arg_value>v</arg_value></tool_call></tool_calls>",
    ),
    _keyed(
        "hy_v4", "Hunyuan V4", section=("<tool_calls>", "</tool_calls>"), at=("<tool_calls>", "<arg_key>"),
        has_suffix=True,
        shape="<tool_calls><tool_call>N<arg_key>k</arg_key><arg_value>v</arg_value></tool_call></tool_calls>",
    ),
    _json(
        "inkling", "Inkling", '<|content_invoke_tool_json|>{"name", "args"}<|end_message|>',
        opens=("<|content_invoke_tool_json|>",), closes=("<|end_message|>",), argument_keys=("args", "arguments"),
        at=("<|content_invoke_tool_json|>",), needs=("<|content_invoke_tool_json|>",),
    ),
    _json(
        "internlm", "InternLM 2 and 2.5", '<|action_start|><|plugin|>{"name", "parameters"}<|action_end|>',
        argument_keys=("parameters", "arguments"),
        opens=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"), closes=("<|action_end|>",),
        at=("<|action_start|>",), needs=("<|action_start|>", "<|plugin|>"),
    ),
    _json(
        "jamba", "Jamba 1.5", '<tool_calls>[{"name", "arguments"}]</tool_calls>', opens=("<tool_calls>",),
        closes=("</tool_calls>",), is_list=True, at=("<tool_calls>",), not_at=("<answer>", "<tool_call>"),
    ),
    _keyed(
        "k2_horizon", "K2 Horizon", section=("<ifm|tool_calls>", "</ifm|tool_calls>"), opens=("<ifm|tool_call>",),
        closes=("</ifm|tool_call>",), key=("<ifm|arg_key>", "</ifm|arg_key>"),
        value=("<ifm|arg_value>", "</ifm|arg_value>"), kind=("<ifm|arg_type>", "</ifm|arg_type>"), is_list=True,
        at=("<ifm|tool_call>",), not_at=(),
        shape="<ifm|tool_calls><ifm|tool_call>N<ifm|arg_key>k</ifm|arg_key>[<ifm|arg_type>t</ifm|arg_type>]"
        '<ifm|arg_value>v</ifm|arg_value></ifm|tool_call></ifm|tool_calls>, or {"name", "arguments"} inside',
    ),
    ToolRow(
        name="kimi_k2", family="named", models="Kimi K2, K2.5",
        shape="<|tool_calls_section_begin|><|tool_call_begin|>functions.N:0<|tool_call_argument_begin|>"
        "{...}<|tool_call_end|><|tool_calls_section_end|>",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"), opens=("<|tool_call_begin|>",),
        closes=("<|tool_call_end|>",), name_ends=("<|tool_call_argument_begin|>",), ids="own",
        at=("<|tool_call_begin|>", "<|tool_call_argument_begin|>"), needs=("<|tool_call_begin|>",),
    ),
    ToolRow(
        name="kimi_k3", family="xml", models="Kimi K3",
        shape='<|open|>tools<|sep|><|open|>call tool="N" index="1"<|sep|><|open|>argument key="k" type='
        '"string"<|sep|>v<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        section=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"), opens=('<|open|>call tool="',),
        closes=("<|close|>call<|sep|>",), parameter='<|open|>argument key="',
        parameter_close="<|close|>argument<|sep|>", quote='"', head_end="<|sep|>", keeps_newlines=True,
        at=("<|open|>call",), needs=("<|open|>", "<|close|>", "<|sep|>"),
    ),
    ToolRow(
        name="lfm2", family="pythonic", models="LFM2, LFM2.5",
        shape='<|tool_call_start|>[f(a=1), g(b="x")]<|tool_call_end|>',
        opens=("<|tool_call_start|>",), closes=("<|tool_call_end|>",), at=("<|tool_call_start|>",),
        needs=("<|tool_call_start|>",),
    ),
    _llama3,
    replace(_llama3, name="llama4_json", models="Llama 4", at=()),
    ToolRow(
        name="llama4_pythonic", family="pythonic", models="Llama 4",
        shape="[<|python_start|>][f(a=1), g()][<|python_end|>]",
        opens=("<|python_start|>",), closes=("<|python_end|>",), bare=("[",), at=("<|python_start|>",),
    ),
    _json(
        "longcat", "LongCat Flash", '<longcat_tool_call>{"name", "arguments"}</longcat_tool_call>',
        opens=("<longcat_tool_call>",), closes=("</longcat_tool_call>",), at=("<longcat_tool_call>",),
    ),
    replace(_coder, name="mimo", models="MiMo", keeps_newlines=True, at=()),
    ToolRow(
        name="minicpm5", family="xml", models="MiniCPM 5",
        shape='<function name="N"><param name="k">v</param></function>',
        opens=('<function name="',), closes=("</function>",), parameter='<param name="', parameter_close="</param>",
        quote='"', at=("<function name=", "<param name="),
    ),
    _invoke(
        "minimax_m2", "MiniMax M2", ("<minimax:tool_call>", "</minimax:tool_call>"), at=("<minimax:tool_call>",),
    ),
    ToolRow(
        name="minimax_m3", family="elements", models="MiniMax M3",
        shape='P<tool_call>P<invoke name="N">P<k>vP</k>P</invoke>P</tool_call>, where P is ' + _MM,
        section=(f"{_MM}<tool_call>", f"{_MM}</tool_call>"), opens=(f'{_MM}<invoke name="',), parameter=_MM,
        quote='"', at=(_MM,),
    ),
    ToolRow(
        name="mistral", family="named", models="Mistral, Magistral, Devstral",
        shape='[TOOL_CALLS][{"name", "arguments"}], [TOOL_CALLS]N[ARGS]{...} or [TOOL_CALLS]N{...}',
        opens=("[TOOL_CALLS]",), name_ends=("[ARGS]", "{"), id_mark="[CALL_ID]", is_list=True, ids="short",
        at=("[TOOL_CALLS]",), needs=("[TOOL_CALLS]",),
    ),
    _invoke(
        "muse_glimmer", "Muse Glimmer", ("<atem:function_calls>", "</atem:function_calls>"), "atem:",
        at=("<atem:function_calls>",),
    ),
    ToolRow(
        name="olmo3", family="pythonic", models="OLMo 3",
        shape="<function_calls>f(a=1) g()</function_calls>, one call a line",
        opens=("<function_calls>",), closes=("</function_calls>",), at=("<function_calls>",),
        not_at=("<invoke", "<atem:"),
    ),
    ToolRow(
        name="openai", family="harmony", models="gpt-oss", shape="commentary channel to=functions.N with {...}",
        opens=HARMONY, at=("<|channel|>", "<|message|>"), needs=("<|channel|>", "<|message|>"),
    ),
    _json(
        "phi4_mini_json", "Phi-4-mini", 'functools[{"name", "arguments"}]', opens=("functools",), is_list=True,
        at=("functools",),
    ),
    ToolRow(
        name="plamo3", family="named", models="PLaMo 3",
        shape="begin_tool_requests, begin_tool_request, begin_tool_name N end_tool_name, begin_tool_arg"
        "uments {...}, ends; each as <|plamo:...:plamo|>",
        section=(_PLAMO.format("begin_tool_requests"), _PLAMO.format("end_tool_requests")),
        opens=(_PLAMO.format("begin_tool_request"),), closes=(_PLAMO.format("end_tool_request"),),
        prefix=_PLAMO.format("begin_tool_name"), name_ends=(_PLAMO.format("end_tool_name"),),
        before_arguments=(_PLAMO.format("begin_tool_arguments"), "<|plamo:constrain|>", "json", "<|plamo:msg|>"),
        after_arguments=(_PLAMO.format("end_tool_arguments"),),
        at=(_PLAMO.format("begin_tool_name"),), needs=(_PLAMO.format("begin_tool_request"),),
    ),
    ToolRow(
        name="pythonic", family="pythonic", models="Llama 3.2, ToolACE", shape="[f(a=1), g(b='x')] and nothing else",
        bare=("[",), at=("[func_name1(",),
    ),
    _coder,
    replace(_coder, name="qwen3_xml", at=()),
    replace(
        _coder, name="seed_oss", models="Seed-OSS", section=("<seed:tool_call>", "</seed:tool_call>"),
        shape=_coder.shape.replace("tool_call", "seed:tool_call"), at=("<seed:tool_call>",), not_at=(),
    ),
    ToolRow(
        name="step3", family="xml", models="Step 3",
        shape='<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="N'
        '"><steptml:parameter name="k">v</steptml:parameter></steptml:invoke><｜tool_call_end｜><'
        '｜tool_calls_end｜>',
        section=("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
        opens=('<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="',),
        closes=("</steptml:invoke><｜tool_call_end｜>", "</steptml:invoke>"),
        parameter='<steptml:parameter name="', parameter_close="</steptml:parameter>", quote='"',
        at=("<steptml:invoke", "<｜tool_call_begin｜>"), needs=("<｜tool_call_begin｜>",),
    ),
    replace(_coder, name="step3p5", models="Step 3.5, Step 3.7", at=()),
    _json(
        "xlam", "xLAM", '[{"name", "arguments"}], also fenced, or behind [TOOL_CALLS] or in <tool_call>',
        opens=("[TOOL_CALLS]", "<tool_call>", "```json", "```"), closes=("</tool_call>", "```"), bare=("[",),
        is_list=True,
    ),
)  # fmt: skip

#: Stands for the format that a checkpoint describes itself: `choose` gives it that checkpoint's template.
HF_TOOLS = ToolRow(
    name="hf",
    family="response",
    shape="as the response_template in tokenizer_config.json says",
    models="any with a response_template",
)

TOOL_ROWS: dict[str, ToolRow] = {row.name: row for row in _ROWS}
TOOL_ROWS["hf"] = HF_TOOLS
TOOL_ROWS["cohere_command4"] = replace(TOOL_ROWS["cohere_command3"], name="cohere_command4")
