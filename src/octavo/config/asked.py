"""Everything that can be asked, in one frozen struct, and what may not be asked together.

Nothing here is resolved: None and "auto" mean "choose"; `config.resolve` does.
"""

from __future__ import annotations

import msgspec

from octavo.config.cache import CacheAsked
from octavo.config.model import ModelAsked
from octavo.config.observability import ObservabilityAsked
from octavo.config.option import Option, options_of
from octavo.config.parallel import ParallelAsked
from octavo.config.scheduler import SchedulerAsked
from octavo.config.server import ServerAsked
from octavo.errors import ConfigError
from octavo.util.lines import one_line

TOPICS: dict[str, type[msgspec.Struct]] = {
    "model": ModelAsked,
    "cache": CacheAsked,
    "scheduler": SchedulerAsked,
    "parallel": ParallelAsked,
    "server": ServerAsked,
    "observability": ObservabilityAsked,
}
ENGINE_TOPICS = ("model", "cache", "scheduler", "parallel")  # what an engine without HTTP can use


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    model: ModelAsked = msgspec.field(default_factory=ModelAsked)
    cache: CacheAsked = msgspec.field(default_factory=CacheAsked)
    scheduler: SchedulerAsked = msgspec.field(default_factory=SchedulerAsked)
    parallel: ParallelAsked = msgspec.field(default_factory=ParallelAsked)
    server: ServerAsked = msgspec.field(default_factory=ServerAsked)
    observability: ObservabilityAsked = msgspec.field(default_factory=ObservabilityAsked)


def options(topics: tuple[str, ...] = tuple(TOPICS)) -> dict[str, Option]:
    """Options by field name, in the order of the topics. Names are unique over all topics."""
    return {o.name: o for topic in topics for o in options_of(TOPICS[topic], topic)}


def verify(asked: Asked) -> None:
    """Raises ConfigError for values that contradict each other or cannot act."""
    for option in options_of(ParallelAsked, "parallel"):
        if option.name in ("threads", "api_server_count"):
            continue
        if (value := getattr(asked.parallel, option.name)) != 1:
            raise ConfigError(
                f"{option.flag} is {value}; this version runs on 1",
                fix=f"leave {option.flag} out; one engine uses all cores by itself",
            )
    if asked.model.enforce_eager and asked.model.optimization_level not in (None, 0):
        raise ConfigError(
            f"--enforce-eager is -O0, but -O{asked.model.optimization_level} is given too",
            fix="leave one of them out",
        )
    if asked.cache.block_size is not None and asked.cache.block_size % 16:
        raise ConfigError(
            f"--block-size is {asked.cache.block_size}; it must be a multiple of 16", fix="use 16 or 32"
        )
    if asked.cache.kv_cache_memory_bytes is not None and asked.cache.num_gpu_blocks_override is not None:
        raise ConfigError(
            "--kv-cache-memory-bytes and --num-gpu-blocks-override both set the size of the KV cache",
            fix="leave one of them out",
        )
    for name in asked.model.served_model_name:
        if not name or name != name.strip() or name != one_line(name):
            raise ConfigError(
                f"--served-model-name has the name {name!r}",
                fix="give names that a client can send: not empty, no white space around them, one line each",
            )
    _verify_server(asked.server)


def _verify_server(server: ServerAsked) -> None:
    if server.allow_credentials and not server.allowed_origins:
        raise ConfigError(
            "--allow-credentials acts only together with --allowed-origins",
            fix="name the origins that may send credentials",
        )
    default = ServerAsked()
    if server.uds is not None and (server.host, server.port) != (default.host, default.port):
        raise ConfigError(
            "--uds listens on a Unix socket, so --host and --port cannot act", fix="leave one side out"
        )
    if any(not key for key in server.api_key):
        raise ConfigError("--api-key is empty", fix="give the key, or leave the flag out")
