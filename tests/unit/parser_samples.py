"""For every tool row a text with two calls, as the format writes them; shared by the tests of parsers."""

from __future__ import annotations

from typing import Any

TOOLS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
    "now": {"type": "object", "properties": {}},
}
#: What every sample says: text, then these calls.
CALLS = [("weather", {"city": "Köln <b>", "days": 3}), ("now", {})]
SINGLE = [("weather", {"city": "Köln <b>", "days": 3})]

_ARGS = '{"city": "Köln <b>", "days": 3}'
_W = '{"name": "weather", "arguments": ' + _ARGS + "}"
_N = '{"name": "now", "arguments": {}}'


def _tags(begin: str, end: str, between: str = "\n") -> str:
    return f"{begin}\n{_W}\n{end}{between}{begin}\n{_N}\n{end}"


def _xml(section: tuple[str, str], prefix: str, *, typed: bool = False) -> str:
    text, number = (' string="true"', ' string="false"') if typed else ("", "")
    return (
        f'{section[0]}<{prefix}invoke name="weather"><{prefix}parameter name="city"{text}>Köln <b></{prefix}parameter>'
        f'<{prefix}parameter name="days"{number}>3</{prefix}parameter></{prefix}invoke>'
        f'<{prefix}invoke name="now"></{prefix}invoke>{section[1]}'
    )


def _keyed(section: tuple[str, str] = ("", ""), sep: str = "\n", t: str = "") -> str:
    pairs = "".join(
        f"<{t}arg_key>{k}</{t}arg_key>\n<{t}arg_value>{v}</{t}arg_value>\n"
        for k, v in (("city", "Köln <b>"), ("days", "3"))
    )
    return f"{section[0]}<{t}tool_call>weather{sep}{pairs}</{t}tool_call>\n<{t}tool_call>now{sep}</{t}tool_call>{section[1]}"


_CODER = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nKöln <b>\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>"
)
_PYTHON = "[weather(city='Köln <b>', days=3), now()]"
_LIST = f"[{_W}, {_N}]"
_D = "｜DSML｜"
_M = "]<]minimax[>["


def _plamo(word: str) -> str:
    return f"<|plamo:{word}:plamo|>"


def _plamo_call(name: str, args: str) -> str:
    return (
        _plamo("begin_tool_request") + _plamo("begin_tool_name") + name + _plamo("end_tool_name")
        + _plamo("begin_tool_arguments") + "<|plamo:constrain|>json<|plamo:msg|>" + args
        + _plamo("end_tool_arguments") + _plamo("end_tool_request")
    )  # fmt: skip


def _step3(name: str, inner: str) -> str:
    return (
        f'<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">{inner}</steptml:invoke>'
        "<｜tool_call_end｜>"
    )


def _k3_argument(key: str, kind: str, value: str) -> str:
    return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'


_R1 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
_LLAMA = _W.replace("arguments", "parameters") + "; " + _N.replace("arguments", "parameters")

