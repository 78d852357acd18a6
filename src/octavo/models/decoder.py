"""What the families of decoders share: attention and feed-forward of one layer, KV layout, the ends.

Knows the usual module names (`self_attn.q_proj`, `mlp.gate_proj`, ...). Where norms go, and what else a
layer does, is the family's business.
"""

from __future__ import annotations

from octavo.models.config import ModelConfig
from octavo.program.builder import ProgramBuilder
from octavo.program.program import Buffer, Program
from octavo.wire.layout import KVLayout, group_layers


def start(config: ModelConfig, *, block_size: int, kv_dtype: str) -> ProgramBuilder:
    layout = KVLayout(
        groups=group_layers(list(config.windows)),
        block_size=block_size,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        dtype=kv_dtype,
    )
    return ProgramBuilder(config.model_type, layout, config.vocab_size)


def attention(
    b: ProgramBuilder,
    config: ModelConfig,
    layer: int,
    x: Buffer,
    module: str,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm_offset: float | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
) -> Buffer:
    """`module` is the checkpoint's name of the attention. `qk_norm_offset` None = no norm of q and k."""
    name, hidden, rope = f"layers.{layer}.attn", config.hidden_size, config.ropes[layer]
    q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
    q = b.linear(f"{name}.q", x, f"{module}.q_proj", (q_width, hidden), bias=qkv_bias)
    k = b.linear(f"{name}.k", x, f"{module}.k_proj", (kv_width, hidden), bias=qkv_bias)
    v = b.linear(f"{name}.v", x, f"{module}.v_proj", (kv_width, hidden), bias=qkv_bias)
    if qk_norm_offset is not None:
        eps, offset, group = config.eps, qk_norm_offset, config.head_dim
        q = b.rms_norm(f"{name}.q_norm", q, f"{module}.q_norm", eps=eps, group=group, offset=offset)
        k = b.rms_norm(f"{name}.k_norm", k, f"{module}.k_norm", eps=eps, group=group, offset=offset)
    q, k = b.rope(
        f"{name}.rope",
        q,
        k,
        head_dim=config.head_dim,
        inv_freq=rope.inv_freq,
        attention_factor=rope.attention_factor,
    )
    b.kv_write(f"{name}.kv_write", k, v, layer=layer)
    y = b.attend(
        f"{name}.attend",
        q,
        layer=layer,
        heads=config.heads,
        scale=config.head_dim**-0.5 if scale is None else scale,
        window=config.windows[layer],
        softcap=softcap,
    )
    return b.linear(f"{name}.o", y, f"{module}.o_proj", (hidden, q_width), bias=out_bias)


def feed_forward(
    b: ProgramBuilder, config: ModelConfig, layer: int, x: Buffer, module: str, *, bias: bool = False
) -> Buffer:
    """down(fn(gate(x)) * up(x)), Shazeer 2020 (arXiv:2002.05202)."""
    name, inner, outer = f"layers.{layer}.mlp", config.intermediate_size, config.hidden_size
    gate = b.linear(f"{name}.gate", x, f"{module}.gate_proj", (inner, outer), bias=bias)
    up = b.linear(f"{name}.up", x, f"{module}.up_proj", (inner, outer), bias=bias)
    if config.activation == "silu":
        y = b.silu_mul(f"{name}.act", gate, up)
    elif config.activation == "gelu_tanh":
        y = b.gelu_mul(f"{name}.act", gate, up)
    else:
        y = b.mul(f"{name}.mul", b.act(f"{name}.act", gate, config.activation), up)
    return b.linear(f"{name}.down", y, f"{module}.down_proj", (outer, inner), bias=bias)


def finish(
    b: ProgramBuilder,
    config: ModelConfig,
    x: Buffer,
    *,
    offset: float = 0.0,
    softcap: float = 0.0,
) -> Program:
    """Final norm and vocabulary product, for the rows that are sampled or scored."""
    rows = b.gather_rows("gather", x)
    rows = b.rms_norm("norm", rows, "model.norm", eps=config.eps, offset=offset)
    module = "model.embed_tokens" if config.tie_embeddings else "lm_head"
    b.output("logits", b.logits("logits", rows, module, softcap=softcap))
    return b.build()


def pre_norm_decoder(
    config: ModelConfig,
    *,
    block_size: int,
    kv_dtype: str,
    qkv_bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
) -> Program:
    """x += attention(norm(x)); x += feed_forward(norm(x)): Llama and everything built like it."""
    b = start(config, block_size=block_size, kv_dtype=kv_dtype)
    x = b.embed("embed", "model.embed_tokens", config.hidden_size)
    for layer in range(config.num_layers):
        name, module = f"layers.{layer}", f"model.layers.{layer}"
        y = b.rms_norm(f"{name}.attn.norm", x, f"{module}.input_layernorm", eps=config.eps)
        y = attention(
            b,
            config,
            layer,
            y,
            f"{module}.self_attn",
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            qk_norm_offset=0.0 if qk_norm else None,
        )
        x = b.add(f"{name}.attn.add", x, y)
        y = b.rms_norm(f"{name}.mlp.norm", x, f"{module}.post_attention_layernorm", eps=config.eps)
        y = feed_forward(b, config, layer, y, f"{module}.mlp", bias=mlp_bias)
        x = b.add(f"{name}.mlp.add", x, y)
    return finish(b, config, x)
