"""The real model, greedily: the native executor in f32 draws the ids that the torch executor draws."""

from __future__ import annotations

from pathlib import Path

from tests.engine.real_engine import RealModel

from octavo.api.text.tokenizer import load_tokenizer
from octavo.kernels import native
from octavo.weights.load import open_model
from octavo.wire.messages import EngineRequest
from octavo.wire.sampling import SamplingParams

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def quicksort(items):\n",
    "import numpy as np\n\nx = np.",
    "Water boils at",
    "1, 1, 2, 3, 5, 8,",
    "The three laws of thermodynamics are",
    "Dear Sir or Madam,\n\n",
    "Q: What is 12 + 30?\nA:",
    "Le petit prince habitait",
    "今天天气很好，",
    "SELECT name FROM users WHERE",
    "A recipe for bread:\n1.",
    "Shakespeare was born in",
    "The mitochondrion is",
    "<html>\n<head>\n<title>",
    "To whom it may concern: 😀",
    "In 1969, humans first",
    "The opposite of hot is",
    "Photosynthesis turns light into",
]


def greedy_ids(model: RealModel, prompts: list[list[int]]) -> list[list[int]]:
    params = SamplingParams(temperature=0.0)
    requests = [
        EngineRequest(id=str(i), prompt=prompt, params=params, max_tokens=64, seed=0)
        for i, prompt in enumerate(prompts)
    ]
    answers = model.serve(model.plan(), requests)
    return [answers[str(i)].token_ids for i in range(len(prompts))]


def test_native_f32_equals_torch_f32(smollm2_path: Path) -> None:
    source = open_model(str(smollm2_path))
    tokenizer = load_tokenizer(source)
    prompts = [tokenizer.encode(prompt, add_special_tokens=True) for prompt in PROMPTS]
    ids = {}
    for executor, isa in (("native", native.best_isa()), ("torch", "torch")):
        model = RealModel(
            source, executor=executor, weights="f32", isa=isa, num_blocks=200, max_rows=20, threads=2
        )
        try:
            ids[executor] = greedy_ids(model, prompts)
        finally:
            model.close()
    assert all(len(row) == 64 for row in ids["native"])
    assert ids["native"] == ids["torch"]
