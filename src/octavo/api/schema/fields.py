"""Fields that other servers know and that do not act here yet: refused by name, with the reason.

`REFUSED[field] = (values that ask for nothing, reason)`: a body with one of those values is fine.
`INERT[field]` = why a field has no effect; it is accepted and reported in `warnings`.
Everything else that no model names is unknown: reported in `warnings`, refused with --strict.
"""

from __future__ import annotations

from typing import Any

_GUIDED = "it is spelled structured_outputs: {choice, regex, json, grammar, ...} now"
_GRAMMAR = "this route takes no grammar; /v1/chat/completions and /v1/completions do"
_TOOLS = "it is the older form of tools and tool_choice: send those"
_MEDIA = "this server takes text only"
_REMOTE = "transfer of KV blocks between servers is not built yet"
_CHOSEN = (
    "logprobs of chosen tokens are given for the answer only (logprob_token_ids); ask for prompt_logprobs"
)
_PLUG_INS = "there are no plug-ins that read it"
_RENDER = "only the render routes return it, which are not built yet"

REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "audio": ((), _MEDIA),
    "best_of": ((1,), "ranking of surplus choices is not built; ask for n"),
    "documents": (([],), "only chat has a template that could show them"),
    "detokenize": ((True,), "this route answers with text; /inference/v1/generate takes it"),
    "ec_transfer_params": (({},), _REMOTE),
    "extra_args": (({},), _PLUG_INS),
    "flat_logprobs": ((False,), "it chooses a Python class; answers here are JSON"),
    "function_call": (("none",), _TOOLS),
    "functions": (([],), _TOOLS),
    "grammar": ((), _GUIDED),
    "guided_choice": ((), _GUIDED),
    "guided_grammar": ((), _GUIDED),
    "guided_json": ((), _GUIDED),
    "guided_regex": ((), _GUIDED),
    "kv_transfer_params": (({},), _REMOTE),
    "length_penalty": ((1, 1.0), "it acts on beam search only, which this route does not have"),
    "media_io_kwargs": (({},), _MEDIA),
    "mm_payload": (("tensors", "none"), _RENDER),
    "mm_processor_kwargs": (({},), _MEDIA),
    "modalities": ((["text"],), _MEDIA),
    "prediction": ((), "predicted output is not built yet"),
    "prompt_embeds": (([],), "prompts are text or token ids; embeddings are not accepted"),
    "prompt_logprob_start": ((), _CHOSEN),
    "prompt_logprob_token_ids": ((), _CHOSEN),
    "response_format": (({"type": "text"},), _GRAMMAR),
    "return_mm_kwargs": ((False,), _RENDER),
    "return_token_offsets": ((False,), _RENDER),
    "routed_experts_prompt_start": ((0,), "routed experts are not reported"),
    "structured_outputs": (({},), _GRAMMAR),
    "suffix": (
        ("",),
        "fill-in-the-middle is not built; put the suffix into the prompt as the model expects it",
    ),
    "thinking_token_budget": ((-1,), "only chat tells thinking from the answer"),
    "use_beam_search": (
        (False,),
        "this route has no beam search; /v1/chat/completions and /v1/completions do",
    ),
    "trace_decode_token_ids": ((), "answers cannot be forced; put the tokens into the prompt"),
    "vllm_xargs": (({},), _PLUG_INS),
    "watermarking": ((False,), "watermarks are not built"),
    "web_search_options": ((), "this server does not search"),
}

INERT: dict[str, str] = {
    "include_reasoning": "only chat tells thinking from the answer",
    "metadata": "nothing is stored",
    "output_kind": "stream says whether an answer comes in pieces",
    "parallel_tool_calls": "only chat has tools",
    "prompt_cache_key": "prefixes are found by content; use cache_salt to keep them apart",
    "prompt_cache_retention": "blocks are kept as long as there is room",
    "safety_identifier": "nothing is recorded about users",
    "service_tier": "there is one tier",
    "session_id": "there is one engine, so no session has to find its way back",
    "spaces_between_special_tokens": "special tokens are spelled as they are, without spaces between them",
    "store": "nothing is stored",
    "user": "nothing is recorded about users",
    "verbosity": "no model here reads it",
}

_INERT_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "include_reasoning": (True,),
    "parallel_tool_calls": (True, False),
    "service_tier": ("auto", "default"),
    "spaces_between_special_tokens": (False,),
    "store": (False,),
}


def asks_nothing(field: str, value: Any) -> bool:
    """Whether a value of a REFUSED field is the same as leaving it out. (True is not 1 here.)"""
    neutral = REFUSED[field][0]
    return any(value == n and isinstance(value, bool) == isinstance(n, bool) for n in neutral)


def is_worth_a_warning(field: str, value: Any) -> bool:
    return value not in _INERT_DEFAULTS.get(field, ())
