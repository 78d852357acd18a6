"""Requests made to hurt, for every route that a server describes at /openapi.json.

Fields come from the served document, so that a new one is attacked as soon as it is there. What is hostile is the
value of a field, the JSON around it, or the bytes and headers of the whole request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

USER = [{"role": "user", "content": "Hi"}]
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
#: What makes a body of the route a good one.
GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/chat/completions/batch": {"messages": [USER, USER]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/messages": {"model": "m", "max_tokens": 4, "messages": USER},
    "/v1/messages/count_tokens": {"model": "m", "messages": USER},
    "/cohere/v2/chat": {"model": "m", "messages": USER},
    "/inference/v1/generate": {"token_ids": [20], "sampling_params": {}},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [20]},
}


@dataclass(frozen=True)
class Shot:
    method: str
    path: str
    content: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.headers} {self.content[:2_000]!r}"


# ---- values ---------------------------------------------------------------------------------------


def deep(depth: int, kind: str) -> Any:
    value: Any = {} if kind == "object" else []
    for _ in range(depth):
        value = {"a": value} if kind == "object" else [value]
    return value


_ODD_NUMBERS = [
    0,
    -1,
    1,
    2,
    2**31,
    2**32,
    -(2**31) - 1,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    2**64,
    10**30,
    0.0,
    -0.0,
    0.5,
    1.5,
    -1.5,
    1e-300,
    5e-324,
    1e300,
    1.7976931348623157e308,
    float("nan"),
    float("inf"),
    float("-inf"),
]
_ODD_TEXTS = [
    "",
    " ",
    "\0",
    "\ud800",
    "\udfff x",
    "😀" * 3,
    "\u202e",
    "{{ 7*7 }}",
    "<|im_end|>",
    "<|im_start|>system",
    "a" * 70_000,
    "\n" * 999,
    "null",
    "auto",
    "required",
    "none",
    "json_object",
    "../../etc/passwd",
    "%s%n%x",
    "-1",
    "1e999",
    "\u2063octavo-mark\u2063",
    "<tool_call>",
    "</think>",
]
_NUMBERS = st.sampled_from(_ODD_NUMBERS) | st.integers(-9, 200_000) | st.floats(-3, 3)
_TEXTS = st.sampled_from(_ODD_TEXTS) | st.text(st.characters(codec="utf-8"), max_size=12)
_LEAVES = st.none() | st.booleans() | _NUMBERS | _TEXTS
_NAMES = _TEXTS | st.sampled_from(
    "type role content text name id function parameters arguments schema json regex choice grammar tools input output "
    "call_id enabled budget_tokens include_usage format source data url 0 -1 30 __proto__".split()
)
_ANY = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)
_BULKY = st.builds(
    deep, st.sampled_from([10, 70, 400, 990, 3_000]), st.sampled_from(["object", "list"])
) | st.sampled_from(
    [
        [0] * 20_000,
        ["a"] * 20_000,
        [None] * 3_000,
        [[]] * 3_000,
        {str(i): i for i in range(5_000)},
        [{}] * 3_000,
        [USER[0]] * 600,
    ]
)

# ---- grammars, tools and messages: what a fuzzer would not find -------------------------------------

_BRANCHES = {"anyOf": [{"properties": {f"k{i}": {"type": "string"}}} for i in range(200)]}
SCHEMAS: list[Any] = [
    True,
    False,
    {},
    [],
    "",
    "{",
    7,
    {"type": "nothing"},
    {"type": []},
    {"enum": []},
    {"const": {"a": [None, 1e300]}},
    {"enum": list(range(20_000))},
    {"enum": ["x" * 9_000] * 3},
    {"$ref": "#"},
    {"$ref": "#/$defs/none"},
    {"$ref": "http://127.0.0.1/x"},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}, "$ref": "#/$defs/a"},
    {"type": "string", "minLength": 10**9},
    {"type": "string", "minLength": 5, "maxLength": 2},
    {"type": "string", "pattern": "(a*)*b"},
    {"type": "string", "pattern": "^(a|a)*$"},
    {"type": "string", "pattern": "(.*a){20}"},
    {"type": "string", "pattern": "(?=x)"},
    {"type": "string", "pattern": "[" * 500},
    {"type": "string", "format": "none"},
    {"type": "integer", "minimum": 9, "maximum": 3},
    {"type": "integer", "minimum": 1e300},
    {"type": "number", "multipleOf": 1e-300},
    {"type": "integer", "multipleOf": 0},
    {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
    {"type": "array", "minItems": 10**6},
    {"type": "array", "maxItems": -1},
    {"type": "array", "prefixItems": [{"type": "null"}] * 500},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"not": {}},
    {"oneOf": [{}, {}]},
    {"allOf": [_BRANCHES, _BRANCHES, _BRANCHES]},
    {"patternProperties": {"(": {}}},
    {"minProperties": 10**6},
    {"properties": {f"p{i}": {"type": "string"} for i in range(3_000)}},
    {"required": ["a"], "additionalProperties": False},
    {"properties": {"\0": {}, "": {}, "\ud800": {}}},
    deep(63, "object"),
    {"items": deep(200, "object")},
]
PATTERNS: list[Any] = [
    "",
    "(",
    ")",
    "[",
    "a{1000000}",
    "((a{1,99}){1,99}){1,99}",
    "(.*a){25}",
    "(a*)*",
    "(?P<x>a)(?P=x)",
    "\\",
    "^$",
    "\0",
    "$a",
    "(?i)é{3}",
    "\\p{L}{40}",
    "[^\\x00-\\x{10FFFF}]",
    "(" * 2_000 + ")" * 2_000,
    "a|" * 5_000,
    "\\b",
    "\ud800",
]
GRAMMARS: list[Any] = [
    "",
    "start: start",
    'start: "a" start',
    "start:",
    "root ::=",
    'root ::= root "a"',
    'root ::= "a" root | root',
    'start: "\\ud800"',
    "start: /(/",
    "start: %json {}",
    'start: %json {"type": "x"}',
    "start: <|none|>",
    "root ::= [^\\x00-\\xff]",
    "start: x\nx: y\ny: x | ",
    "%import x\nstart: x",
    'root ::= ("a" | "b")*',
    "start: " + '("x" | ' * 300 + '"y"' + ")" * 300,
    'root ::= "' + "a" * 30_000 + '"',
]
STRUCTURED: list[Any] = [
    *({"json": s} for s in SCHEMAS),
    *({"json": json.dumps(s)} for s in SCHEMAS[:12]),
    *({"regex": p} for p in PATTERNS),
    *({"grammar": g} for g in GRAMMARS),
    *(
        {"choice": c}
        for c in (
            [],
            [""],
            ["a"],
            ["a", ""],
            ["a" * 50_000],
            [str(i) for i in range(4_096)],
            [1],
            ["\ud800"],
            ["\0"],
            ["<|im_end|>"],
        )
    ),
    *(
        {"structural_tag": t}
        for t in (
            {},
            "{",
            {"structures": [], "triggers": []},
            {"format": {"type": "x"}},
            {"format": {"type": "any_text"}},
            {"structures": [{"begin": "", "schema": {}, "end": ""}], "triggers": [""]},
            {"format": {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": ""}},
            {"format": {"type": "sequence", "elements": [{"type": "any_text"}] * 9}},
        )
    ),
    {"json_object": True},
    {"json_object": False},
    {"json": {}, "regex": "a"},
    {"regex": "[a-z]+", "backend": "outlines"},
    {"regex": "[a-z]+", "backend": "lm-format-enforcer"},
    {"json": {}, "whitespace_pattern": "(a*)*"},
    {"json": {}, "whitespace_pattern": "{"},
    {"json": {"type": "array"}, "disable_any_whitespace": False},
]
_FORMATS: list[Any] = [
    {"type": "json_schema", "json_schema": {"name": "x", "schema": s}} for s in SCHEMAS
] + [
    {"type": "json_object"},
    {"type": "text"},
    {"type": "structural_tag"},
    {"type": "json_schema"},
    {"type": "json_object", "json_schema": {"type": "string"}},
]
_TOOLS: list[Any] = [
    [],
    [{}],
    [{"type": "function"}],
    [{"type": "function", "function": {"name": ""}}],
    [{"type": "function", "function": TOOL}],
    [{"type": "function", "function": TOOL}] * 2,
    [{"type": "function", **TOOL}],
    [{"name": "f", "input_schema": {"type": "object"}}],
    *([{"type": "function", "function": {"name": "f", "parameters": s, "strict": True}}] for s in SCHEMAS),
    *([{"type": "function", "name": "f", "parameters": s, "strict": True}] for s in SCHEMAS[::2]),
    *([{"name": "f", "input_schema": s, "strict": True}] for s in SCHEMAS[::2]),
    [
        {"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object"}}}
        for i in range(1_024)
    ],
]
_CHOICES: list[Any] = [
    "auto",
    "none",
    "required",
    "any",
    "REQUIRED",
    {"type": "function", "function": {"name": "f"}},
    {"type": "function", "name": "f"},
    {"type": "tool", "name": "f"},
    {"type": "any"},
    {"type": "none"},
    {"type": "tool"},
    {"type": "function", "function": {"name": "g"}},
]
_CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}
_MESSAGES: list[Any] = [
    [],
    [{}],
    USER * 500,
    [{"role": "tool", "content": "x"}],
    [
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "b", "content": "x"},
    ],
    [{"role": "assistant", "content": ""}],
    [{"role": "system", "content": "x"}],
    [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
    [{"role": "user", "content": "x" * 300_000}],
    [{"role": "user", "content": "<|im_end|>\0"}],
    [{"role": "assistant", "content": "x", "reasoning": "<think>"}, *USER],
    [USER, USER],
    [[]],
    [[{}]],
    [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}],
]
_INPUTS: list[Any] = [
    *_MESSAGES,
    "",
    [""],
    ["a"] * 30,
    [[1]],
    [[-1]],
    [[2**40]],
    [10**6],
    [[]],
    "a" * 300_000,
    [0] * 3_000,
    [1, "a"],
    [{"type": "function_call_output", "call_id": "x", "output": "y"}],
    [{"type": "reasoning", "summary": []}],
    [{"type": "item_reference", "id": "x"}],
    [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}],
]
_IDS: list[Any] = [[], [0], [2], [10**9], [-1], [198], list(range(5_000)), ["a"], [0, 0], [2**70]]
_BIASES: list[Any] = [
    {},
    {"2": 100},
    {"2": -100},
    {"-1": 1},
    {"99999999": 1},
    {"a": 1},
    {"2": float("nan")},
    {"0": 1e9},
    {str(i): -100 for i in range(5_000)},
]
#: Values that are worth more than what is drawn, by field.
KNOWN: dict[str, list[Any]] = {
    "structured_outputs": STRUCTURED,
    "response_format": _FORMATS,
    "tools": _TOOLS,
    "tool_choice": _CHOICES,
    "messages": _MESSAGES,
    "input": _INPUTS,
    "prompt": _INPUTS,
    "token_ids": _IDS,
    "tokens": _IDS,
    "stop_token_ids": _IDS,
    "allowed_token_ids": _IDS,
    "logprob_token_ids": _IDS,
    "logit_bias": _BIASES,
    "text": [{"format": {"type": "json_schema", "name": "x", "schema": s}} for s in SCHEMAS],
    "output_config": [{"format": {"type": "json_schema", "schema": s}} for s in SCHEMAS],
    "n": [1, 2, 5, 16_385, 0],
    "max_tokens": [0, 1, 3, 10**9],
    "max_completion_tokens": [0, 1],
    "max_output_tokens": [0, 1, 16],
    "min_tokens": [1, 9, 10**9],
    "ignore_eos": [True],
    "use_beam_search": [True],
    "echo": [True],
    "stream": [True],
    "prompt_logprobs": [0, 1, -1, 20],
    "logprobs": [True, 0, 1, 20, -1],
    "top_logprobs": [0, 1, 20],
    "temperature": [0, 1, 2, 1e-6],
    "stop": [["a"], "e", ["", "a"], ["\ud800"], ["a" * 70_000], ["x"] * 5],
    "bad_words": [["a"], [""], [" "], ["a" * 9_000], ["\ud800"]],
    "truncate_prompt_tokens": [1, -1, 0, 10**9],
    "thinking_token_budget": [0, 1, 10**9],
    "cache_salt": ["s"],
    "sampling_params": [
        {"n": 3, "max_tokens": 2},
        *({"structured_outputs": s, "temperature": 1} for s in STRUCTURED),
        {"stop": ["a"]},
        {"use_beam_search": True},
    ],
    "thinking": [
        {"type": "enabled", "budget_tokens": 1024},
        {"type": "disabled"},
        {"type": "adaptive"},
        {"type": "enabled", "budget_tokens": -1},
    ],
    "background": [True],
    "previous_response_id": ["resp_x", "", "\0"],
    "continue_final_message": [True],
    "add_generation_prompt": [False],
    "parallel_tool_calls": [False],
    "repetition_detection": [
        {"max_pattern_size": 10**9, "min_count": 2},
        {"max_pattern_size": 3, "min_pattern_size": 9, "min_count": 0},
    ],
    "stream_options": [{"include_usage": True}, {"continuous_usage_stats": True}],
    "model": ["m", "x", "", "\0"],
}


# ---- requests -------------------------------------------------------------------------------------


def _encoded(value: Any) -> bytes:
    """As JSON that also holds what is none: NaN, lone surrogates."""
    try:
        return json.dumps(value).encode()
    except RecursionError:
        return b"[" * 5_000


def _broken(data: bytes, how: int, at: float) -> bytes:
    place = int(at * len(data))
    return [
        data[:place],
        data + data,
        data[:place] + b"\xff\xfe" + data[place:],
        b"\xef\xbb\xbf" + data,
        data[:-1] + b',"stream":true,"stream":false}',
        data.decode().encode("utf-16"),
        b"[" * 100_000,
        data[:place] + b"\0" + data[place:],
        b'"' + data,
        b"",
    ][how]


_HEADERS = [
    {"Content-Type": "text/plain"},
    {"Content-Type": "application/json; charset=utf-16"},
    {"Content-Type": ""},
    {"Content-Encoding": "gzip"},
    {"Accept": "text/event-stream"},
    {"X-Request-Id": "a" * 9_000},
    {"X-Request-Id": "\x80\xff"},
    {"Authorization": "Bearer " + "x" * 9_000},
    {"anthropic-version": "x"},
    {"Expect": "100-continue"},
    {"Host": "evil"},
    {"X-Data-Parallel-Rank": "9"},
    {"Origin": "null"},
]
_PARTS = [
    "x",
    "..",
    "%2e%2e%2f",
    "%00",
    "a" * 5_000,
    "%ff",
    "resp_" + "0" * 32,
    "m",
    "a/b",
    "%F0%9F%98%80",
    "?stream=true&starting_after=-1",
    "x?limit=-1&after=y&order=z",
]


def _fields(document: dict[str, Any], operation: dict[str, Any]) -> list[str]:
    content = operation["requestBody"]["content"]["application/json"]["schema"]
    schemas = [content, *content.get("anyOf", [])]
    names: list[str] = []
    for schema in schemas:
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
        names += schema.get("properties", {})
    return sorted(set(names))


def _body(path: str, names: list[str]) -> st.SearchStrategy[bytes]:
    def value(name: str) -> st.SearchStrategy[Any]:
        known = st.sampled_from(KNOWN.get(name, [None]))
        return st.one_of(known, known, _ANY, _BULKY) if name in KNOWN else st.one_of(_ANY, _ANY, _BULKY)

    good = GOOD[path]
    drawn = st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({name: value(name) for name in chosen})
    )
    # Half of the bodies take only values that a handler may well accept, so that they reach the engine together.
    likely = [name for name in names if name in KNOWN and name not in good] or names
    together = st.lists(
        st.sampled_from(likely), min_size=min(2, len(likely)), max_size=5, unique=True
    ).flatmap(
        lambda chosen: st.fixed_dictionaries(
            {name: st.sampled_from(KNOWN.get(name, [None])) for name in chosen}
        )
    )
    return st.one_of(drawn, together).map(lambda odd: _encoded({**good, **odd})) | _ANY.map(_encoded)


def shots(document: dict[str, Any]) -> st.SearchStrategy[Shot]:
    """A hostile request to any route of the document."""
    json_type = {"Content-Type": "application/json"}
    kinds: list[st.SearchStrategy[Shot]] = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            verb = method.upper()
            spelled = path.replace("{response_id}", "{}").replace("{name}", "{}")
            if "requestBody" in operation:
                body = _body(path, _fields(document, operation))
                sent = st.builds(lambda c, p=path: Shot("POST", p, c, json_type), body)
                broken = st.builds(
                    lambda c, how, at, head, p=path: Shot(
                        "POST", p, _broken(c, how, at), {**json_type, **head}
                    ),
                    body,
                    st.integers(0, 9),
                    st.floats(0, 1),
                    st.sampled_from([{}, *_HEADERS]),
                )
                kinds += [sent] * 6 + [broken]
            else:
                kinds.append(
                    st.builds(
                        lambda part, head, m=verb, p=spelled: Shot(m, p.replace("{}", part), b"", head),
                        st.sampled_from(_PARTS),
                        st.sampled_from([{}, *_HEADERS]),
                    )
                )
    stray = st.builds(
        Shot,
        st.sampled_from(["GET", "PUT", "PATCH", "OPTIONS", "TRACE", "DELETE", "FOO"]),
        st.sampled_from([*document["paths"], "/none", "//", "/v1/"]),
    )
    return st.one_of(*kinds, stray)
