"""Sampling parameters of one choice, as they travel from the API to the sampler.

Owns names, defaults and ranges (`verify`). Does not know where a default comes from
(generation_config is applied in api.prompt) nor how a token is drawn (csrc/sampler).
"""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Names, ranges and defaults follow OpenAI and vLLM; see docs/compatibility.md.

    `temperature == 0` (or below 1e-5) is greedy. `logprobs`: None = none, 0 = the sampled token only,
    k = also the k best, -1 = the whole vocabulary. Random numbers are a function of
    (seed, position), never of a stateful generator (law 1).
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1 = off
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = []
    bad_words_ids: list[list[int]] = []  # filled by the API, which owns the tokenizer
    stop: list[str] = []
    stop_token_ids: list[int] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16  # None = what is left of the context
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    stream_interval: int | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature < 1e-5
