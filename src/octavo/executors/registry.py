"""Executors by name: the two built in, and whatever the entry-point group `octavo.executors` adds."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from octavo import env
from octavo.errors import ConfigError
from octavo.executors.base import Executor

BUILT_IN = {
    "native": "octavo.executors.native:NativeExecutor",
    "torch": "octavo.executors.torch_executor:TorchExecutor",
}


def names() -> list[str]:
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group="octavo.executors"))})


def create(name: str) -> Executor:
    """A fresh executor. Raises ConfigError for an unknown name, or when its packages are missing."""
    target = BUILT_IN.get(name)
    if target is None:
        found = [p.value for p in entry_points(group="octavo.executors") if p.name == name]
        if not found:
            raise ConfigError(f"unknown executor {name!r}; allowed: {', '.join(names())}")
        target = found[0]
    module, _, attribute = target.partition(":")
    try:
        executor: Executor = getattr(import_module(module), attribute)()
    except ModuleNotFoundError as error:
        fix = env.pip_install("torch==2.13.0") if error.name == "torch" else "./run setup builds it"
        raise ConfigError(
            f"the {name} executor needs {error.name}, which is not installed", fix=fix
        ) from error
    return executor
