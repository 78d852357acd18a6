"""Every environment variable that Octavo reads, and nothing else. Flags win over them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    text: str


VARIABLES = (
    Variable("OCTAVO_LOG_LEVEL", "debug, info (default), warning or error; debug also prints tracebacks."),
    Variable("OCTAVO_CACHE", "Folder of pulled models; default: the user's cache directory."),
    Variable(
        "OCTAVO_PACK_CACHE",
        "Folder of packed weights, or off; default: `packed` in the folder of pulled models. --pack-cache-dir wins.",
    ),
    Variable("OCTAVO_API_KEY", "Bearer token of the server and of `octavo chat`; --api-key wins."),
    Variable("OCTAVO_ISA", "Instruction set of the native kernels; --isa wins."),
    Variable(
        "OCTAVO_TEAM",
        "adaptive (default): the engine uses fewer threads than --threads while other processes take the cores "
        "and that gets more done; fixed: always all.",
    ),
    Variable("OCTAVO_COMMAND", "How hints spell the command `octavo`; `./run` sets it."),
    Variable("OCTAVO_PIP", "How hints spell `pip`; `./run` sets it."),
    Variable("OCTAVO_SERVER_DEV_MODE", "1 serves /pause, /resume, /is_paused and /reset_prefix_cache."),
    Variable("HF_TOKEN", "Token for `octavo pull hf:...` of gated repositories."),
)


def log_level() -> str:
    return os.environ.get("OCTAVO_LOG_LEVEL", "info").lower()


def is_debug() -> bool:
    return log_level() == "debug"


def api_key() -> str | None:
    return os.environ.get("OCTAVO_API_KEY") or None


def isa() -> str | None:
    return os.environ.get("OCTAVO_ISA") or None


def adaptive_team() -> bool:
    value = os.environ.get("OCTAVO_TEAM") or "adaptive"
    if value not in ("adaptive", "fixed"):
        raise ConfigError(f"OCTAVO_TEAM is {value!r}", fix="allowed are adaptive and fixed; or unset it")
    return value == "adaptive"


def is_dev_mode() -> bool:
    return os.environ.get("OCTAVO_SERVER_DEV_MODE") == "1"


def hf_token() -> str | None:
    return os.environ.get("HF_TOKEN") or None


def command(words: str = "") -> str:
    """The command line that runs `octavo WORDS` here, for hints: a checkout has only `./run octavo`."""
    return f"{os.environ.get('OCTAVO_COMMAND') or 'octavo'} {words}".rstrip()


def command_of(prog: str) -> str:
    """The same for a whole command line that begins with `octavo`."""
    return command(prog.removeprefix("octavo").lstrip())


def pip_install(package: str) -> str:
    """The command line that installs a package where Octavo runs, for hints."""
    return f"{os.environ.get('OCTAVO_PIP') or 'pip'} install {package}"


def cache_dir() -> Path:
    """Folder of pulled models."""
    given = os.environ.get("OCTAVO_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "octavo"


def pack_cache_dir() -> tuple[str, str]:
    """(folder of packed weights or "" for none, why)."""
    given = os.environ.get("OCTAVO_PACK_CACHE")
    if given == "off":
        return "", "OCTAVO_PACK_CACHE is off"
    if given:
        return given, "OCTAVO_PACK_CACHE"
    return str(cache_dir() / "packed"), "--no-pack-cache switches it off"
