"""The plan: every choice made, nothing "auto", nothing None that means "later". Never written to.

`config.resolve` makes it from what was asked and from the facts of model and machine; it is printed
at start, sent to the engine in the handshake, and served at /server_info.
"""

from __future__ import annotations

import msgspec


class SchedulerPlan(msgspec.Struct, frozen=True, kw_only=True):
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    policy: str = "fcfs"  # "fcfs" | "priority"
    long_prefill_token_threshold: int = 0  # 0 = off
    reserve_full_prompt: bool = True  # admit a request only if its whole prompt fits
    watermark_frac: float = 0.0  # share of blocks that admission leaves free while something runs
    pipeline_depth: int = 2  # steps in flight: 2 = async scheduling, 1 = off
    enable_chunked_prefill: bool = True


class CachePlan(msgspec.Struct, frozen=True, kw_only=True):
    block_size: int
    num_blocks: int  # usable blocks
    dtype: str  # "bf16" | "f32"
    enable_prefix_caching: bool = True
    hash_algo: str = "sha256"  # sha256 | sha256_cbor | xxhash | xxhash_cbor


class ExecutorPlan(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # "native" | "torch"
    isa: str
    num_threads: int
    weights: str  # "f32" | "f16" | "bf16" | "w8" | "w4" | "file"
    optimization_level: int = 2


class EnginePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an engine process needs to start."""

    model: str  # local path of a directory or a file
    executor: ExecutorPlan
    cache: CachePlan
    scheduler: SchedulerPlan
    seed: int
    max_logprobs: int = 20  # -1 = no bound
    processed_logprobs: bool = False
    vocab_size: int
    strict: bool = False
    table: list[list[str]] = []  # [topic, choice, reason]: what runs and why (law 3)
