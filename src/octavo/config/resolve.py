"""`resolve`: from what is asked, and facts of model and machine, to a plan. Pure; touches nothing.

Each choice leaves a row [topic, choice, reason] in the plan's table (law 3). A choice that is worse
than what a user would expect is a *fallback*: it is marked so, and --strict makes it an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from octavo import env
from octavo.config.asked import Asked
from octavo.config.budget import (
    KV_CAP_BYTES,
    KV_SHARE_OF_LEFT,
    PROCESS_BYTES,
    RESERVE_FRAC,
    Budget,
    block_bytes,
    blocks_for,
    fmt,
    largest_len,
)
from octavo.config.facts import MachineFacts, ModelFacts
from octavo.config.kv_events import KVEventsPlan, kv_events_plan
from octavo.config.plan import (
    CachePlan,
    EnginePlan,
    ExecutorPlan,
    PackCachePlan,
    SchedulerPlan,
    ServerPlan,
)
from octavo.config.structured import StructuredPlan, structured_plan
from octavo.errors import CapacityError, ConfigError

DEFAULT_BATCHED_TOKENS = 2048
DEFAULT_SEQS = 128
DEFAULT_STEP_MS = 100.0
DEFAULT_PACK_CACHE_BYTES = 32 << 30
NARROW_PIECE_BYTES = 12 * 1024  # below it a block's piece of one layer reads slowly (measured)


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """The whole plan. `kv_bytes`, `max_concurrency` and the budget are for tables and `octavo plan`."""

    engine: EnginePlan
    server: ServerPlan
    budget: dict[str, int]
    kv_bytes: int
    max_concurrency: float  # requests of the full context that fit at once
    largest_len: int  # largest context that one request could have here


@dataclass
class _Table:
    """Rows of what was chosen and why. `fallback` raises under --strict."""

    strict: bool
    rows: list[list[str]] = field(default_factory=list)

    def add(self, topic: str, choice: object, reason: str) -> None:
        self.rows.append([topic, str(choice), reason])

    def fallback(self, topic: str, choice: object, reason: str) -> None:
        if self.strict:
            raise ConfigError(
                f"--strict: {topic} would be {choice} ({reason})", fix="ask for it, or drop --strict"
            )
        self.add(topic, choice, f"fallback: {reason}")


def resolve(asked: Asked, model: ModelFacts, machine: MachineFacts) -> Resolved:
    """Every choice made. Raises ConfigError or CapacityError with the nearest value that works."""
    table = _Table(asked.model.strict)
    table.add(
        "model",
        model.name,
        f"{model.architecture}, {model.parameters / 1e6:,.0f} M parameters, {model.format}",
    )
    executor = _executor(asked, machine, table, _weights(asked, model, table))
    kv_dtype = _kv_dtype(asked, table)
    block_size = _block_size(asked, model, kv_dtype, table)
    max_tokens, max_seqs = _step_limits(asked, model, table)
    budget = _budget(model, machine, executor.weights, max_tokens, max_seqs)
    room = _kv_room(asked, model, budget, block_size, kv_dtype)
    max_len = _max_len(asked, model, room, block_size, kv_dtype, max_tokens, table)
    if not asked.scheduler.enable_chunked_prefill and asked.scheduler.long_prefill_token_threshold:
        raise ConfigError(
            f"--long-prefill-token-threshold is {asked.scheduler.long_prefill_token_threshold}, but without chunked "
            "prefill a prompt is never cut",
            fix="drop one of the two",
        )
    if not asked.scheduler.enable_chunked_prefill and max_tokens < max_len:
        raise ConfigError(
            f"without chunked prefill a prompt of {max_len:,} tokens must fit in one step, but "
            f"--max-num-batched-tokens is {max_tokens:,}",
            fix=f"use --max-num-batched-tokens {max_len}, or a smaller --max-model-len",
        )
    max_step_ms = _max_step_ms(asked, table)
    num_blocks = _num_blocks(asked, model, room, max_len, max_seqs, max_tokens, block_size, kv_dtype, table)
    kv_bytes = num_blocks * block_bytes(model, block_size, kv_dtype)
    per_request = blocks_for(model.kv_groups, max_len, block_size, max_tokens)
    _features(asked, table)
    numbers = {
        "available": budget.total,
        "weights": budget.weights,
        "kv": kv_bytes,
        "arena": budget.arena,
        "processes": budget.process,
        "reserve": budget.reserve,
        "free": budget.left - kv_bytes,
    }
    table.add("memory", fmt(budget.total - numbers["free"]), _sum_text(numbers, machine))
    engine = EnginePlan(
        model=model.path,
        executor=executor,
        cache=CachePlan(
            block_size=block_size,
            num_blocks=num_blocks,
            dtype=kv_dtype,
            enable_prefix_caching=asked.cache.enable_prefix_caching,
            hash_algo=asked.cache.prefix_caching_hash_algo,
            events=_kv_events(asked, table),
        ),
        scheduler=_scheduler(asked, model, max_seqs, max_tokens, max_len, max_step_ms),
        seed=_seed(asked, machine, table),
        max_logprobs=asked.model.max_logprobs,
        logprobs_mode=asked.model.logprobs_mode,
        vocab_size=model.vocab_size,
        tokenizer=asked.model.tokenizer or "",
        structured=_structured(asked, table),
        strict=asked.model.strict,
        table=table.rows,
    )
    return Resolved(
        engine=engine,
        server=_server(asked, model),
        budget=numbers,
        kv_bytes=kv_bytes,
        max_concurrency=num_blocks / per_request,
        largest_len=largest_len(model, room, block_size, kv_dtype, max_tokens),
    )


def _structured(asked: Asked, table: _Table) -> StructuredPlan:
    plan = structured_plan(asked.model.structured_outputs_config)
    space = "bounded white space" if plan.any_whitespace else "compact JSON"
    extra = "" if plan.additional_properties else ", no properties but the named ones"
    table.add("structured output", plan.backend, f"{space}{extra}; --structured-outputs-config")
    return plan


def _seed(asked: Asked, machine: MachineFacts, table: _Table) -> int:
    given = asked.model.seed
    seed = machine.entropy if given is None else given
    table.add("seed", seed, "drawn at this start; --seed repeats it" if given is None else "--seed")
    return seed


def _sum_text(numbers: dict[str, int], machine: MachineFacts) -> str:
    notes = {"kv": " (taken only as it is used)"}
    parts = [
        f"{name} {fmt(numbers[name])}{notes.get(name, '')}"
        for name in ("weights", "kv", "arena", "processes", "reserve")
    ]
    return f"{' + '.join(parts)}; {fmt(numbers['available'])} to take ({machine.memory_reason})"


def _weights(asked: Asked, model: ModelFacts, table: _Table) -> str:
    """The format of the matrices, by the names of ExecutorPlan.weights."""
    by_file = {"F32": "bf16", "F16": "f16", "BF16": "bf16"}
    by_flag = {"bfloat16": "bf16", "half": "f16", "float16": "f16", "float": "f32", "float32": "f32"}
    wanted = asked.model.quantization
    plain = by_flag.get(asked.model.dtype) or by_file.get(model.file_dtype, "bf16")
    choice: str
    if wanted in ("w8", "w4"):
        choice, reason = wanted, "--quantization"
    elif wanted is None and model.is_quantised:
        choice, reason = "file", f"the file's own lattice, mostly {model.file_dtype}"
    else:
        choice = plain
        asked_dtype = asked.model.dtype != "auto"
        reason = "--dtype" if asked_dtype else f"the file is {model.file_dtype}"
        if model.is_quantised:
            reason += ", dequantised by --quantization none"
    table.add("weights", choice, f"{reason}; {fmt(model.weight_bytes[choice])}")
    return choice


def _executor(asked: Asked, machine: MachineFacts, table: _Table, weights: str) -> ExecutorPlan:
    name = asked.model.executor
    if name not in machine.executors:
        raise ConfigError(
            f"--executor {name} is not {'installed' if name == 'torch' else 'built for this Python'}; "
            f"here: {', '.join(machine.executors) or 'none'}",
            fix=env.pip_install("torch==2.13.0")
            if name == "torch"
            else "build the native module: ./run setup",
        )
    level = 0 if asked.model.enforce_eager else asked.model.optimization_level
    threads = asked.parallel.threads or machine.cpus
    if threads > machine.cpus:
        raise ConfigError(
            f"--threads is {threads}; this process may use {machine.cpus} ({machine.cpus_reason})",
            fix=f"use --threads {machine.cpus} or fewer",
        )
    isa = "torch"
    if name == "native":
        isa = asked.model.isa if asked.model.isa != "auto" else machine.isa
        if isa not in machine.isas:
            raise ConfigError(
                f"instruction set {isa} does not run on this CPU",
                fix=f"it has {', '.join(machine.isas)}; leave --isa (or OCTAVO_ISA) out",
            )
        table.add("isa", isa, "--isa" if asked.model.isa != "auto" else machine.isa_reason)
    elif asked.model.isa != "auto":
        raise ConfigError("--isa acts only with --executor native", fix="leave --isa out")
    level = 2 if level is None else level
    table.add("executor", f"{name} -O{level}", "--executor" if name != "native" else "the default on CPUs")
    table.add("threads", threads, "--threads" if asked.parallel.threads else machine.cpus_reason)
    return ExecutorPlan(
        name=name,
        isa=isa,
        num_threads=threads,
        weights=weights,
        optimization_level=level,
        pack_cache=_pack_cache(asked, machine),
    )


def _pack_cache(asked: Asked, machine: MachineFacts) -> PackCachePlan:
    """No row: whether it is a hit, only the executor knows."""
    model = asked.model
    details = [
        f"--{name.replace('_', '-')}"
        for name in ("pack_cache_dir", "pack_cache_bytes")
        if getattr(model, name) is not None
    ]
    if model.executor != "native":
        if details:
            raise ConfigError(f"{details[0]} acts only with --executor native", fix=f"leave {details[0]} out")
        return PackCachePlan(reason=f"the {model.executor} executor packs nothing")
    if not model.pack_cache:
        if details:
            raise ConfigError(
                f"--no-pack-cache switches off what {details[0]} is about", fix="leave one of them out"
            )
        return PackCachePlan(reason="--no-pack-cache")
    folder, reason = machine.pack_cache_dir, machine.pack_cache_reason
    if model.pack_cache_dir:
        folder, reason = model.pack_cache_dir, "--pack-cache-dir"
    return PackCachePlan(
        folder=folder, max_bytes=model.pack_cache_bytes or DEFAULT_PACK_CACHE_BYTES, reason=reason
    )


def _kv_dtype(asked: Asked, table: _Table) -> str:
    given = asked.cache.kv_cache_dtype
    if given != "auto":
        choice, reason = {"b": "bf16", "f": "f32"}[given[0]], "--kv-cache-dtype"
    elif asked.model.dtype in ("float", "float32"):
        choice, reason = "f32", "--dtype float32"
    else:
        choice, reason = "bf16", "the default"
    table.add("kv dtype", choice, reason)
    return choice


def _block_size(asked: Asked, model: ModelFacts, kv_dtype: str, table: _Table) -> int:
    if asked.cache.block_size is not None:
        table.add("block size", asked.cache.block_size, "--block-size")
        return asked.cache.block_size
    piece = block_bytes(model, 16, kv_dtype) // model.kv_layers_per_block
    size = 32 if piece < NARROW_PIECE_BYTES else 16
    table.add(
        "block size",
        size,
        f"{fmt(piece * size // 16)} a layer" + (", as 16 would read slowly" * (size == 32)),
    )
    return size


def _step_limits(asked: Asked, model: ModelFacts, table: _Table) -> tuple[int, int]:
    given_tokens, given_seqs = asked.scheduler.max_num_batched_tokens, asked.scheduler.max_num_seqs
    tokens = given_tokens or DEFAULT_BATCHED_TOKENS
    if given_tokens is None and not asked.scheduler.enable_chunked_prefill:
        wanted = asked.model.max_model_len
        tokens = max(tokens, wanted if wanted and wanted > 0 else model.max_position)
    if given_tokens is None and given_seqs is not None:
        tokens = max(tokens, given_seqs)
    seqs = given_seqs or min(DEFAULT_SEQS, tokens)
    if seqs > tokens:
        raise ConfigError(
            f"--max-num-seqs {seqs} is more than --max-num-batched-tokens {tokens}: a step gives each request a token",
            fix=f"use --max-num-seqs {tokens}, or more batched tokens",
        )
    table.add("step", f"{tokens} tokens, {seqs} requests", "--max-num-batched-tokens, --max-num-seqs")
    return tokens, seqs


def _budget(model: ModelFacts, machine: MachineFacts, weights: str, max_tokens: int, max_seqs: int) -> Budget:
    budget = Budget(
        total=machine.memory_bytes,
        weights=model.weight_bytes[weights],
        arena=max_tokens * model.arena_bytes_per_token
        + max_seqs * model.arena_bytes_per_row
        + model.arena_bytes_fixed,
        process=PROCESS_BYTES,
        reserve=int(machine.memory_bytes * RESERVE_FRAC),
    )
    if budget.left <= 0:
        smaller = [
            n
            for n in ("w8", "w4")
            if model.weight_bytes.get(n, budget.weights) < budget.weights + budget.left
        ]
        fix = (
            f"use --quantization {smaller[0]}"
            if smaller
            else "use a smaller model or a machine with more memory"
        )
        raise CapacityError(
            f"the weights take {fmt(budget.weights)} and work space {fmt(budget.arena + budget.process)}, but only "
            f"{fmt(machine.memory_bytes)} can be taken ({machine.memory_reason})",
            fix=fix,
        )
    return budget


def _kv_room(asked: Asked, model: ModelFacts, budget: Budget, block_size: int, kv_dtype: str) -> int:
    """Most bytes that the KV cache may take."""
    size = block_bytes(model, block_size, kv_dtype)
    given = asked.cache.kv_cache_memory_bytes
    if asked.cache.num_gpu_blocks_override is not None:
        given = asked.cache.num_gpu_blocks_override * size
    if given is None:
        return budget.left
    if given > budget.left:
        raise CapacityError(
            f"the KV cache is asked to take {fmt(given)}, but {fmt(budget.left)} are left after the weights",
            fix=f"use --kv-cache-memory-bytes {budget.left // size * size} or less",
        )
    if given < size:
        raise CapacityError(
            f"--kv-cache-memory-bytes is {given:,}; one block takes {size:,}", fix="give more"
        )
    return given


def _max_len(
    asked: Asked, model: ModelFacts, room: int, block_size: int, kv_dtype: str, max_tokens: int, table: _Table
) -> int:
    given = asked.model.max_model_len
    if given is not None and given > model.max_position:
        raise ConfigError(
            f"--max-model-len is {given:,}; this model takes {model.max_position:,}",
            fix=f"use --max-model-len {model.max_position} or less",
        )
    fits = largest_len(model, room, block_size, kv_dtype, max_tokens)
    if fits < 1 or (given is not None and given > fits):
        need = blocks_for(model.kv_groups, given if given and given > 0 else 1, block_size, max_tokens)
        need_bytes = need * block_bytes(model, block_size, kv_dtype)
        raise CapacityError(
            f"a context of {max(given or 1, 1):,} tokens needs {fmt(need_bytes)} of KV cache, "
            f"but {fmt(room)} can be had",
            fix=f"use --max-model-len {fits} (or auto)"
            if fits
            else "free some memory, or ask for more KV memory",
        )
    if given is not None and given > 0:
        table.add("max model len", given, "--max-model-len")
        return given
    if fits < model.max_position:
        reason = f"the model takes {model.max_position:,}, the KV memory {fits:,}"
        (table.add if given == -1 else table.fallback)("max model len", fits, reason)
    else:
        table.add("max model len", fits, "the model's context")
    return fits


def _num_blocks(
    asked: Asked,
    model: ModelFacts,
    room: int,
    max_len: int,
    max_seqs: int,
    max_tokens: int,
    block_size: int,
    kv_dtype: str,
    table: _Table,
) -> int:
    size = block_bytes(model, block_size, kv_dtype)
    one = blocks_for(model.kv_groups, max_len, block_size, max_tokens)
    if asked.cache.num_gpu_blocks_override is not None:
        blocks, reason = asked.cache.num_gpu_blocks_override, "--num-gpu-blocks-override"
    elif asked.cache.kv_cache_memory_bytes is not None:
        blocks, reason = room // size, "--kv-cache-memory-bytes"
    else:
        cap = max(int(min(KV_CAP_BYTES, KV_SHARE_OF_LEFT * room)) // size, one)
        need = max_seqs * one
        blocks = min(need, cap)
        reason = f"{max_seqs} requests of {max_len:,} tokens"
        if blocks < need:
            reason = f"{fmt(blocks * size)} cap; {reason} would take {fmt(need * size)}"
    table.add(
        "kv cache", f"{blocks} blocks, {blocks * block_size // max(1, len(model.kv_groups)):,} tokens", reason
    )
    return blocks


def _features(asked: Asked, table: _Table) -> None:
    caching = asked.cache.enable_prefix_caching
    table.add(
        "prefix cache", asked.cache.prefix_caching_hash_algo if caching else "off", "--enable-prefix-caching"
    )
    depth = 2 if asked.scheduler.async_scheduling else 1
    table.add(
        "scheduling", f"{asked.scheduler.scheduling_policy}, {depth} steps in flight", "--scheduling-policy"
    )


def _kv_events(asked: Asked, table: _Table) -> KVEventsPlan:
    given = asked.cache.kv_events_config
    plan = kv_events_plan(given, has_prefix_cache=asked.cache.enable_prefix_caching)
    if given:
        replay = f", replay at {plan.replay_endpoint}" if plan.replay_endpoint else ""
        place = f"{plan.endpoint}{replay}; " if plan.is_on else ""
        table.add("kv events", plan.publisher if plan.is_on else "off", f"{place}--kv-events-config")
    return plan


def _max_step_ms(asked: Asked, table: _Table) -> float:
    given, chunked = asked.scheduler.max_step_ms, asked.scheduler.enable_chunked_prefill
    if given and not chunked:
        raise ConfigError(
            f"--max-step-ms is {given:g}, but without chunked prefill a prompt is never cut",
            fix="drop one of the two",
        )
    if given is not None:
        bound_ms, reason = given, "--max-step-ms"
    elif chunked:
        bound_ms, reason = DEFAULT_STEP_MS, "the default; --max-step-ms"
    else:
        bound_ms, reason = 0.0, "chunked prefill is off"
    choice = f"{bound_ms:g} ms while streams run" if bound_ms else "not bounded"
    table.add("step time", choice, reason)
    return bound_ms


def _scheduler(
    asked: Asked, model: ModelFacts, max_seqs: int, max_tokens: int, max_len: int, max_step_ms: float
) -> SchedulerPlan:
    threshold = asked.scheduler.long_prefill_token_threshold
    if threshold > max_len:
        raise ConfigError(
            f"--long-prefill-token-threshold is {threshold:,}, more than the longest prompt ({max_len:,})",
            fix="give less, or leave it out",
        )
    return SchedulerPlan(
        max_num_seqs=max_seqs,
        max_num_batched_tokens=max_tokens,
        max_model_len=max_len,
        model_max_len=model.max_position,
        policy=asked.scheduler.scheduling_policy,
        long_prefill_token_threshold=threshold,
        max_step_ms=max_step_ms,
        reserve_full_prompt=asked.scheduler.scheduler_reserve_full_isl,
        watermark_frac=asked.scheduler.watermark,
        pipeline_depth=2 if asked.scheduler.async_scheduling else 1,
        enable_chunked_prefill=asked.scheduler.enable_chunked_prefill,
    )


def _server(asked: Asked, model: ModelFacts) -> ServerPlan:
    server = asked.server
    return ServerPlan(
        host=server.host,
        port=server.port,
        uds=server.uds or "",
        api_keys=server.api_key,
        served_names=asked.model.served_model_name or (model.name,),
        model=asked.model.model or model.path,
        chat_template_content_format=server.chat_template_content_format,
        trust_request_chat_template=server.trust_request_chat_template,
        default_chat_template_kwargs=server.default_chat_template_kwargs,
        response_role=server.response_role,
        tool_call_parser=server.tool_call_parser or "",
        reasoning_parser=server.reasoning_parser or "",
        auto_tool_choice=server.enable_auto_tool_choice,
        tool_strict_level=server.tool_strict_level,
        hides_tools_on_none=server.exclude_tools_when_tool_choice_none,
        reasoning_alias=server.reasoning_content_alias,
        response_store_size=server.response_store_size,
        response_store_bytes=server.response_store_bytes,
        response_store_seconds=server.response_store_seconds,
        max_background_responses=server.max_background_responses,
        root_path=server.root_path or "",
        allow_credentials=server.allow_credentials,
        allowed_origins=server.allowed_origins,
        allowed_methods=server.allowed_methods,
        allowed_headers=server.allowed_headers,
        uvicorn_log_level=server.uvicorn_log_level,
        access_log=not server.disable_uvicorn_access_log,
        request_id_headers=server.enable_request_id_headers,
        drain_timeout_s=float(server.shutdown_timeout),
        max_engine_restarts=server.max_engine_restarts,
        http_timeout_keep_alive_s=server.http_timeout_keep_alive,
        http_timeout_receive_s=float(server.http_timeout_receive),
        stream_interval=asked.scheduler.stream_interval,
        max_queued_requests=_bound(asked.scheduler.max_num_queued_reqs, asked.parallel.api_server_count),
        max_queued_tokens=_bound(asked.scheduler.max_num_queued_tokens, asked.parallel.api_server_count),
        api_server_count=asked.parallel.api_server_count,
        log_stats=not asked.observability.disable_log_stats,
        log_requests=asked.observability.enable_log_requests,
    )


def _bound(value: int | None, num_processes: int) -> int:
    """Each API process takes its share of what the server may hold: they do not know of each other's requests."""
    return -1 if value is None else -(-value // num_processes)
