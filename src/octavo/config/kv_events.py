"""What --kv-events-config may hold, and the plan that follows from it. Opens no socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from octavo.errors import ConfigError

FLAG = "--kv-events-config"
SCHEMES = ("tcp://", "ipc://")
Count = Annotated[int, msgspec.Meta(ge=0)]


class KVEventsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where the engine tells which blocks its prefix cache holds."""

    publisher: str = ""  # "" = nowhere | "zmq"
    endpoint: str = "tcp://127.0.0.1:5557"
    replay_endpoint: str = ""  # "" = past messages cannot be asked for
    buffer_steps: int = 10_000  # messages kept for the replay
    hwm: int = 100_000  # messages that wait for a slow subscriber before it misses some
    max_queue_size: int = 100_000  # batches that wait for the publisher's thread
    topic: str = ""

    @property
    def is_on(self) -> bool:
        return bool(self.publisher)


class _Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enable_kv_cache_events: bool | None = None
    publisher: Literal["null", "zmq"] | None = None
    endpoint: str | None = None
    replay_endpoint: str | None = None
    buffer_steps: Count | None = None
    hwm: Count | None = None
    max_queue_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    topic: str | None = None


def kv_events_plan(given: Mapping[str, Any], *, has_prefix_cache: bool) -> KVEventsPlan:
    """Raises ConfigError for keys that do not exist, values out of range, and what cannot act."""
    try:
        asked = msgspec.convert(dict(given), _Asked)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{FLAG}: {error}",
            fix=f"its keys are {', '.join(_Asked.__struct_fields__)} (see docs/kv-events.md)",
        ) from None
    for name in ("endpoint", "replay_endpoint"):
        address = getattr(asked, name)
        if address and not address.startswith(SCHEMES):
            raise ConfigError(
                f"{FLAG}: {name} is {address!r}; it must begin with {' or '.join(SCHEMES)}",
                fix="for example tcp://127.0.0.1:5557",
            )
    if asked.enable_kv_cache_events is None and given:
        raise ConfigError(
            f"{FLAG} has {', '.join(given)}, which cannot act without enable_kv_cache_events",
            fix="add enable_kv_cache_events: true",
        )
    if not asked.enable_kv_cache_events or asked.publisher == "null":
        return KVEventsPlan()
    if not has_prefix_cache:
        raise ConfigError(
            f"{FLAG} tells of the prefix cache, and --no-enable-prefix-caching is given",
            fix="leave one of them out",
        )
    values = {
        name: value for name in KVEventsPlan.__struct_fields__ if (value := getattr(asked, name)) is not None
    }
    return KVEventsPlan(**{**values, "publisher": "zmq"})
