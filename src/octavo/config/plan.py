"""The plan: every choice made, nothing "auto", nothing None that means "later". Never written to.

`config.resolve` makes it from what was asked and from the facts of model and machine; it is printed
at start, sent to the engine in the handshake, and served at /server_info.
"""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.config.kv_events import KVEventsPlan
from octavo.config.structured import StructuredPlan


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
    events: KVEventsPlan = msgspec.field(default_factory=KVEventsPlan)


class PackCachePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where packed weights are kept between starts. Answers do not depend on it."""

    folder: str = ""  # "" = off
    max_bytes: int = 0  # of all files together
    reason: str = "not asked for"


class ExecutorPlan(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # "native" | "torch"
    isa: str
    num_threads: int
    weights: str  # "f32" | "f16" | "bf16" | "w8" | "w4" | "file"
    optimization_level: int = 2
    pack_cache: PackCachePlan = PackCachePlan()


class EnginePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an engine process needs to start."""

    model: str  # local path of a directory or a file
    executor: ExecutorPlan
    cache: CachePlan
    scheduler: SchedulerPlan
    seed: int
    max_logprobs: int = 20  # -1 = no bound
    logprobs_mode: str = "raw_logprobs"  # raw_logprobs | processed_logprobs | raw_logits | processed_logits
    vocab_size: int
    tokenizer: str = ""  # tokenizer.json or its directory, instead of the model's own
    structured: StructuredPlan = StructuredPlan()
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
    tool_call_parser: str = ""  # "" = found by the chat template
    reasoning_parser: str = ""  # "" = found by the chat template
    auto_tool_choice: bool = True
    tool_strict_level: str = "auto"
    hides_tools_on_none: bool = True
    reasoning_alias: bool = False  # reasoning is sent as reasoning_content too
    response_store_size: int = 1_000  # 0 = off
    response_store_bytes: int = 64 << 20
    response_store_seconds: int = 86_400
    max_background_responses: int = 64
    root_path: str = ""
    allow_credentials: bool = False
    allowed_origins: tuple[str, ...] = ()
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    uvicorn_log_level: str = "warning"
    access_log: bool = True
    request_id_headers: bool = False
    drain_timeout_s: float = 30.0
    max_engine_restarts: int = 20  # in a row, of engines that finished no step; 0 = no bound
    http_timeout_keep_alive_s: int = 5
    http_timeout_receive_s: float = 30.0  # 0 = no bound
    stream_interval: int = 1
    max_queued_requests: int = -1
    max_queued_tokens: int = -1
    api_server_count: int = 1  # API processes that share the address; bounds here are of one of them
    log_stats: bool = True
    log_requests: bool = False
