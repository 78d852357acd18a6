"""What is asked about the KV cache."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from octavo.config.option import Doc


class CacheAsked(msgspec.Struct, frozen=True, kw_only=True):
    block_size: Annotated[
        int | None,
        Doc(
            "Tokens in a block: a multiple of 16, at most 256.",
            ge=16,
            le=256,
            unset="16, or 32 for narrow KV",
        ),
    ] = None
    kv_cache_memory_bytes: Annotated[
        int | None,
        Doc(
            "Memory of the KV cache in bytes; 4G is 4 GiB, 4g is 4,000,000,000.",
            ge=1,
            unset="from need, capped at 4 GiB or 60% of the free memory",
        ),
    ] = None
    num_gpu_blocks_override: Annotated[
        int | None,
        Doc(
            "Number of blocks, whatever the memory would allow (for tests).", ge=1, aliases=("--num-blocks",)
        ),
    ] = None
    kv_cache_dtype: Annotated[
        Literal["auto", "bfloat16", "bf16", "float32", "f32"],
        Doc("Numbers of the KV cache. auto: bfloat16, or float32 with --dtype float32."),
    ] = "auto"
    enable_prefix_caching: Annotated[
        bool, Doc("Reuse the blocks of a prompt's start that an earlier request has computed.")
    ] = True
    prefix_caching_hash_algo: Annotated[
        Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"],
        Doc("Hash of a block. xxhash is faster and not collision-resistant: only where prompts are trusted."),
    ] = "sha256"
    kv_events_config: Annotated[
        dict[str, Any],
        Doc(
            "Publish which blocks the prefix cache holds, as JSON or by keys (--kv-events-config.endpoint ...): "
            "enable_kv_cache_events, publisher (zmq or null), endpoint (tcp://127.0.0.1:5557), replay_endpoint, "
            "buffer_steps, hwm, max_queue_size, topic. See docs/kv-events.md."
        ),
    ] = msgspec.field(default_factory=dict)
