"""The real models in float32, against transformers' models filled with the same dequantised weights.

The answers at the end would be wrong if a file were misread, which both sides would then share.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from tests.models.harness import Setup, open_runner

from octavo.executors.torch_executor.weights import read_floats
from octavo.weights.source import ModelSource

# "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\nThe capital of France is"
CAPITAL_OF_FRANCE = [
    1,
    4093,
    198,
    1780,
    314,
    260,
    3575,
    282,
    4649,
    47,
    2,
    198,
    1,
    520,
    9531,
    198,
    504,
    3575,
    282,
    4649,
    314,
]
PARIS = 7042
# "<bos>The capital of Japan is"
CAPITAL_OF_JAPAN = [2, 818, 5279, 529, 6056, 563]
TOKYO = 21038
# More than the sliding window of 512.
FILLER = [2] + [(977 * i + 31) % 200000 for i in range(600)]
KEEP = 64  # last positions that are compared
IGNORED = ("norm_weight_offset", "rope_factors")


def reference(source: ModelSource, tokens: list[int]) -> npt.NDArray[np.float32]:
    """transformers' float32 logits of the last positions, `[KEEP, vocab]`."""
    settings = {k: v for k, v in source.config.items() if k not in ("model_type", *IGNORED)}
    config = transformers.AutoConfig.for_model(source.config["model_type"], **settings)
    make: Any = transformers.AutoModelForCausalLM.from_config
    model = make(config, dtype=torch.float32).eval()
    offset = 1.0 if source.config.get("norm_weight_offset") == 0.0 else 0.0  # transformers adds it again
    state = {}
    for name in source.tensors:
        values = torch.from_numpy(np.array(read_floats(source, name)))
        state[name] = values - offset if "norm" in name else values
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    with torch.no_grad():
        logits: npt.NDArray[np.float32] = model(torch.tensor([tokens]), logits_to_keep=KEEP).logits[0].numpy()
    return logits


def compare(executor: str, path: str, tokens: list[int], chunks: tuple[int, ...], setup: Setup) -> None:
    runner = open_runner(executor, path, setup)
    (logits,) = runner.sequences([tokens], chunks, keep=KEEP)
    expected = reference(runner.source, tokens)[-len(logits) :]
    np.testing.assert_allclose(logits, expected, atol=5e-3, rtol=1e-3)
    assert (logits.argmax(1) == expected.argmax(1)).mean() > 0.98


def test_smollm2(executor: str, smollm2_path: str) -> None:
    compare(executor, smollm2_path, CAPITAL_OF_FRANCE, (7, 1, 9), Setup(block_size=16))


def test_gemma3_beyond_its_windows(executor: str, gemma3_path: str) -> None:
    setup = Setup(block_size=16, num_blocks=320, max_tokens=400)
    compare(executor, gemma3_path, FILLER, (400, 100, 50), setup)


def test_answers(executor: str, smollm2_path: str, gemma3_path: str) -> None:
    for path, prompt, answer in (
        (smollm2_path, CAPITAL_OF_FRANCE, PARIS),
        (gemma3_path, CAPITAL_OF_JAPAN, TOKYO),
    ):
        runner = open_runner(executor, path, Setup(block_size=16))
        (logits,) = runner.sequences([prompt], keep=1)
        assert int(logits[0].argmax()) == answer
