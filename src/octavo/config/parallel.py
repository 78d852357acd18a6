"""What is asked about cores, processes and ranks. One rank for now: any other size is refused, by name."""

from __future__ import annotations

from typing import Annotated

import msgspec

from octavo.config.option import Doc


class ParallelAsked(msgspec.Struct, frozen=True, kw_only=True):
    threads: Annotated[
        int | None,
        Doc(
            "Threads of the native executor; never more than the affinity mask and the cgroup quota allow.",
            short="-t",
            ge=1,
            unset="all of those",
        ),
    ] = None
    tensor_parallel_size: Annotated[
        int, Doc("Ranks that share each layer. Only 1 so far.", short="-tp", ge=1)
    ] = 1
    pipeline_parallel_size: Annotated[
        int, Doc("Ranks that share the stack of layers. Only 1 so far.", short="-pp", ge=1)
    ] = 1
    data_parallel_size: Annotated[int, Doc("Replicas of the engine. Only 1 so far.", short="-dp", ge=1)] = 1
    decode_context_parallel_size: Annotated[
        int, Doc("Ranks that share a request's KV cache. Only 1 so far.", short="-dcp", ge=1)
    ] = 1
    prefill_context_parallel_size: Annotated[
        int, Doc("Ranks that share a prompt. Only 1 so far.", short="-pcp", ge=1)
    ] = 1
    nnodes: Annotated[int, Doc("Machines that share the work. Only 1 so far.", short="-n", ge=1)] = 1
    api_server_count: Annotated[
        int, Doc("API processes that share the address and the engine.", short="-asc", ge=1, le=64)
    ] = 1
