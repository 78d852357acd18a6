"""Writes a GGUF file's weights, dequantised, as a Hugging Face directory, for engines that read no GGUF.

    python -m benchmarks.peers.to_hugging_face MODEL.gguf OUT [--w8a8]

bf16 safetensors; with --w8a8 the matrices of the layers become int8 with one scale a row and activations
are quantised per token as they come (the "int-quantized" form of compressed-tensors). Both have the shapes
and the tokenizer of the file, which is what speed depends on; accuracy is not their purpose.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from octavo.quant import dequantise
from octavo.weights.load import open_model
from octavo.weights.source import ModelSource

DROPPED = ("norm_weight_offset",)  # facts of the file that no other reader knows
INT8_CONFIG: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "channel",
                "dynamic": False,
            },
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("out", type=Path, help="directory to make")
    parser.add_argument("--w8a8", action="store_true", help="int8 matrices in the layers")
    given = parser.parse_args()
    source = open_model(given.model)
    given.out.mkdir(parents=True, exist_ok=True)
    write_tensors(source, given.out, given.w8a8)
    write_config(source, given.out, given.w8a8)
    write_tokenizer(source, given.out)


def write_tensors(source: ModelSource, out: Path, w8a8: bool) -> None:
    import torch
    from safetensors.torch import save_file

    is_tied = bool(source.config.get("tie_word_embeddings", False))
    tensors: dict[str, Any] = {}
    for name, info in source.tensors.items():
        if is_tied and name == "lm_head.weight":
            continue
        raw = source.read(name)
        rows = info.shape[0] if len(info.shape) == 2 else 1
        values = dequantise(raw.data, info.type, rows, info.shape[-1])
        if raw.row_order is not None:
            values = values[raw.row_order]
        if w8a8 and name.endswith("_proj.weight"):
            scale = np.maximum(np.abs(values).max(axis=1, keepdims=True), 1e-8) / 127
            tensors[name] = torch.from_numpy(np.rint(values / scale).astype(np.int8))
            tensors[name + "_scale"] = torch.from_numpy(scale.astype(np.float32))
        else:
            tensors[name] = torch.from_numpy(values.reshape(info.shape).copy()).to(torch.bfloat16)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


def write_config(source: ModelSource, out: Path, w8a8: bool) -> None:
    from transformers import AutoConfig

    facts = {k: v for k, v in source.config.items() if k not in DROPPED}
    config = AutoConfig.for_model(facts.pop("model_type"), **facts).to_dict()
    names = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
    kind = str(config["model_type"])
    if kind not in names:
        sys.exit(f"{kind} is not one of {', '.join(names)}: add its class to this script")
    config |= {"architectures": [names[kind]], "dtype": "bfloat16", "torch_dtype": "bfloat16"}
    if w8a8:
        config["quantization_config"] = INT8_CONFIG
    (out / "config.json").write_text(json.dumps(config, indent=2))


def write_tokenizer(source: ModelSource, out: Path) -> None:
    from tokenizers import decoders

    from octavo.api.text.tokenizer_gguf import build

    if source.tokenizer.gguf is None:
        sys.exit(f"{source.path} is no GGUF file")
    vocabulary = build(source.tokenizer.gguf, source.path)
    vocabulary.core.decoder = decoders.ByteLevel()  # Octavo spells tokens itself; others ask the file
    vocabulary.core.save(str(out / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **vocabulary.roles,
    }
    if source.chat_template:
        config["chat_template"] = source.chat_template
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
