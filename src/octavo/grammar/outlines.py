"""Adapter to outlines-core: patterns as an index of states over the vocabulary (extra `outlines`).

Its index is made whole at `compile`, so that a mask costs next to nothing later. It has no grammar and its
JSON Schema leaves keywords out silently, so only patterns and choices are taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import outlines_core

from octavo.grammar.base import U32, GrammarError, Matcher, Vocabulary
from octavo.wire.sampling import StructuredSpec

_made: WeakKeyDictionary[Vocabulary, Any] = WeakKeyDictionary()


class OutlinesMatcher:
    """A state is a number of the index; all of one answer are kept, so that tokens can be taken back."""

    __slots__ = ("_end", "_index", "_masks", "_states")

    def __init__(self, index: Any, end: int, masks: dict[int, U32], states: list[int]) -> None:
        self._index, self._end, self._masks, self._states = index, end, masks, states

    def copy(self) -> OutlinesMatcher:
        return OutlinesMatcher(self._index, self._end, self._masks, self._states[:])

    def advance(self, token_ids: Sequence[int]) -> int:
        for count, token in enumerate(token_ids):
            state = None if token == self._end else self._index.get_next_state(self._states[-1], token)
            if state is None:
                return count
            self._states.append(state)
        return len(token_ids)

    def rollback(self, count: int) -> bool:
        if count >= len(self._states):
            return False
        del self._states[len(self._states) - count :]
        return True

    def _allowed(self) -> list[int]:
        ids = self._index.get_allowed_tokens(self._states[-1]) or []
        return [i for i in ids if i != self._end]

    def fill(self, row: U32) -> None:
        mask = self._masks.get(self._states[-1])
        if mask is None:
            mask = np.zeros_like(row)
            ids = np.asarray(self._allowed(), np.int64)
            np.bitwise_or.at(mask, ids >> 5, np.uint32(1) << (ids & 31).astype(np.uint32))
            self._masks[self._states[-1]] = mask
        row[:] = mask

    @property
    def is_accepting(self) -> bool:
        return bool(self._index.is_final_state(self._states[-1]))

    @property
    def is_terminated(self) -> bool:
        return self.is_accepting and not self._allowed()

    @property
    def problem(self) -> str | None:
        return None


class OutlinesBackend:
    name = "outlines"
    kinds = frozenset(("regex", "choice"))

    def compile(self, spec: StructuredSpec, vocabulary: Vocabulary) -> Matcher:
        end = min(vocabulary.eos_ids, default=-1)
        if end < 0:
            raise GrammarError("the grammar backend outlines needs a model with an end token")
        pattern = spec.text
        if spec.kind == "choice":
            pattern = "|".join(f"({re.escape(choice)})" for choice in json.loads(spec.text))
        try:
            index = outlines_core.Index(pattern, _vocabulary(vocabulary, end))
        except ValueError as error:
            raise GrammarError(" ".join(str(error).split())[:400]) from None
        return OutlinesMatcher(index, end, {}, [index.get_initial_state()])


def _vocabulary(vocabulary: Vocabulary, end: int) -> Any:
    made = _made.get(vocabulary)
    if made is None:
        ids: dict[bytes, list[int]] = {}
        for i, data in enumerate(vocabulary.tokens):
            if data and i not in vocabulary.special:
                ids.setdefault(data, []).append(i)
        made = _made[vocabulary] = outlines_core.Vocabulary(end, ids)
    return made
