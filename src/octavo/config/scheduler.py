"""What is asked about the scheduler: budgets, order, admission."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from octavo.config.option import Doc


class SchedulerAsked(msgspec.Struct, frozen=True, kw_only=True):
    max_num_batched_tokens: Annotated[
        int | None, Doc("Most tokens computed in one step.", ge=1, unset="2048")
    ] = None
    max_num_seqs: Annotated[int | None, Doc("Most requests in one step.", ge=1, unset="128")] = None
    max_num_queued_reqs: Annotated[
        int | None,
        Doc("Most requests in the server, running ones included; one more gets 503.", ge=0, unset="no bound"),
    ] = None
    max_num_queued_tokens: Annotated[
        int | None,
        Doc(
            "Most prompt tokens waiting to be computed; beyond it a request gets 503.", ge=0, unset="no bound"
        ),
    ] = None
    long_prefill_token_threshold: Annotated[
        int,
        Doc("Most tokens of one prompt in a step that others share; 0 = no cap.", ge=0),
    ] = 0
    max_step_ms: Annotated[
        float | None,
        Doc(
            "Longest step in milliseconds while streams run: prompts beside them are cut to what a step has "
            "time for, at least 32 tokens, as learned from the steps before; 0 = no bound.",
            ge=0,
            le=60_000,
            unset="100; 0 without chunked prefill",
        ),
    ] = None
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"],
        Doc(
            "Order of waiting requests: first come first served, or the request's priority (lower is earlier)."
        ),
    ] = "fcfs"
    enable_chunked_prefill: Annotated[
        bool, Doc("Cut long prompts over several steps, so that running requests go on.")
    ] = True
    scheduler_reserve_full_isl: Annotated[
        bool, Doc("Admit a request only when its whole prompt fits in free blocks.")
    ] = True
    watermark: Annotated[
        float,
        Doc("Share of the blocks that admission leaves free while something runs.", ge=0.0, lt=1.0),
    ] = 0.0
    async_scheduling: Annotated[
        bool, Doc("Plan the next step while this one runs (two steps in flight).")
    ] = True
    stream_interval: Annotated[int, Doc("Tokens in one streamed chunk; the first is sent at once.", ge=1)] = 1
