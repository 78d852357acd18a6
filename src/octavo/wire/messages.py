"""Every message between API, engine and worker. One word per thing on the wire (design: "Processes and messages").

A struct is carried inside the state object of the side that owns it and never re-listed field by field.
Times are `time.monotonic()` seconds, which all processes of one machine share.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from octavo.wire.sampling import SamplingParams


class FinishReason(IntEnum):
    """Why a request left the engine. The numbers travel; `text` is what clients see."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4  # the answer repeats itself, see SamplingParams.repetition_detection

    @property
    def text(self) -> str:
        return self.name.lower()


class EngineRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """API -> engine. One choice of one client request (n > 1 is split by the API).

    `forced` are tokens that were already sent to the client before an engine restart: they are
    computed, not sampled again, and count as output (law 4).
    """

    id: str  # internal; never the client's
    prompt: list[int]
    params: SamplingParams
    max_tokens: int  # resolved: never None
    seed: int  # resolved: never None
    eos_ids: list[int] = []  # empty when ignore_eos
    forced: list[int] = []
    forced_logprobs: bool = False  # reserved for the fold: forced tokens are never reported again
    priority: int = 0  # lower runs earlier
    salt: str | None = None  # prefix-cache key space (API key and cache_salt)
    skip_reading_prefix_cache: bool = False
    arrival: float = 0.0
    crashes: int = 0  # engine deaths that this request was in flight at


class TokenLogprobs(msgspec.Struct, array_like=True):
    """One position: the chosen token's log-probability and rank (1 = best), and the k best."""

    token_id: int
    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]


class RequestRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Everything that metrics, logs and usage say about a request; made once, at its end."""

    num_prompt: int = 0
    num_cached: int = 0  # prompt tokens taken from the prefix cache at first admission
    num_generated: int = 0  # forced included
    num_preemptions: int = 0
    num_recomputed: int = 0  # tokens computed again after preemption; never counted as hits
    prefix_miss: str = ""  # why no more was reused: new, evicted, salt, disabled, tail-block, ...
    arrival: float = 0.0
    queued: float = 0.0  # entered the engine
    scheduled: float = 0.0  # first step that included it
    first_token: float = 0.0
    finished: float = 0.0


class TokenDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """engine -> API. Exactly one delta of a request has `finish` set, and it is the last."""

    id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # once, with the first tokens
    finish: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop token id, if one fired; or a word
    error: str | None = None  # with finish == ERROR
    is_refused: bool = False  # the error is the request's own doing: what it asks for excludes every token
    is_gone: bool = False  # the error is the end of the server, or of an engine that nothing replaces
    num_cached: int | None = None  # with the first delta
    record: RequestRecord | None = None  # with the last delta


class EngineStats(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Gauges and counters of the engine since its start (counters only grow)."""

    running: int = 0
    waiting: int = 0
    waiting_deferred: int = 0
    paused: bool = False
    kv_usage_frac: float = 0.0
    kv_blocks_free: int = 0
    kv_blocks_total: int = 0
    prefix_queries: int = 0  # tokens looked up
    prefix_hits: int = 0  # tokens found
    preemptions: int = 0
    recomputed_tokens: int = 0
    steps: int = 0
    last_step_tokens: int = 0
    step_tokens: list[int] = []  # tokens of each step since the last stats message
    grammars_kept: int = 0
    grammars_compiled: int = 0
    grammars_failed: int = 0
    grammar_compile_us: int = 0
    grammar_masks: int = 0
    grammar_mask_us: int = 0


# ---- API -> engine ------------------------------------------------------------------------------


class Add(msgspec.Struct, tag="add"):
    request: EngineRequest


class Abort(msgspec.Struct, tag="abort"):
    ids: list[str]


class Call(msgspec.Struct, tag="call"):
    """A control call (reset_prefix_cache, stats, describe, ...); answered by `Reply`."""

    call_id: int
    method: str
    args: list[int | float | str | bool | None] = []


ToEngine = Add | Abort | Call

# ---- engine -> API ------------------------------------------------------------------------------


class Ready(msgspec.Struct, tag="ready", kw_only=True):
    """Sent once, when the engine can take requests."""

    max_model_len: int
    num_blocks: int
    block_size: int
    table: list[list[str]]  # what actually runs: rows of [topic, choice, reason]; law 3


class Outputs(msgspec.Struct, tag="out", kw_only=True, omit_defaults=True):
    deltas: list[TokenDelta] = []
    stats: EngineStats | None = None


class Reply(msgspec.Struct, tag="reply", kw_only=True):
    call_id: int
    result: msgspec.Raw = msgspec.Raw(b"\xc0")  # msgpack of any plain value; c0 is None
    error: str | None = None


class Failed(msgspec.Struct, tag="failed"):
    """The engine could not start, or is about to end: one cause, one fix."""

    cause: str
    fix: str = ""


FromEngine = Ready | Outputs | Reply | Failed

# ---- engine <-> worker --------------------------------------------------------------------------


class SlotAdd(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A request takes a slot: new, or back after preemption (then `token_ids` has its output too)."""

    slot: int
    request_id: str
    token_ids: list[int]  # prompt + forced + generated so far
    num_prompt: int
    computed: int  # leading tokens whose KV is already in `blocks`
    blocks: list[list[int]]  # [group][i]: block ids, from position 0
    params: SamplingParams
    seed: int
    stop_ids: list[int] = []  # eos and stop ids: masked until min_tokens


class StepPlan(msgspec.Struct, kw_only=True, omit_defaults=True):
    """engine -> worker: one step. Applied in this order: removed, added, new_blocks, run.

    `slots[i]` computes its next `counts[i]` tokens. `samples[i]` says whether row i's last token
    is the end of what is known, so that a token is drawn. With two steps in flight the token that
    the previous step draws is not known to the engine yet; the worker has it in the slot.
    """

    step: int
    removed: list[int] = []
    added: list[SlotAdd] = []
    new_blocks: list[tuple[int, int, list[int]]] = []  # (slot, group, ids appended)
    slots: list[int] = []
    counts: list[int] = []
    samples: list[bool] = []

    @property
    def num_tokens(self) -> int:
        return sum(self.counts)


class StepResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """worker -> engine, in the order of the plans. Lists are aligned with `StepPlan.slots`."""

    step: int
    token_ids: list[list[int]] = []  # [] where the row did not sample
    logprobs: list[list[TokenLogprobs] | None] = []  # same alignment, or [] when nobody asked
    prompt_logprobs: dict[int, list[TokenLogprobs]] = {}  # slot -> positions scored in this step
    problems: dict[int, str] = {}  # slot -> why nothing could be drawn, where more is known than that
    refused: list[int] = []  # those of `problems` that are the request's own doing
    fault: str | None = None  # the step failed: the engine ends with this cause
    elapsed_s: float = 0.0
