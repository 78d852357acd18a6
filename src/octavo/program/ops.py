"""The op table: what every op of a Program takes, gives and means.

Owns names, arity, weight roles, attributes, shape rules and formulas; the table in docs is generated
from it. Does not know how an op is computed (executors) nor which model uses it.

Conventions that hold for every op:

- A buffer is `[rows, width]` of f32; "tokens" rows are the tokens of the step, "samples" rows are
  `sample_tokens` followed by `score_tokens`.
- An op with several outputs that are views of one parent writes the parent's columns in order.
- `in_place` pairs (output, input) may name the same buffer. No other output may overlap an input.
- Every attribute is present in `Op.attrs`; nothing is left to an executor's default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from octavo.program.program import Attr

Role = Literal["matrix", "embedding", "vector"]
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "tanh", "sigmoid")
GATES = ("silu", "gelu_tanh")


class ShapeError(ValueError):
    """Two shapes of an op do not fit; the builder adds the op's name."""


@dataclass(frozen=True, slots=True)
class AttrSpec:
    type: Literal["int", "float", "bool", "str", "floats"]
    doc: str
    default: Attr = None  # None = required
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightSpec:
    name: str
    role: Role
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Shapes:
    """What a rule sees: widths of the inputs, shapes of the weights, attributes."""

    inputs: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...]
    attrs: Mapping[str, Attr]

    def int(self, name: str) -> int:
        value = self.attrs[name]
        assert isinstance(value, int)
        return value


