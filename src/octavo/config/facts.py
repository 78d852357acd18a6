"""What is true of the machine and of the model, as numbers. Gathered elsewhere (launch.facts)."""

from __future__ import annotations

import msgspec


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`cpus` = what the affinity mask and the cgroup quota leave; `memory_bytes` = what may be taken now."""

    cpus: int
    cpus_reason: str
    memory_bytes: int
    memory_reason: str
    isas: tuple[str, ...]  # worst first
    isa: str  # the best one, or what the environment names
    isa_reason: str
    executors: tuple[str, ...]
    pack_cache_dir: str = ""  # "" = the environment has switched it off
    pack_cache_reason: str = ""
    entropy: int  # drawn once per start: two starts must not repeat each other's random answers


class KVGroupFacts(msgspec.Struct, frozen=True):
    layers: int
    window: int  # 0 = all


class WeightRow(msgspec.Struct, frozen=True):
    """Tensors of one type of the file, and what they are packed into."""

    file_type: str
    packed: str
    loss: str
    tensors: int
    file_bytes: int
    packed_bytes: int


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Read from headers only; no tensor is touched. Bytes are those of the executor's packed forms."""

    path: str
    name: str
    format: str  # "gguf" | "safetensors"
    architecture: str
    file_dtype: str  # of most matrix bytes: "F32", "F16", "BF16", or a GGUF block type
    is_quantised: bool
    vocab_size: int
    max_position: int
    parameters: int
    weight_bytes: dict[str, int]  # by ExecutorPlan.weights: "file" "f32" "f16" "bf16" "w8" "w4"
    weight_rows: dict[str, list[WeightRow]] = {}  # the same, by type of the file
    kv_groups: tuple[KVGroupFacts, ...]
    kv_layers_per_block: int
    kv_heads: int
    head_dim: int
    arena_bytes_per_token: int  # of --max-num-batched-tokens
    arena_bytes_per_row: int  # of --max-num-seqs: sampling rows, counts for penalties
    arena_bytes_fixed: int
