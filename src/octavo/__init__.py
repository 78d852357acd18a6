"""Octavo: an LLM inference and serving engine, fastest on ordinary CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.llm import LLM as LLM
    from octavo.wire.sampling import SamplingParams as SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """`octavo.LLM` and `octavo.SamplingParams`, imported when they are first used."""
    if name == "LLM":
        from octavo.llm import LLM

        return LLM
    if name == "SamplingParams":
        from octavo.wire.sampling import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")
