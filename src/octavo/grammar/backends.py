"""Backends by name. `auto` is llguidance, the one of the base install; an explicit name never falls back."""

from __future__ import annotations

import importlib
from functools import cache

from octavo.config.structured import ALIASES
from octavo.grammar.base import Backend, GrammarError, Matcher, Vocabulary
from octavo.wire.sampling import StructuredSpec

#: name -> (module, class, what to install when it is missing)
BACKENDS: dict[str, tuple[str, str, str]] = {
    "llguidance": ("octavo.grammar.llg", "LlguidanceBackend", "llguidance"),
    "xgrammar": ("octavo.grammar.xgr", "XgrammarBackend", "xgrammar"),
    "outlines": ("octavo.grammar.outlines", "OutlinesBackend", "outlines-core"),
    "lm-format-enforcer": ("octavo.grammar.enforcer", "EnforcerBackend", "lm-format-enforcer"),
}
NAMES = (*ALIASES, *BACKENDS)


def resolve(name: str) -> str:
    """The backend that a name means. Raises GrammarError for a name that there is not."""
    name = ALIASES.get(name, name)
    if name not in BACKENDS:
        raise GrammarError(f"there is no grammar backend {name[:64]!r}; known are {', '.join(NAMES)}")
    return name


@cache
def backend(name: str) -> Backend:
    """Raises GrammarError when its package is not installed."""
    module, kind, package = BACKENDS[resolve(name)]
    try:
        made: Backend = getattr(importlib.import_module(module), kind)()
    except ModuleNotFoundError as error:
        raise GrammarError(
            f"the grammar backend {resolve(name)} needs the package {package} ({error.name} is missing): "
            f"pip install {package}"
        ) from None
    return made


def compile_spec(spec: StructuredSpec, vocabulary: Vocabulary) -> Matcher:
    """The matcher of an empty answer. Raises GrammarError, and nothing else."""
    chosen = backend(spec.backend)
    if spec.kind not in chosen.kinds:
        raise GrammarError(
            f"the grammar backend {chosen.name} has no {spec.kind}; it has {', '.join(sorted(chosen.kinds))}"
        )
    try:
        return chosen.compile(spec, vocabulary)
    except GrammarError:
        raise
    except MemoryError:
        raise GrammarError("the grammar needs more memory than it may have") from None
    except Exception as error:  # whatever a package makes of a hostile grammar
        raise GrammarError(f"{type(error).__name__}: {str(error)[:200]}") from None
