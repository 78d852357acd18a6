"""Gathers the facts that `config.resolve` decides by: from the machine, and from a model's headers."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import math
import secrets
from collections import Counter
from pathlib import Path
from typing import Any

from octavo import env
from octavo.config.asked import Asked
from octavo.config.facts import KVGroupFacts, MachineFacts, ModelFacts, WeightRow
from octavo.errors import ConfigError
from octavo.program.program import Program
from octavo.util import cpus
from octavo.weights.source import ModelSource

PLAIN_TYPES = ("F32", "F16", "BF16")
CHOICES = ("file", "f32", "f16", "bf16", "w8", "w4")  # of ExecutorPlan.weights
LOGITS_TILE_ROWS = 64  # the native executor computes logits for so many rows at a time


def machine_facts() -> MachineFacts:
    """Cores, memory and instruction sets that this process may use now."""
    count, cpus_reason = cpus.usable_cpus()
    memory_bytes, memory_reason = cpus.usable_memory()
    isas = cpus.isas()
    forced = env.isa()
    executors = ["native"] if has_native() else []
    if importlib.util.find_spec("torch"):
        executors.append("torch")
    pack_cache_dir, pack_cache_reason = env.pack_cache_dir()
    return MachineFacts(
        cpus=count,
        cpus_reason=cpus_reason,
        memory_bytes=memory_bytes,
        memory_reason=memory_reason,
        isas=isas,
        isa=forced or isas[-1],
        isa_reason="OCTAVO_ISA" if forced else "the best that this CPU has",
        executors=tuple(executors),
        pack_cache_dir=pack_cache_dir,
        pack_cache_reason=pack_cache_reason,
        entropy=secrets.randbits(63),
    )


def has_native() -> bool:
    """Whether the native module is built for this Python; looked for, not loaded: that is the engine's to do."""
    folder = Path(__file__).parents[1] / "kernels"
    return any((folder / f"_native{suffix}").exists() for suffix in importlib.machinery.EXTENSION_SUFFIXES)


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
    from octavo.program.passes import arena_row_bytes, row_bytes

    level = 0 if asked.model.enforce_eager else asked.model.optimization_level
    program = optimise(
        build_program(source.config, block_size=16, kv_dtype="bf16"), 2 if level is None else level
    )
    samples = {b.id: row_bytes(b) for b in program.buffers if b.parent is None and b.rows == "samples"}
    logits_row = samples.pop(program.outputs["logits"], 0)
    by_type: Counter[str] = Counter()
    for info in source.tensors.values():
        if len(info.shape) > 1:
            by_type[info.type] += info.nbytes
    file_dtype = by_type.most_common(1)[0][0]
    formats = {choice: weight_rows(program, source, choice) for choice in CHOICES}
    return ModelFacts(
        path=source.path,
        name=name,
        format=source.format,
        architecture=str(source.config.get("model_type", "unknown")),
        file_dtype=file_dtype,
        is_quantised=file_dtype not in PLAIN_TYPES,
        vocab_size=program.vocab_size,
        max_position=context_length(source.config),
        parameters=sum(math.prod(info.shape) for info in source.tensors.values()),
        weight_bytes={choice: sum(row.packed_bytes for row in rows) for choice, rows in formats.items()},
        weight_rows=formats,
        kv_groups=tuple(KVGroupFacts(len(g.layers), g.window) for g in program.kv.groups),
        kv_layers_per_block=program.kv.layers_per_block,
        kv_heads=program.kv.kv_heads,
        head_dim=program.kv.head_dim,
        arena_bytes_per_token=arena_row_bytes(program)["tokens"] + sum(samples.values()),
        arena_bytes_per_row=sum(samples.values()) + 4 * program.vocab_size + program.vocab_size // 8,
        arena_bytes_fixed=LOGITS_TILE_ROWS * logits_row,
    )


def optimise(program: Program, level: int) -> Program:
    """The passes of an optimisation level; the memory plan comes last."""
    from octavo.program.passes import fuse, gather_early, plan_memory

    if level >= 2:
        program = fuse(gather_early(program))
    return plan_memory(program)


def context_length(config: dict[str, Any]) -> int:
    """Positions that the model was made for."""
    for key in ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"):
        value = config.get(key)
        if isinstance(value, int) and value > 0:
            return value
    raise ConfigError("the model's configuration names no context length (max_position_embeddings)")


def weight_rows(program: Program, source: ModelSource, choice: str) -> list[WeightRow]:
    """What a choice of format makes of the file's tensors, by type: how many, into what, bytes, what is lost."""
    from octavo.quant.formats import loss, natural, packed_bytes

    found: dict[tuple[str, str, str], list[int]] = {}
    seen: set[tuple[str, ...]] = set()
    matrices = {
        name
        for op in program.ops
        for ref in op.weights
        if ref.role == "matrix"
        for name in ref.parts or (ref.name,)
    }
    for op in program.ops:
        for ref in op.weights:
            names = ref.parts or (ref.name,)
            if (ref.role, *names) in seen:
                continue
            seen.add((ref.role, *names))
            for name in names:
                info = source.tensors.get(name)
                if info is None:  # check_tensors names every missing tensor at once, when the engine binds
                    continue
                if ref.role == "matrix":
                    form = natural(info.type) if choice == "file" else choice
                    key, size = (
                        (info.type, form, loss(info.type, form)),
                        packed_bytes(form, info.shape[0], info.shape[1]),
                    )
                elif ref.role == "embedding":
                    key, size = (info.type, "mapped", "rows are read from the file"), info.nbytes
                else:
                    key, size = (info.type, "f32", "exact"), 4 * math.prod(info.shape)
                is_tied = (
                    ref.role == "embedding" and name in matrices
                )  # counted in the file once, as the matrix
                if is_tied:
                    key = (
                        info.type,
                        "mapped",
                        "the same tensor as the output matrix, rows are read from the file",
                    )
                entry = found.setdefault(key, [0, 0, 0])
                entry[0] += not is_tied
                entry[1] += 0 if is_tied else info.nbytes
                entry[2] += size
    return [WeightRow(*key, *entry) for key, entry in sorted(found.items(), key=lambda item: -item[1][2])]
