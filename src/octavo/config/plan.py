"""The plan: every choice made, nothing "auto", nothing None that means "later". Never written to.

`config.resolve` makes it from what was asked and from the facts of model and machine; it is printed
at start, sent to the engine in the handshake, and served at /server_info.
"""

from __future__ import annotations

from typing import Any

import msgspec


class SchedulerPlan(msgspec.Struct, frozen=True, kw_only=True):
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    model_max_len: int = 0  # the model's own maximum; 0 = not known
    policy: str = "fcfs"  # "fcfs" | "priority"
    long_prefill_token_threshold: int = 0  # 0 = off
    max_step_ms: float = 0.0  # prompts beside running streams get what a step has time for; 0 = off
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


class ServerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP side. -1 = no bound."""

    host: str
    port: int
    uds: str = ""  # "" = host and port
    api_keys: tuple[str, ...] = ()
    served_names: tuple[str, ...]
    model: str = ""  # as the operator named it
    chat_template_content_format: str = "auto"
    trust_request_chat_template: bool = False
    default_chat_template_kwargs: dict[str, Any] = {}
    response_role: str = "assistant"
    root_path: str = ""
    allow_credentials: bool = False
    allowed_origins: tuple[str, ...] = ()
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    uvicorn_log_level: str = "warning"
    access_log: bool = True
    request_id_headers: bool = False
    drain_timeout_s: float = 30.0
    stream_interval: int = 1
    max_queued_requests: int = -1
    max_queued_tokens: int = -1
    log_stats: bool = True
    log_requests: bool = False
