"""A model on disk, whatever its format: configuration, tensors, tokenizer, templates.

`open_model(path)` (weights.load) gives one. Names and configuration keys are Hugging Face's; a GGUF
file is translated (weights.names). Nothing here reads tensor bytes until asked.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import WeightError
from octavo.weights.mapped import leave_pages, read_tensor
from octavo.weights.tensor import RawTensor, TensorInfo

__all__ = ["ModelSource", "RawTensor", "TensorInfo", "TokenizerFiles"]


@dataclass(slots=True)
class TokenizerFiles:
    """Where the tokenizer comes from: a tokenizer.json, or the metadata of a GGUF file."""

    tokenizer_json: str | None = None  # path
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    gguf: Mapping[str, Any] | None = None  # metadata keys "tokenizer.*"


@dataclass(slots=True)
class ModelSource:
    """`config` uses the keys of Hugging Face's config.json (model_type, hidden_size, rope_theta or
    rope_parameters, ...). `generation_config` likewise; `eos_token_id` there may be a list."""

    path: str
    format: str  # "safetensors" | "gguf"
    config: dict[str, Any]
    tensors: dict[str, TensorInfo]
    tokenizer: TokenizerFiles
    generation_config: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    name: str = ""

    def read(self, name: str) -> RawTensor:
        """Memory-mapped bytes of a tensor. Raises WeightError when it does not exist."""
        info = self.tensors.get(name)
        if info is None:
            raise WeightError(f"{self.path} has no tensor {name!r}")
        return read_tensor(info)

    def leave_pages(self) -> None:
        """What was read of the files leaves this process's memory; the maps stay."""
        leave_pages(self.tensors.values())

    @property
    def fingerprint(self) -> str:
        """32 hex digits over configuration, headers, and size and time of every file; the path plays no part."""
        files = {info.file for info in self.tensors.values()}
        base = self.path if os.path.isdir(self.path) else os.path.dirname(self.path)
        if self.format == "safetensors":
            files |= set(glob.glob(os.path.join(glob.escape(base), "*.json")))
            files |= set(glob.glob(os.path.join(glob.escape(base), "*.jinja")))
        digest = hashlib.sha256()
        for file in sorted(files):
            try:
                status = os.stat(file)
            except OSError as error:
                raise WeightError(f"cannot read {file}: {error.strerror or error}") from None
            digest.update(f"{os.path.relpath(file, base)}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        digest.update(json.dumps(self.config, sort_keys=True, default=str).encode())
        for info in self.tensors.values():
            digest.update(
                f"{info.name}\0{info.shape}\0{info.type}\0{info.offset}\0{info.row_order}\0".encode()
            )
        return digest.hexdigest()[:32]
