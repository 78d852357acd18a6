"""Octavo: an LLM inference and serving engine, fastest on ordinary CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.api.beam import BeamSearchParams as BeamSearchParams
    from octavo.llm import LLM as LLM
    from octavo.wire.sampling import RepetitionDetectionParams as RepetitionDetectionParams
    from octavo.wire.sampling import SamplingParams as SamplingParams
    from octavo.wire.sampling import StructuredOutputsParams as StructuredOutputsParams

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "BeamSearchParams",
    "RepetitionDetectionParams",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first used."""
    if name == "LLM":
        from octavo.llm import LLM

        return LLM
    if name in ("RepetitionDetectionParams", "SamplingParams", "StructuredOutputsParams"):
        from octavo.wire import sampling

        return getattr(sampling, name)
    if name == "BeamSearchParams":
        from octavo.api.beam import BeamSearchParams

        return BeamSearchParams
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")
