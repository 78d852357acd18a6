"""model_type -> module that builds its Program. A table of strings: a family is imported when used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from octavo.errors import ConfigError
from octavo.program.program import Program

FAMILIES = {
    "gemma3": "octavo.models.gemma3",
    "gemma3_text": "octavo.models.gemma3",
    "llama": "octavo.models.llama",
    "mistral": "octavo.models.mistral",
    "qwen2": "octavo.models.qwen2",
    "qwen3": "octavo.models.qwen3",
}


def build_program(
    config: Mapping[str, Any], *, block_size: int, kv_dtype: str, max_length: int | None = None
) -> Program:
    """The family's Program, unfused. `max_length` (tokens; default max_position_embeddings) matters to
    dynamic rope scaling only. Raises ConfigError."""
    model_type = config.get("model_type")
    module = FAMILIES.get(str(model_type))
    if module is None:
        raise ConfigError(f"model_type {model_type!r} is not supported, allowed: {', '.join(FAMILIES)}")
    program = import_module(module).build(
        config, block_size=block_size, kv_dtype=kv_dtype, max_length=max_length
    )
    assert isinstance(program, Program)
    return program


def weights_of(program: Program) -> dict[str, tuple[int, ...]]:
    """Every tensor that the program reads, by checkpoint name, with its shape."""
    wanted: dict[str, tuple[int, ...]] = {}
    for op in program.ops:
        for ref in op.weights:
            for name, shape in ref.tensors().items():
                if wanted.setdefault(name, shape) != shape:
                    raise ConfigError(f"tensor {name} is used as {list(wanted[name])} and as {list(shape)}")
    return wanted
