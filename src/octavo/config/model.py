"""What is asked about the model: which one, in which numbers, run by what."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from octavo.config.option import Doc


class ModelAsked(msgspec.Struct, frozen=True, kw_only=True):
    model: Annotated[
        str | None,
        Doc(
            "Model to serve: a GGUF file, a Hugging Face directory, a name that `octavo pull` knows, or an "
            "org/name already in the Hugging Face cache. Also the positional argument.",
            unset="the default model, if it has been pulled",
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        Doc(
            "Directory or tokenizer.json to use instead of the model's own tokenizer.",
            unset="the model's own",
        ),
    ] = None
    served_model_name: Annotated[
        tuple[str, ...],
        Doc("Names that requests may use; the first one is reported.", unset="the model as it was given"),
    ] = ()
    revision: Annotated[
        str | None, Doc("Branch, tag or commit of a Hugging Face repository.", unset="main")
    ] = None
    download_dir: Annotated[
        str | None,
        Doc("Where pulled models lie.", unset="OCTAVO_CACHE, else the user's cache directory"),
    ] = None
    load_format: Annotated[
        Literal["auto", "safetensors", "gguf"],
        Doc("Kind of weight file that must be found. auto: whichever the model has."),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "bfloat16", "half", "float16", "float", "float32"],
        Doc(
            "Numbers of the matrices that the file does not quantise, and of the KV cache where it has no "
            "dtype of its own. auto: as in the file (float32 becomes bfloat16). Sums, residuals and logits are "
            "float32 always."
        ),
    ] = "auto"
    quantization: Annotated[
        Literal["none", "w8", "w4"] | None,
        Doc(
            "Format of the matrices: w8 (int8, groups of 32), w4 (4 bit, groups of 32), none (dequantise to "
            "--dtype).",
            short="-q",
            unset="the file's own lattice",
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        Doc(
            "Largest prompt plus answer of one request, in tokens. auto (-1): the largest that fits in memory.",
            ge=1,
            auto=True,
            unset="the model's context, or the largest that fits when that is less",
        ),
    ] = None
    seed: Annotated[
        int | None,
        Doc(
            "Seed from which requests without a seed of their own draw.",
            ge=0,
            le=2**63 - 1,
            unset="drawn anew at each start, and shown",
        ),
    ] = None
    max_logprobs: Annotated[
        int, Doc("Most log-probabilities that a request may ask for; -1 = no bound.", ge=-1)
    ] = 20
    logprobs_mode: Annotated[
        Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"],
        Doc(
            "What logprobs are: log-probabilities or logits, before (raw) or after (processed) penalties, "
            "temperature and truncation. Nothing processes a prompt: its logprobs are raw always."
        ),
    ] = "raw_logprobs"
    generation_config: Annotated[
        str,
        Doc(
            "Where defaults of sampling come from: auto (the model's generation_config.json), octavo or vllm "
            "(none), or a directory."
        ),
    ] = "auto"
    override_generation_config: Annotated[
        dict[str, Any],
        Doc(
            'Defaults of sampling to set, as JSON: {"temperature": 0.7}. max_new_tokens here, or in a '
            "--generation-config of your own, is also the most tokens that any answer gets."
        ),
    ] = msgspec.field(default_factory=dict)
    structured_outputs_config: Annotated[
        dict[str, Any],
        Doc(
            "Structured output, as JSON: backend (auto, llguidance, xgrammar, outlines, lm-format-enforcer), "
            "disable_any_whitespace (true), disable_additional_properties (false)."
        ),
    ] = msgspec.field(default_factory=dict)
    pack_cache: Annotated[
        bool,
        Doc(
            "Keep packed weights on disk, so that the next start maps them instead of packing again "
            "(docs/performance.md). Answers are the same with and without."
        ),
    ] = True
    pack_cache_dir: Annotated[
        str | None,
        Doc("Folder of packed weights.", unset="OCTAVO_PACK_CACHE, else `packed` in OCTAVO_CACHE"),
    ] = None
    pack_cache_bytes: Annotated[
        int | None,
        Doc(
            "Most bytes of packed weights in that folder: the least recently used go first.",
            ge=1,
            unset="32G",
        ),
    ] = None
    executor: Annotated[
        Literal["native", "torch"],
        Doc("What runs the model: native (C++, CPU) or torch (op by op; needs the package torch)."),
    ] = "native"
    isa: Annotated[
        Literal["auto", "generic", "avx2", "avx512", "avx512_bf16", "avx512_amx", "neon"],
        Doc("Instruction set of the native kernels. auto: OCTAVO_ISA, else the best that this CPU has."),
    ] = "auto"
    optimization_level: Annotated[
        Literal[0, 1, 2, 3] | None,
        Doc(
            "0 op by op, 1 recorded program, 2 fused and packed, 3 tuned on this machine.",
            short="-O",
            unset="2",
        ),
    ] = None
    enforce_eager: Annotated[bool, Doc("The same as -O0.")] = False
    strict: Annotated[
        bool,
        Doc("Every fallback is an error at start, and an unknown request field is an error, not a note."),
    ] = False
