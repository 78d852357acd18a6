"""A model on disk, whatever its format: configuration, tensors, tokenizer, templates.

`open_model(path)` (weights.load) gives one. Names and configuration keys are Hugging Face's; a GGUF
file is translated (weights.names). Nothing here reads tensor bytes until asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's header. `type` is "F32", "F16", "BF16" or a GGUF block type ("Q4_K", ...).

    `shape` is outermost first: a matrix is [out, in] and a row of it is contiguous.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    nbytes: int
    file: str
    offset: int  # absolute, in `file`
    row_order: tuple[str, int] | None = None  # ("rope_pairs", heads): rows lie permuted, see weights.names


@dataclass(slots=True)
class RawTensor:
    """Bytes of a tensor as they lie in the file (a read-only view of the memory map)."""

    info: TensorInfo
    data: npt.NDArray[np.uint8]  # [nbytes]
    row_order: npt.NDArray[np.int32] | None = None  # row i of the model's tensor = row row_order[i] of `data`


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
        from octavo.weights.load import read_tensor

        return read_tensor(self, name)

    @property
    def fingerprint(self) -> str:
        """Changes when any header, size or modification time of the files changes."""
        from octavo.weights.load import fingerprint

        return fingerprint(self)
