"""How near to the float32 model is each weight format? Teacher-forced, against transformers.

    python -m benchmarks.accuracy MODEL.gguf [--positions 2001] [--chunk 512] [--formats bf16,file,w8,f32]

The reference is transformers in float32 on the dequantised weights of the same file. Reported per
format: top-1 agreement, mean KL(reference || ours) in nats, perplexity of both. The text is made of
docstrings of the standard library (deterministic for a Python version), tokenised by Octavo.
"""

from __future__ import annotations

import argparse
import json
import pydoc
import sys
from collections.abc import Callable

import numpy as np

from benchmarks.harness import teacher_forced
from octavo.api.text.tokenizer import load_tokenizer
from octavo.kernels import native
from octavo.weights.load import open_model
from octavo.weights.source import ModelSource

MODULES = (
    "heapq",
    "argparse",
    "asyncio",
    "decimal",
    "difflib",
    "functools",
    "random",
    "statistics",
    "typing",
    "zipfile",
)


def text() -> str:
    return "\n\n".join(
        pydoc.plain(pydoc.render_doc(name, renderer=pydoc.plaintext))[:1600] for name in MODULES
    )


def reference_model(source: ModelSource, dtype: str = "float32") -> Callable[[list[int]], np.ndarray]:
    """ids -> [positions, vocab] by transformers, weights dequantised from the file."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from octavo.quant import dequantise

    kind = source.config["model_type"]
    config = AutoConfig.for_model(kind, **{k: v for k, v in source.config.items() if k != "model_type"})
    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    offset = 1.0 if source.config.get("norm_weight_offset") == 0.0 else 0.0  # such files hold 1 + w
    state = {}
    for name, info in source.tensors.items():
        raw = source.read(name)
        rows = info.shape[0] if len(info.shape) == 2 else 1
        value = dequantise(raw.data, info.type, rows, info.shape[-1])
        if raw.row_order is not None:
            value = value[raw.row_order]
        tensor = torch.from_numpy(np.ascontiguousarray(value)).reshape(info.shape)
        state[name] = tensor - offset if name.endswith("norm.weight") else tensor
    if source.config.get("tie_word_embeddings", False):
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    model = model.to(getattr(torch, dtype)).eval()

    def logits(ids: list[int]) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.tensor([ids])).logits[0].float().numpy()

    return logits


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def compare(reference: np.ndarray, logits: np.ndarray, targets: list[int]) -> dict[str, float]:
    """Row i of both predicts `targets[i]`."""
    top1, kl, nll, nll_ref = 0, 0.0, 0.0, 0.0
    n = len(targets)
    for start in range(0, n, 128):
        a, b = log_softmax(reference[start : start + 128]), log_softmax(logits[start : start + 128])
        top1 += int((a.argmax(-1) == b.argmax(-1)).sum())
        kl += float((np.exp(a) * (a - b)).sum())
        rows = np.arange(len(a))
        nll -= float(b[rows, targets[start : start + 128]].sum())
        nll_ref -= float(a[rows, targets[start : start + 128]].sum())
    return {
        "positions": n,
        "top1_percent": round(100 * top1 / n, 2),
        "mean_kl": round(kl / n, 6),
        "perplexity": round(float(np.exp(nll / n)), 3),
        "perplexity_reference": round(float(np.exp(nll_ref / n)), 3),
    }


class Scored:
    """Which positions count: all of one text, or, as llama-perplexity has it, of every whole chunk by itself
    the second half (but for its last token, which predicts nothing there)."""

    def __init__(self, ids: list[int], chunk: int) -> None:
        self.pieces = [ids[s : s + chunk] for s in range(0, len(ids) - chunk + 1, chunk)] if chunk else [ids]
        self.first = chunk // 2
        self.targets = [token for piece in self.pieces for token in piece[self.first + 1 :]]

    def rows(self, logits_of: Callable[[list[int]], np.ndarray]) -> np.ndarray:
        """[len(targets), vocab]"""
        return np.concatenate([logits_of(piece)[self.first : -1] for piece in self.pieces])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--positions", type=int, default=2001, help="tokens of the text")
    parser.add_argument("--chunk", type=int, default=0, help="score as llama-perplexity -c CHUNK does")
    parser.add_argument(
        "--formats", default="f32,bf16,file,w8", help="native formats; torch:bf16 = transformers bf16"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default=native.best_isa())
    args = parser.parse_args()
    source = open_model(args.model)
    ids = load_tokenizer(source).encode(text(), add_special_tokens=True)[: args.positions]
    if len(ids) < args.positions:
        sys.exit(f"the text has only {len(ids)} tokens")
    scored = Scored(ids, args.chunk)
    reference = scored.rows(reference_model(source))
    for weights in args.formats.split(","):
        if weights == "torch:bf16":
            rows = scored.rows(reference_model(source, "bfloat16"))
        else:
            rows = scored.rows(
                lambda piece, weights=weights: teacher_forced(
                    "native", source, weights, piece, args.threads, args.isa
                )
            )
        result = {
            "model": source.name,
            "weights": weights,
            "isa": args.isa,
            **compare(reference, rows, scored.targets),
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
