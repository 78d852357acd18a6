"""Bounds of the HTTP side that keep one request from hurting another. All act before memory is spent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_body_bytes: int = 32 << 20
    max_prompts: int = 1_024
    max_choices: int = 16_384  # prompts x n of one request
    max_listed_ids: int = 1 << 18  # choices x (logit_bias + allowed_token_ids + stop_token_ids + bad words)
    max_prompt_scores: int = 1 << 22  # tokens of all prompts x (1 + prompt_logprobs); some 100 bytes each
    max_stop_strings: int = 4
    max_stop_chars: int = 65_536
    max_tools: int = 1_024
    max_tool_name: int = 128  # characters
    max_tool_chars: int = 1 << 20  # the parameters of all tools of a request, as JSON
    max_template_seconds: float = 5.0  # of CPU time
    max_template_chars: int = 16 << 20
    max_template_bytes: int = 512 << 20  # address space of a template worker
    template_workers: int = 2
    sse_keep_alive_s: float = 0.0  # 0 = no comment lines in quiet streams
    stall_limit_s: float = 8.0
    share_prefix_cache: bool = False  # one key space for all API keys
