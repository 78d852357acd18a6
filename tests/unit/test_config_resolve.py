"""resolve is pure: tables of facts in, a plan or the nearest thing that works out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.config.asked import Asked
from octavo.config.budget import GIB, MIB, block_bytes, blocks_for
from octavo.config.facts import KVGroupFacts, MachineFacts, ModelFacts
from octavo.config.load import asked_from
from octavo.config.plan import PackCachePlan
from octavo.config.resolve import resolve
from octavo.errors import CapacityError, ConfigError, UserError

MACHINE = MachineFacts(
    cpus=2,
    cpus_reason="cores of the affinity mask",
    memory_bytes=16 * GIB,
    memory_reason="available on the host",
    isas=("generic", "avx2"),
    isa="avx2",
    isa_reason="the best that this CPU has",
    executors=("native",),
    entropy=1234,
)
# the figures of SmolLM2-135M as a Q4_1 file
MODEL = ModelFacts(
    path="m.gguf",
    name="m",
    format="gguf",
    architecture="llama",
    file_dtype="Q4_1",
    is_quantised=True,
    vocab_size=49_152,
    max_position=8_192,
    parameters=134_515_008,
    weight_bytes={
        "file": 98 * MIB, "f32": 513 * MIB, "f16": 257 * MIB, "bf16": 257 * MIB, "w8": 145 * MIB, "w4": 84 * MIB,
    },
    kv_groups=(KVGroupFacts(30, 0),),
    kv_layers_per_block=30,
    kv_heads=3,
    head_dim=64,
    arena_bytes_per_token=20_000,
    arena_bytes_per_row=200_000,
    arena_bytes_fixed=12 * MIB,
)  # fmt: skip


def asked(**values: Any) -> Asked:
    return asked_from(values)


def machine(**changes: Any) -> MachineFacts:
    return msgspec.structs.replace(MACHINE, **changes)


def model(**changes: Any) -> ModelFacts:
    return msgspec.structs.replace(MODEL, **changes)


def topic(rows: list[list[str]], name: str) -> list[str]:
    return next(row for row in rows if row[0] == name)


def test_defaults_of_a_small_model() -> None:
    got = resolve(asked(), MODEL, MACHINE)
    plan = got.engine
    assert (plan.executor.name, plan.executor.isa, plan.executor.num_threads) == ("native", "avx2", 2)
    assert (plan.executor.weights, plan.executor.optimization_level) == ("file", 2)
    assert (plan.cache.block_size, plan.cache.dtype, plan.cache.hash_algo) == (16, "bf16", "sha256")
    assert (plan.scheduler.max_num_batched_tokens, plan.scheduler.max_num_seqs) == (2048, 128)
    assert plan.scheduler.max_model_len == 8_192
    assert plan.scheduler.pipeline_depth == 2
    assert got.kv_bytes <= 4 * GIB
    assert got.server.served_names == ("m",)
    assert got.server.host == "127.0.0.1"


def test_nothing_in_the_plan_is_undecided() -> None:
    text = msgspec.json.encode(resolve(asked(), MODEL, MACHINE).engine).decode()
    assert "auto" not in text.replace("autom", "")
    assert "null" not in text


def test_the_same_in_gives_the_same_out() -> None:
    assert resolve(asked(), MODEL, MACHINE) == resolve(asked(), MODEL, MACHINE)


def test_every_row_of_the_table_has_a_reason() -> None:
    rows = resolve(asked(), MODEL, MACHINE).engine.table
    assert all(len(row) == 3 and all(row) for row in rows)
    topics = [row[0] for row in rows]
    assert len(topics) == len(set(topics))


@pytest.mark.parametrize(
    ("file_dtype", "values", "weights"),
    [
        ("Q4_1", {}, "file"),
        ("Q4_1", {"quantization": "none"}, "bf16"),
        ("Q4_1", {"quantization": "none", "dtype": "float32"}, "f32"),
        ("Q4_1", {"quantization": "w8"}, "w8"),
        ("BF16", {}, "bf16"),
        ("F16", {}, "f16"),
        ("F32", {}, "bf16"),
        ("F32", {"dtype": "float32"}, "f32"),
        ("BF16", {"dtype": "half"}, "f16"),
        ("BF16", {"quantization": "w4"}, "w4"),
    ],
)
def test_format_of_the_weights(file_dtype: str, values: dict[str, Any], weights: str) -> None:
    facts = model(file_dtype=file_dtype, is_quantised=file_dtype.startswith("Q"))
    assert resolve(asked(**values), facts, MACHINE).engine.executor.weights == weights


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ({}, "bf16"), ({"dtype": "float32"}, "f32"), ({"kv_cache_dtype": "f32"}, "f32"),
        ({"kv_cache_dtype": "bfloat16"}, "bf16"),
    ],
)  # fmt: skip
def test_dtype_of_the_kv_cache(values: dict[str, Any], dtype: str) -> None:
    assert resolve(asked(**values), MODEL, MACHINE).engine.cache.dtype == dtype


def test_narrow_kv_takes_blocks_of_32() -> None:
    qwen = model(kv_heads=2, kv_layers_per_block=24, kv_groups=(KVGroupFacts(24, 0),))
    assert resolve(asked(), qwen, MACHINE).engine.cache.block_size == 32
    assert resolve(asked(block_size=16), qwen, MACHINE).engine.cache.block_size == 16


# ---- memory (P092, P093, P094, P101, P102) ----------------------------------------------------------


def test_the_budget_adds_up() -> None:
    budget = dict(resolve(asked(), MODEL, MACHINE).budget)
    assert budget.pop("available") == sum(budget.values())
    assert all(size >= 0 for size in budget.values())


def test_kv_is_sized_from_need_when_need_is_small() -> None:
    got = resolve(asked(max_model_len=1024, max_num_seqs=2), MODEL, MACHINE)
    assert got.engine.cache.num_blocks == 2 * 1024 // 16


def test_a_context_that_does_not_fit_names_the_largest_that_does() -> None:
    small = machine(memory_bytes=GIB)
    wanted = asked(max_model_len=131_072)
    with pytest.raises(CapacityError) as caught:
        resolve(wanted, model(max_position=131_072), small)
    fits = int("".join(c for c in str(caught.value.fix).partition("(")[0] if c.isdigit()))
    facts = model(max_position=131_072)
    assert resolve(asked(max_model_len=fits), facts, small).engine.scheduler.max_model_len == fits
    with pytest.raises(CapacityError):
        resolve(asked(max_model_len=fits + 16), facts, small)
    assert resolve(asked(max_model_len=-1), facts, small).engine.scheduler.max_model_len == fits


def test_unset_context_shrinks_with_a_reason_and_strict_refuses_that() -> None:
    small, facts = machine(memory_bytes=GIB), model(max_position=131_072)
    got = resolve(asked(), facts, small)
    assert got.engine.scheduler.max_model_len < 131_072
    assert "fallback" in topic(got.engine.table, "max model len")[2]
    with pytest.raises(ConfigError, match="strict"):
        resolve(asked(strict=True), facts, small)
    resolve(asked(strict=True, max_model_len="auto"), facts, small)


def test_more_context_than_the_model_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="8192"):
        resolve(asked(max_model_len=8_193), MODEL, MACHINE)


def test_weights_that_do_not_fit_name_a_format_that_does() -> None:
    facts = model(
        weight_bytes={"bf16": 3 * GIB, "w8": int(1.6 * GIB), "w4": GIB}, file_dtype="BF16", is_quantised=False
    )
    with pytest.raises(CapacityError, match="--quantization w8"):
        resolve(asked(), facts, machine(memory_bytes=3 * GIB))


def test_kv_memory_as_asked() -> None:
    size = block_bytes(MODEL, 16, "bf16")
    got = resolve(asked(kv_cache_memory_bytes=600 * size), MODEL, MACHINE)
    assert got.engine.cache.num_blocks == 600
    with pytest.raises(CapacityError, match="kv-cache-memory-bytes"):
        resolve(asked(kv_cache_memory_bytes=64 * GIB), MODEL, MACHINE)
    assert (
        resolve(asked(num_gpu_blocks_override=33, max_model_len=512), MODEL, MACHINE).engine.cache.num_blocks
        == 33
    )


def test_a_window_needs_fewer_blocks() -> None:
    full, sliding = (KVGroupFacts(3, 0),), (KVGroupFacts(3, 512),)
    assert blocks_for(full, 8_192, 16, 256) == 512
    assert blocks_for(sliding, 8_192, 16, 256) == (512 + 256) // 16 + 1
    assert blocks_for(sliding, 100, 16, 256) == 7


@settings(max_examples=50)
@given(
    memory=st.integers(min_value=400 * MIB, max_value=64 * GIB),
    max_len=st.sampled_from([None, -1, 16, 1_000, 8_192]),
    seqs=st.sampled_from([None, 1, 64, 1024]),
)
def test_a_plan_always_fits_and_always_holds_one_full_request(
    memory: int, max_len: int | None, seqs: int | None
) -> None:
    try:
        got = resolve(asked(max_model_len=max_len, max_num_seqs=seqs), MODEL, machine(memory_bytes=memory))
    except UserError as error:
        assert error.fix
        return
    assert got.budget["free"] >= 0
    assert got.max_concurrency >= 1
    assert got.engine.scheduler.max_model_len <= got.largest_len


# ---- cores, executors, steps ------------------------------------------------------------------------


def test_threads_never_pass_what_the_machine_allows() -> None:
    assert resolve(asked(threads=1), MODEL, MACHINE).engine.executor.num_threads == 1
    with pytest.raises(ConfigError, match="--threads 2"):
        resolve(asked(threads=3), MODEL, MACHINE)


def test_an_instruction_set_that_the_cpu_lacks_is_refused() -> None:
    assert resolve(asked(isa="generic"), MODEL, MACHINE).engine.executor.isa == "generic"
    with pytest.raises(ConfigError, match="generic, avx2"):
        resolve(asked(isa="avx512"), MODEL, MACHINE)


def test_torch_must_be_installed() -> None:
    with pytest.raises(ConfigError, match=r"pip install torch=="):
        resolve(asked(executor="torch"), MODEL, MACHINE)
    plan = resolve(asked(executor="torch"), MODEL, machine(executors=("native", "torch"))).engine
    assert (plan.executor.name, plan.executor.isa) == ("torch", "torch")


def test_eager_is_level_zero() -> None:
    assert resolve(asked(enforce_eager=True), MODEL, MACHINE).engine.executor.optimization_level == 0


def test_limits_of_a_step_agree() -> None:
    with pytest.raises(ConfigError, match="max-num-seqs"):
        resolve(asked(max_num_seqs=64, max_num_batched_tokens=32), MODEL, MACHINE)
    got = resolve(asked(max_num_batched_tokens=32), MODEL, MACHINE).engine.scheduler
    assert (got.max_num_batched_tokens, got.max_num_seqs) == (32, 32)


def test_without_chunks_a_step_holds_the_longest_prompt() -> None:
    got = resolve(asked(enable_chunked_prefill=False), MODEL, MACHINE).engine.scheduler
    assert got.max_num_batched_tokens >= got.max_model_len
    with pytest.raises(ConfigError, match="chunked"):
        resolve(asked(enable_chunked_prefill=False, max_num_batched_tokens=512), MODEL, MACHINE)


def test_the_long_prompt_threshold_is_within_the_context() -> None:
    with pytest.raises(ConfigError, match="threshold"):
        resolve(asked(long_prefill_token_threshold=9_000), MODEL, MACHINE)


@pytest.mark.parametrize(
    ("values", "bound_ms", "choice"),
    [
        ({}, 100.0, "100 ms"),
        ({"max_step_ms": 40}, 40.0, "40 ms"),
        ({"max_step_ms": 0}, 0.0, "not bounded"),
        ({"enable_chunked_prefill": False}, 0.0, "not bounded"),
        ({"enable_chunked_prefill": False, "max_step_ms": 0}, 0.0, "not bounded"),
    ],
)
def test_the_time_of_a_step_is_bounded(values: dict[str, Any], bound_ms: float, choice: str) -> None:
    plan = resolve(asked(**values), MODEL, MACHINE).engine
    assert plan.scheduler.max_step_ms == bound_ms
    (row,) = [row for row in plan.table if row[0] == "step time"]
    assert choice in row[1]


def test_a_bounded_step_needs_chunked_prefill() -> None:
    with pytest.raises(ConfigError, match="--max-step-ms is 50, but without chunked prefill"):
        resolve(asked(enable_chunked_prefill=False, max_step_ms=50), MODEL, MACHINE)


def test_the_seed_is_drawn_at_the_start_unless_given() -> None:
    for asked, seed, reason in (({}, 1234, "drawn"), ({"seed": 0}, 0, "--seed")):
        plan = resolve(asked_from(asked), MODEL, MACHINE).engine
        (row,) = [row for row in plan.table if row[0] == "seed"]
        assert plan.seed == seed
        assert row[1] == str(seed)
        assert reason in row[2]


def test_a_threshold_needs_chunked_prefill() -> None:
    with pytest.raises(ConfigError, match="without chunked prefill a prompt is never cut"):
        resolve(
            asked(enable_chunked_prefill=False, long_prefill_token_threshold=5, max_num_batched_tokens=8192),
            MODEL,
            MACHINE,
        )


# ---- kv events --------------------------------------------------------------------------------------


def test_the_row_of_kv_events_keeps_its_choice_short() -> None:
    given = {"enable_kv_cache_events": True, "replay_endpoint": "tcp://127.0.0.1:5558"}
    row = topic(resolve(asked(kv_events_config=given), MODEL, MACHINE).engine.table, "kv events")
    assert row[1] == "zmq"
    assert "tcp://127.0.0.1:5557, replay at tcp://127.0.0.1:5558" in row[2]


def test_packed_weights_are_kept_where_asked() -> None:
    facts = machine(pack_cache_dir="/cache/packed", pack_cache_reason="the default")

    def plan(**values: Any) -> PackCachePlan:
        return resolve(asked(**values), MODEL, facts).engine.executor.pack_cache

    assert plan() == PackCachePlan(folder="/cache/packed", max_bytes=32 * GIB, reason="the default")
    assert plan(pack_cache=False) == PackCachePlan(reason="--no-pack-cache")
    assert plan(pack_cache_dir="/other", pack_cache_bytes="2G") == PackCachePlan(
        folder="/other", max_bytes=2 * GIB, reason="--pack-cache-dir"
    )
    facts = machine(pack_cache_reason="OCTAVO_PACK_CACHE is off")
    assert plan().folder == ""
    assert plan(pack_cache_dir="/other").folder == "/other"
    facts = machine(executors=("native", "torch"))
    assert plan(executor="torch") == PackCachePlan(reason="the torch executor packs nothing")
    for values in (
        {"executor": "torch", "pack_cache_dir": "/x"},
        {"pack_cache": False, "pack_cache_bytes": 5},
    ):
        with pytest.raises(ConfigError, match="--pack-cache-"):
            plan(**values)