# A rule returns the widths of the outputs, or the one total width when outputs are views of a parent.
Rule = Callable[[Shapes], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class OpSpec:
    """`inputs` and `outputs` name the operands; a trailing "?" marks an optional input, "*" one or more."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    doc: str
    shapes: str
    rule: Rule
    weights: tuple[WeightSpec, ...] = ()
    attrs: Mapping[str, AttrSpec] = field(default_factory=dict)
    reads: tuple[str, ...] = ()  # fields of the step that it reads beside its operands
    in_place: tuple[tuple[int, int], ...] = ()
    fused: bool = False  # made by passes.fuse only, never by a model file
    rowwise: bool = True  # an output row depends on the same row of the inputs only
    effect: bool = False  # writes something that is no buffer (the KV cache)

    def arity(self) -> tuple[int, int]:
        """(fewest, most) inputs."""
        return sum(not name.endswith("?") for name in self.inputs), len(self.inputs)


# ---- shape rules --------------------------------------------------------------------------------


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise ShapeError(message)


def _rank(shape: tuple[int, ...], rank: int, name: str) -> None:
    _need(len(shape) == rank, f"{name} is {list(shape)}, allowed is a shape of {rank} dimension(s)")


def _embed(s: Shapes) -> tuple[int, ...]:
    _rank(s.weights[0], 2, "table")
    return (s.weights[0][1],)


def _product(s: Shapes) -> int:
    matrix = s.weights[0]
    _rank(matrix, 2, "matrix")
    _need(matrix[1] == s.inputs[0], f"matrix is {list(matrix)} but the input is [rows, {s.inputs[0]}]")
    if len(s.weights) > 1:
        bias = s.weights[1]
        _need(bias == (matrix[0],), f"bias is {list(bias)} but the matrix is {list(matrix)}")
    return matrix[0]


def _linear(s: Shapes) -> tuple[int, ...]:
    width = _product(s)
    _need(
        bool(s.attrs["residual"]) == (len(s.inputs) == 2),
        f"residual={s.attrs['residual']} but {len(s.inputs)} input(s) are given",
    )
    if len(s.inputs) == 2:
        _need(s.inputs[1] == width, f"residual is [rows, {s.inputs[1]}] but the product is [rows, {width}]")
    return (width,)


def _linear_gated(s: Shapes) -> tuple[int, ...]:
    width = _product(s)
    _need(width % 2 == 0, f"matrix is {list(s.weights[0])}: its rows must be pairs (gate, up)")
    return (width // 2,)


def _same(s: Shapes) -> tuple[int, ...]:
    _need(
        len(set(s.inputs)) == 1,
        " but ".join(f"input {i} is [rows, {width}]" for i, width in enumerate(s.inputs)),
    )
    return (s.inputs[0],)


def _norm(s: Shapes) -> tuple[int, ...]:
    width, vector = s.inputs[0], s.weights[0]
    for extra in s.weights[1:]:
        _need(extra == vector, f"bias is {list(extra)} but the weight is {list(vector)}")
    group = s.int("group") if "group" in s.attrs else 0
    _need(group == 0 or width % group == 0, f"group is {group} but the input is [rows, {width}]")
    _need(vector == (group or width,), f"weight is {list(vector)} but it norms {group or width} columns")
    return (width,)


def _add_norm(s: Shapes) -> tuple[int, ...]:
    return _same(s) + _norm(Shapes(s.inputs[:1], s.weights, s.attrs))


def _rope(s: Shapes) -> tuple[int, ...]:
    head_dim, rotary = s.int("head_dim"), s.int("rotary_dim")
    freqs = s.attrs["inv_freq"]
    assert isinstance(freqs, tuple)
    for width in s.inputs:
        _need(width % head_dim == 0, f"head_dim is {head_dim} but an input is [rows, {width}]")
    _need(rotary % 2 == 0 and rotary <= head_dim, f"rotary_dim is {rotary} but head_dim is {head_dim}")
    _need(len(freqs) == rotary // 2, f"inv_freq has {len(freqs)} entries but rotary_dim is {rotary}")
    return s.inputs


def _kv_write(s: Shapes) -> tuple[int, ...]:
    _same(s)
    return ()


def _attend(s: Shapes) -> tuple[int, ...]:
    heads, kv_heads, head_dim = s.int("heads"), s.int("kv_heads"), s.int("head_dim")
    _need(
        s.inputs[0] == heads * head_dim,
        f"q is [rows, {s.inputs[0]}] but {heads} heads of {head_dim} are [rows, {heads * head_dim}]",
    )
    _need(heads % kv_heads == 0, f"heads is {heads} but kv_heads is {kv_heads}")
    if s.weights:
        _need(s.weights[0] == (heads,), f"sinks is {list(s.weights[0])} but there are {heads} heads")
    return (s.inputs[0],)


# ---- the table ----------------------------------------------------------------------------------

_MATRIX = WeightSpec("matrix", "matrix")
_BIAS = WeightSpec("bias", "vector", optional=True)
_NORM = WeightSpec("weight", "vector")
_EPS = AttrSpec("float", "added to the mean square")
_OFFSET = AttrSpec("float", "added to the weight (1.0 for checkpoints that store w - 1)", 0.0)
_LAYER = AttrSpec("int", "attention layer: KVLayout.place gives its group and its index in a block")

_TABLE = (
    OpSpec(
        "embed",
        (),
        ("x",),
        "x[t] = scale * table[token_ids[t]]",
        "[vocab, d] -> [tokens, d]",
        _embed,
        weights=(WeightSpec("table", "embedding"),),
        attrs={"scale": AttrSpec("float", "factor on every element", 1.0)},
        reads=("token_ids",),
    ),
    OpSpec(
        "linear",
        ("x", "residual?"),
        ("y*",),
        "y = x matrix^T [+ bias] [+ residual]; several outputs are views that split the product's columns",
        "[n, k], [m, k] -> [n, m]",
        _linear,
        weights=(_MATRIX, _BIAS),
        attrs={"residual": AttrSpec("bool", "input 1 is added to the product", False)},
        in_place=((0, 1),),
    ),
    OpSpec(
        "linear_gated",
        ("x",),
        ("y",),
        "y = fn(x gate^T [+ bias]) * (x up^T [+ bias]); rows 2i and 2i + 1 of the interleaved weight are "
        "row i of gate and of up (Shazeer 2020, arXiv:2002.05202)",
        "[n, k], [2m, k] -> [n, m]",
        _linear_gated,
        weights=(_MATRIX, _BIAS),
        attrs={"fn": AttrSpec("str", "activation of the gate", choices=GATES)},
        fused=True,
    ),
    OpSpec("add", ("a", "b"), ("y",), "y = a + b", "[n, d] x 2 -> [n, d]", _same, in_place=((0, 0), (0, 1))),
    OpSpec("mul", ("a", "b"), ("y",), "y = a * b", "[n, d] x 2 -> [n, d]", _same, in_place=((0, 0), (0, 1))),
    OpSpec(
        "scale",
        ("x",),
        ("y",),
        "y = factor * x",
        "[n, d] -> [n, d]",
        _same,
        attrs={"factor": AttrSpec("float", "factor on every element")},
        in_place=((0, 0),),
    ),
    OpSpec(
        "rms_norm",
        ("x",),
        ("y",),
        "y = x / sqrt(mean(x^2) + eps) * (weight + offset), the mean over the row, or over each group of "
        "`group` columns with one weight for all groups (Zhang and Sennrich 2019, arXiv:1910.07467)",
        "[n, d], [group or d] -> [n, d]",
        _norm,
        weights=(_NORM,),
        attrs={
            "eps": _EPS,
            "group": AttrSpec("int", "columns normed together, e.g. a head; 0 = the whole row", 0),
            "offset": _OFFSET,
        },
        in_place=((0, 0),),
    ),
    OpSpec(
        "add_rms_norm",
        ("x", "residual"),
        ("sum", "y"),
        "sum = x + residual; y = rms_norm(sum)",
        "[n, d] x 2, [d] -> [n, d] x 2",
        _add_norm,
        weights=(_NORM,),
        attrs={"eps": _EPS, "offset": _OFFSET},
        in_place=((0, 1),),
        fused=True,
    ),
    OpSpec(
        "layer_norm",
        ("x",),
        ("y",),
        "y = (x - mean(x)) / sqrt(var(x) + eps) * weight [+ bias] (Ba et al. 2016, arXiv:1607.06450)",
        "[n, d], [d] -> [n, d]",
        _norm,
        weights=(_NORM, _BIAS),
        attrs={"eps": AttrSpec("float", "added to the variance")},
        in_place=((0, 0),),
    ),
    OpSpec(
        "rope",
        ("q", "k"),
        ("q_rotated", "k_rotated"),
        "with a = positions[t] * inv_freq[i], c = attention_factor * cos(a), s = attention_factor * sin(a), "
        "each head's pair (u, v) becomes (u c - v s, v c + u s); the pair is columns (i, i + rotary_dim / 2) "
        "of the head, or (2i, 2i + 1) when interleaved; columns from rotary_dim on are copied "
        "(Su et al. 2021, arXiv:2104.09864)",
        "[n, heads head_dim], [n, kv_heads head_dim] -> the same",
        _rope,
        attrs={
            "head_dim": AttrSpec("int", "columns of a head"),
            "rotary_dim": AttrSpec("int", "leading columns of a head that are rotated"),
            "interleaved": AttrSpec("bool", "pairs are neighbours", False),
            "inv_freq": AttrSpec("floats", "rotary_dim / 2 radians per position, scaling applied"),
            "attention_factor": AttrSpec("float", "on cosine and sine (YaRN)", 1.0),
        },
        reads=("positions",),
        in_place=((0, 0), (1, 1)),
    ),
    OpSpec(
        "kv_write",
        ("k", "v"),
        (),
        "stores k and v of token t of row r at position context_lens[r] + (t - row_starts[r]) of the row's "
        "blocks, rounded to the KV dtype",
        "[n, kv_heads head_dim] x 2",
        _kv_write,
        attrs={"layer": _LAYER},
        reads=("row_starts", "context_lens", "block_tables"),
        effect=True,
    ),
    OpSpec(
        "attend",
        ("q",),
        ("y",),
        "y = softmax(cap(scale q K^T) [, sink]) V over positions p - window < j <= p of the row (window 0: "
        "all j <= p), K and V read from the cache; cap(a) = softcap tanh(a / softcap); query head h reads KV "
        "head h kv_heads // heads; a sink is one more logit per head, without value",
        "[n, heads head_dim] -> the same",
        _attend,
        weights=(WeightSpec("sinks", "vector", optional=True),),
        attrs={
            "layer": _LAYER,
            "heads": AttrSpec("int", "query heads"),
            "kv_heads": AttrSpec("int", "key and value heads"),
            "head_dim": AttrSpec("int", "columns of a head"),
            "scale": AttrSpec("float", "on the scores"),
            "window": AttrSpec("int", "positions that a query sees, itself included; 0 = all", 0),
            "softcap": AttrSpec("float", "bound of the scores; 0 = off", 0.0),
        },
        reads=("row_starts", "context_lens", "block_tables"),
        rowwise=False,
    ),
    OpSpec(
        "silu_mul",
        ("gate", "up"),
        ("y",),
        "y = gate / (1 + exp(-gate)) * up",
        "[n, d] x 2 -> [n, d]",
        _same,
        in_place=((0, 0), (0, 1)),
    ),
    OpSpec(
        "gelu_mul",
        ("gate", "up"),
        ("y",),
        "y = gelu_tanh(gate) * up, gelu_tanh(a) = a / 2 (1 + tanh(sqrt(2 / pi) (a + 0.044715 a^3))) "
        "(Hendrycks and Gimpel 2016, arXiv:1606.08415)",
        "[n, d] x 2 -> [n, d]",
        _same,
        in_place=((0, 0), (0, 1)),
    ),
    OpSpec(
        "act",
        ("x",),
        ("y",),
        "y = fn(x); relu2(a) = max(a, 0)^2, quick_gelu(a) = a sigmoid(1.702 a), gelu is the exact one (erf)",
        "[n, d] -> [n, d]",
        _same,
        attrs={"fn": AttrSpec("str", "which function", choices=ACTIVATIONS)},
        in_place=((0, 0),),
    ),
    OpSpec(
        "gather_rows",
        ("x",),
        ("y",),
        "y = rows sample_tokens, then score_tokens, of x",
        "[tokens, d] -> [samples, d]",
        _same,
        reads=("sample_tokens", "score_tokens"),
        rowwise=False,
    ),
    OpSpec(
        "logits",
        ("x",),
        ("y",),
        "y = cap(x matrix^T), cap(a) = softcap tanh(a / softcap)",
        "[n, d], [vocab, d] -> [n, vocab]",
        lambda s: (_product(s),),
        weights=(_MATRIX,),
        attrs={"softcap": AttrSpec("float", "bound of the logits; 0 = off", 0.0)},
    ),
    OpSpec(
        "soft_cap",
        ("x",),
        ("y",),
        "y = cap tanh(x / cap)",
        "[n, d] -> [n, d]",
        _same,
        attrs={"cap": AttrSpec("float", "bound of the result")},
        in_place=((0, 0),),
    ),
)

OPS: dict[str, OpSpec] = {spec.name: spec for spec in _TABLE}


def table_markdown() -> str:
    """The op table of the docs."""
    lines = ["| op | operands | weights | attributes | meaning |", "|---|---|---|---|---|"]
    for spec in _TABLE:
        operands = f"{', '.join(spec.inputs) or 'the step'} -> {', '.join(spec.outputs) or 'the KV cache'}"
        weights = ", ".join(w.name + ("?" if w.optional else "") for w in spec.weights)
        attrs = ", ".join(f"{key}: {_typed(attr)}" for key, attr in spec.attrs.items())
        meaning = f"{spec.doc}. {spec.shapes}." + (" Made by fusing." if spec.fused else "")
        lines.append(f"| `{spec.name}` | {operands} | {weights} | {attrs} | {meaning} |")
    return "\n".join(lines) + "\n"


def _typed(attr: AttrSpec) -> str:
    return attr.type if attr.default is None else f"{attr.type} = {attr.default}"
