"""Gathers the facts that `config.resolve` decides by: from the machine, and from a model's headers."""

from __future__ import annotations

import importlib.util
from collections import Counter
from typing import Any

from octavo import env
from octavo.config.asked import Asked
from octavo.config.facts import KVGroupFacts, MachineFacts, ModelFacts
from octavo.errors import ConfigError
from octavo.program.program import Program
from octavo.util import cpus
from octavo.weights.source import ModelSource

PLAIN_TYPES = ("F32", "F16", "BF16")


def machine_facts() -> MachineFacts:
    """Cores, memory and instruction sets that this process may use now."""
    count, cpus_reason = cpus.usable_cpus()
    memory_bytes, memory_reason = cpus.usable_memory()
    isas = cpus.isas()
    forced = env.isa()
    executors = ["native"] if importlib.util.find_spec("octavo.kernels._native") else []
    if importlib.util.find_spec("torch"):
        executors.append("torch")
    return MachineFacts(
        cpus=count,
        cpus_reason=cpus_reason,
        memory_bytes=memory_bytes,
        memory_reason=memory_reason,
        isas=isas,
        isa=forced or isas[-1],
        isa_reason="OCTAVO_ISA" if forced else "the best that this CPU has",
        executors=tuple(executors),
    )


def open_checked(path: str, load_format: str) -> ModelSource:
    """The model at `path`. Raises ConfigError when its files are not of the format that was asked for."""
    from octavo.weights.load import open_model

    source = open_model(path)
    if load_format not in ("auto", source.format):
        raise ConfigError(
            f"--load-format is {load_format}, but {path} holds {source.format}", fix="leave --load-format out"
        )
    return source


def model_facts(source: ModelSource, name: str, asked: Asked) -> ModelFacts:
    """Reads headers only. Raises ConfigError for an architecture that has no model file."""
    from octavo.models.registry import build_program
    from octavo.program.passes import arena_row_bytes

    level = 0 if asked.model.enforce_eager else asked.model.optimization_level
    program = optimise(
        build_program(source.config, block_size=16, kv_dtype="bf16"), 2 if level is None else level
    )
    arena = arena_row_bytes(program)
    by_type: Counter[str] = Counter()
    for info in source.tensors.values():
        if len(info.shape) > 1:
            by_type[info.type] += info.nbytes
    file_dtype = by_type.most_common(1)[0][0]
    weight_bytes, formats = weight_sizes(program, source, asked)
    return ModelFacts(
        path=source.path,
        name=name,
        format=source.format,
        architecture=str(source.config.get("model_type", "unknown")),
        file_dtype=file_dtype,
        is_quantised=file_dtype not in PLAIN_TYPES,
        vocab_size=program.vocab_size,
        max_position=context_length(source.config),
        parameters=sum(_count(info.shape) for info in source.tensors.values()),
        weight_bytes=weight_bytes,
        weight_formats=formats,
        kv_groups=tuple(KVGroupFacts(len(g.layers), g.window) for g in program.kv.groups),
        kv_layers_per_block=program.kv.layers_per_block,
        kv_heads=program.kv.kv_heads,
        head_dim=program.kv.head_dim,
        arena_bytes_per_token=arena["tokens"],
        arena_bytes_per_sample=arena["samples"],
    )


def optimise(program: Program, level: int) -> Program:
    """The passes of an optimisation level; the memory plan comes last."""
    from octavo.program.passes import fuse, gather_early, plan_memory

    if level >= 2:
        program = gather_early(fuse(program))
    return plan_memory(program)


def context_length(config: dict[str, Any]) -> int:
    """Positions that the model was made for."""
    for key in ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"):
        value = config.get(key)
        if isinstance(value, int) and value > 0:
            return value
    raise ConfigError("the model's configuration names no context length (max_position_embeddings)")


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