SAMPLES: dict[str, str] = {
    "apertus": '<|tools_prefix|>[{"weather": ' + _ARGS + '}, {"now": {}}]<|tools_suffix|>',
    "cohere_command3": '<|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "weather", "parameters": '
    + _ARGS
    + '},\n{"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
    "deepseek_v3": _R1.format(
        f"function<｜tool▁sep｜>weather\n```json\n{_ARGS}\n```", "function<｜tool▁sep｜>now\n```json\n{}\n```"
    ),
    "deepseek_v31": _R1.format(f"weather<｜tool▁sep｜>{_ARGS}", "now<｜tool▁sep｜>{}"),
    "deepseek_v32": _xml((f"<{_D}function_calls>", f"</{_D}function_calls>"), _D, typed=True),
    "deepseek_v4": _xml((f"<{_D}tool_calls>", f"</{_D}tool_calls>"), _D, typed=True),
    "deepseek_v41": _xml((f"<{_D} calls>", f"</{_D} calls>"), f"{_D} ", typed=True),
    "dots": _xml(("<dots_function_call>", "</dots_function_call>"), ""),
    "ernie45": _tags("<tool_call>", "</tool_call>"),
    "functiongemma": "<start_function_call>call:weather{city:<escape>Köln <b><escape>,days:3}<end_function_call>"
    "<start_function_call>call:now{}<end_function_call>",
    "gemma4": '<|tool_call>call:weather{city:<|"|>Köln <b><|"|>,days:3}<tool_call|><|tool_call>call:now{}<tool_call|>',
    "gigachat3": f"function call<|role_sep|>\n{_W}",
    "glm45": _keyed(),
    "granite": f"<|tool_call|>{_LIST}",
    "granite4": _tags("<tool_call>", "</tool_call>"),
    "granite-20b-fc": f"<function_call> {_W}\n<function_call> {_N}",
    "hermes": _tags("<tool_call>", "</tool_call>"),
    "hunyuan_a13b": f"<tool_calls>{_LIST}</tool_calls>",
    "hy_v3": _keyed(("<tool_calls>", "</tool_calls>"), "<tool_sep>"),
    "hy_v4": _keyed(("<tool_calls>", "</tool_calls>")),
    "inkling": "".join(
        f"<|content_invoke_tool_json|>{x.replace('arguments', 'args')}<|end_message|>" for x in (_W, _N)
    ),
    "internlm": f"<|action_start|><|plugin|>\n{_W.replace('arguments', 'parameters')}\n<|action_end|>",
    "jamba": f"<tool_calls>{_LIST}</tool_calls>",
    "k2_horizon": _keyed(("<ifm|tool_calls>", "</ifm|tool_calls>"), "\n", "ifm|"),
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
    + _ARGS
    + "<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|>",
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|>'
    + _k3_argument("city", "string", "Köln <b>")
    + _k3_argument("days", "number", "3")
    + '<|close|>call<|sep|><|open|>call tool="now" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
    "lfm2": f"<|tool_call_start|>{_PYTHON}<|tool_call_end|>",
    "llama3_json": "<|python_tag|>" + _LLAMA,
    "llama4_pythonic": f"<|python_start|>{_PYTHON}<|python_end|>",
    "longcat": _tags("<longcat_tool_call>", "</longcat_tool_call>"),
    "mimo": _CODER.replace("\nKöln <b>\n", "Köln <b>").replace("\n3\n", "3"),
    "minicpm5": '<function name="weather"><param name="city"><![CDATA[Köln <b>]]></param><param name="days">3</param>'
    '</function><function name="now"></function>',
    "minimax_m2": _xml(("<minimax:tool_call>\n", "\n</minimax:tool_call>"), ""),
    "minimax_m3": f'{_M}<tool_call>{_M}<invoke name="weather">{_M}<city>Köln <b>{_M}</city>{_M}<days>3{_M}</days>'
    f'{_M}</invoke>{_M}<invoke name="now">{_M}</invoke>{_M}</tool_call>',
    "mistral": f"[TOOL_CALLS]weather[ARGS]{_ARGS}[TOOL_CALLS]now[ARGS]{{}}",
    "muse_glimmer": _xml(("<atem:function_calls>", "</atem:function_calls>"), "atem:"),
    "olmo3": "<function_calls>\nweather(city='Köln <b>', days=3)\nnow()\n</function_calls>",
    "openai": "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    + _ARGS
    + "<|call|><|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>",
    "phi4_mini_json": f"functools{_LIST}",
    "plamo3": _plamo("begin_tool_requests")
    + _plamo_call("weather", _ARGS)
    + _plamo_call("now", "{}")
    + _plamo("end_tool_requests"),
    "pythonic": _PYTHON,
    "seed_oss": _CODER.replace("tool_call>", "seed:tool_call>"),
    "step3": "<｜tool_calls_begin｜>"
    + _step3(
        "weather",
        '<steptml:parameter name="city">Köln <b></steptml:parameter>'
        '<steptml:parameter name="days">3</steptml:parameter>',
    )
    + _step3("now", "")
    + "<｜tool_calls_end｜>",
    "xlam": _LIST,
}
_SAME = {
    "cohere_command4": "cohere_command3", "glm47": "glm45", "ling3": "glm45", "poolside_v1": "glm45",
    "llama4_json": "llama3_json", "qwen3_coder": "", "qwen3_xml": "", "step3p5": "", "qwen3_json": "hermes",
}  # fmt: skip
SAMPLES |= {name: SAMPLES[other] if other else _CODER for name, other in _SAME.items()}

#: Formats of one call: the second of CALLS is not in the sample.
ONE_CALL = frozenset({"gigachat3", "internlm"})
#: Formats where calls are told by their first character: no text may stand before them.
BARE = frozenset({"pythonic", "xlam"})
#: Other ways to write the same, which the same row reads.
VARIANTS: list[tuple[str, str]] = [
    ("mistral", f"[TOOL_CALLS]{_LIST}"),
    ("mistral", f"[TOOL_CALLS]weather{_ARGS}[TOOL_CALLS]now{{}}"),
    ("granite", f"<tool_call>{_LIST}"),
    ("hermes", f"<tool_call>{_W}</tool_call><tool_call>{_N}"),
    ("gigachat3", f"<|function_call|>{_W}"),
    ("llama3_json", _LLAMA),
    ("llama4_pythonic", _PYTHON),
    ("qwen3_coder", _CODER.replace("<tool_call>\n", "").replace("\n</tool_call>", "")),
    ("xlam", f"```json\n{_LIST}\n```"),
    ("xlam", f"[TOOL_CALLS]{_LIST}"),
    ("xlam", f"<tool_call>{_LIST}</tool_call>"),
    ("k2_horizon", f"<ifm|tool_calls><ifm|tool_call>{_W}</ifm|tool_call><ifm|tool_call>{_N}</ifm|tool_call></ifm|tool_calls>"),
    ("k2_horizon", _keyed(("<ifm|tool_calls>", "</ifm|tool_calls>"), "\n", "ifm|").replace(
        "</ifm|arg_key>\n<ifm|arg_value>3", "</ifm|arg_key><ifm|arg_type>integer</ifm|arg_type><ifm|arg_value>3")),
]  # fmt: skip
