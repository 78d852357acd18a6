"""Every op of the table, written down in torch as its formula reads. Clear before fast: this is the oracle.

Owns the arithmetic. Does not know the order of ops nor where anything lies (Frame).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as fn

from octavo.executors.torch_executor.frame import Frame
from octavo.program.program import Op

Outputs = tuple[torch.Tensor, ...]
_QUERIES_AT_ONCE = 256  # bounds the memory of attention scores
GELU_TANH = "gelu_tanh"

ACTIVATION: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": fn.silu,
    "gelu": fn.gelu,
    GELU_TANH: lambda x: fn.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": fn.relu,
    "relu2": lambda x: fn.relu(x).square(),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


def cap(x: torch.Tensor, bound: float) -> torch.Tensor:
    return bound * torch.tanh(x / bound)


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    """Over the last dimension."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (weight + offset)


def rotate(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, head_dim: int, interleaved: bool
) -> torch.Tensor:
    """x [T, heads head_dim]; cos, sin [T, rotary_dim / 2]"""
    heads = x.reshape(x.shape[0], x.shape[1] // head_dim, head_dim)
    half = cos.shape[1]
    cos, sin = cos[:, None], sin[:, None]
    turned, rest = heads[..., : 2 * half], heads[..., 2 * half :]
    if interleaved:
        u, v = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((u * cos - v * sin, v * cos + u * sin), -1).flatten(-2)
    else:
        u, v = turned[..., :half], turned[..., half:]
        turned = torch.cat((u * cos - v * sin, v * cos + u * sin), -1)
    return torch.cat((turned, rest), -1).flatten(1)


def _product(f: Frame, op: Op, x: torch.Tensor) -> torch.Tensor:
    y = x @ f.weights.get(op.weights[0], f.dtype).T
    return y + f.weights.get(op.weights[1], f.dtype) if len(op.weights) > 1 else y


def _embed(f: Frame, op: Op, a: Any) -> Outputs:
    rows = f.weights.rows(op.weights[0], f.index(f.batch.token_ids), f.dtype)
    return (rows * a["scale"],)


def _linear(f: Frame, op: Op, a: Any, x: torch.Tensor, *residual: torch.Tensor) -> Outputs:
    y = _product(f, op, x)
    if residual:
        y = y + residual[0]
    return torch.split(y, [f.program.buffers[b].width for b in op.outputs], dim=1)


def _linear_gated(f: Frame, op: Op, a: Any, x: torch.Tensor) -> Outputs:
    y = _product(f, op, x)
    return (ACTIVATION[a["fn"]](y[:, 0::2]) * y[:, 1::2],)


def _rms_norm(f: Frame, op: Op, a: Any, x: torch.Tensor) -> Outputs:
    group = a["group"] or x.shape[1]
    grouped = x.reshape(x.shape[0], x.shape[1] // group, group)
    return (rms(grouped, f.weights.get(op.weights[0], f.dtype), a["eps"], a["offset"]).flatten(1),)


def _add_rms_norm(f: Frame, op: Op, a: Any, x: torch.Tensor, residual: torch.Tensor) -> Outputs:
    total = x + residual
    return total, rms(total, f.weights.get(op.weights[0], f.dtype), a["eps"], a["offset"])


def _layer_norm(f: Frame, op: Op, a: Any, x: torch.Tensor) -> Outputs:
    bias = f.weights.get(op.weights[1], f.dtype) if len(op.weights) > 1 else None
    return (fn.layer_norm(x, x.shape[1:], f.weights.get(op.weights[0], f.dtype), bias, a["eps"]),)


def _rope(f: Frame, op: Op, a: Any, q: torch.Tensor, k: torch.Tensor) -> Outputs:
    freq = torch.tensor(a["inv_freq"], dtype=torch.float64, device=f.device)
    angle = f.index(f.batch.positions).to(torch.float64)[:, None] * freq
    cos = (angle.cos() * a["attention_factor"]).to(f.dtype)
    sin = (angle.sin() * a["attention_factor"]).to(f.dtype)
    return tuple(rotate(x, cos, sin, a["head_dim"], a["interleaved"]) for x in (q, k))


def _kv_write(f: Frame, op: Op, a: Any, k: torch.Tensor, v: torch.Tensor) -> Outputs:
    shape = (k.shape[0], f.program.kv.kv_heads, f.program.kv.head_dim)
    f.store(a["layer"], k.reshape(shape), v.reshape(shape))
    return ()


def _attend(f: Frame, op: Op, a: Any, q: torch.Tensor) -> Outputs:
    sinks = f.weights.get(op.weights[0], f.dtype) if op.weights else None
    shared = a["heads"] // a["kv_heads"]
    heads = q.reshape(q.shape[0], a["kv_heads"], shared, a["head_dim"]).permute(1, 2, 0, 3)
    out = torch.empty_like(heads)  # [kv heads, shared, T, head_dim]
    for row, (start, end) in enumerate(zip(f.batch.row_starts[:-1], f.batch.row_starts[1:], strict=True)):
        for low in range(start, end, _QUERIES_AT_ONCE):
            high = min(end, low + _QUERIES_AT_ONCE)
            first = int(f.batch.context_lens[row]) + low - int(start)
            out[:, :, low:high] = _attend_row(f, a, heads[:, :, low:high], row, first, sinks)
    return (out.permute(2, 0, 1, 3).reshape(q.shape),)


def _attend_row(
    f: Frame, a: Any, q: torch.Tensor, row: int, first: int, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Queries at positions first, first + 1, ...; q and result [kv heads, shared, queries, head_dim]."""
    end, window = first + q.shape[2], a["window"]
    oldest = max(0, first - window + 1) if window else 0
    k, v = f.load(a["layer"], row, oldest, end)
    scores = a["scale"] * (q @ k[:, None].transpose(-1, -2))  # [kv heads, shared, queries, positions]
    if a["softcap"]:
        scores = cap(scores, a["softcap"])
    at = torch.arange(first, end, device=f.device)[:, None]
    key = torch.arange(oldest, end, device=f.device)[None]
    hidden = (key > at) | ((key <= at - window) if window else False)
    scores = scores.masked_fill(hidden, -math.inf)
    if sinks is None:
        return torch.softmax(scores, -1) @ v[:, None]
    extra = sinks.view(a["kv_heads"], -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.softmax(torch.cat((scores, extra), -1), -1)[..., :-1] @ v[:, None]


def _logits(f: Frame, op: Op, a: Any, x: torch.Tensor) -> Outputs:
    y = _product(f, op, x)
    return (cap(y, a["softcap"]) if a["softcap"] else y,)


Formula = Callable[..., Outputs]  # (frame, op, attributes, *inputs) -> outputs

FORMULAS: dict[str, Formula] = {
    "embed": _embed,
    "linear": _linear,
    "linear_gated": _linear_gated,
    "add": lambda f, op, a, x, y: (x + y,),
    "mul": lambda f, op, a, x, y: (x * y,),
    "scale": lambda f, op, a, x: (x * a["factor"],),
    "rms_norm": _rms_norm,
    "add_rms_norm": _add_rms_norm,
    "layer_norm": _layer_norm,
    "rope": _rope,
    "kv_write": _kv_write,
    "attend": _attend,
    "silu_mul": lambda f, op, a, gate, up: (fn.silu(gate) * up,),
    "gelu_mul": lambda f, op, a, gate, up: (ACTIVATION[GELU_TANH](gate) * up,),
    "act": lambda f, op, a, x: (ACTIVATION[a["fn"]](x),),
    "gather_rows": lambda f, op, a, x: (x[f.gathered],),
    "logits": _logits,
    "soft_cap": lambda f, op, a, x: (cap(x, a["cap"]),),
}


def run_op(f: Frame, op: Op) -> None:
    inputs = [f.read(b) for b in op.inputs]
    for buffer, value in zip(op.outputs, FORMULAS[op.kind](f, op, op.attrs, *inputs), strict=True):
        f.write(buffer, value)
