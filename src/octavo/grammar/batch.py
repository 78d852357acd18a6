"""Masks of many rows at once. Backends that can do so in parallel are known here, others go one by one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

from octavo.grammar.base import U32, Matcher
from octavo.grammar.keys import Banning
from octavo.grammar.llg import LlguidanceMatcher

_LEAST = 2  # rows that are worth other threads
_MOST_THREADS = 8


def fill_all(matchers: Sequence[Matcher], masks: U32, rows: Sequence[int]) -> None:
    """`masks[rows[i]]` becomes the mask of `matchers[i]`. `masks` [rows, words]."""
    together: list[tuple[LlguidanceMatcher, int]] = []
    for matcher, row in zip(matchers, rows, strict=True):
        inner = matcher.inner if isinstance(matcher, Banning) else matcher
        if isinstance(inner, LlguidanceMatcher) and not inner.is_stopped:
            together.append((inner, row))
        else:
            inner.fill(masks[row])
    _fill_together(together, masks)
    for matcher, row in zip(matchers, rows, strict=True):
        if isinstance(matcher, Banning):
            matcher.ban(masks[row])


def _fill_together(together: list[tuple[LlguidanceMatcher, int]], masks: U32) -> None:
    if len(together) < _LEAST:
        for one, row in together:
            one.fill(masks[row])
        return
    width = masks.strides[0]
    _executor().unsafe_compute_mask_ptr(
        [(one.inner, row) for one, row in together], masks.ctypes.data, width, masks.shape[0]
    )
    for one, row in together:
        one.clear_end(masks[row])


@cache
def _executor() -> Any:
    import llguidance

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return llguidance.LLExecutor(max(1, min(cpus, _MOST_THREADS)))
