"""Adapter to lm-format-enforcer: patterns, followed character by character (extra `lm-format-enforcer`).

The vocabulary is a tree of characters that is walked with the package's parser; masks are kept by the parser's
own key of a state. A token that is a part of a character is never allowed. It is slow on patterns that allow much.
Its JSON Schema leaves keywords out silently, so only patterns and choices are taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import lmformatenforcer
import numpy as np
from lmformatenforcer.characterlevelparser import CharacterLevelParserConfig

from octavo.grammar.base import U32, UNCOMMON_PATTERN, GrammarError, Matcher, Vocabulary
from octavo.wire.sampling import StructuredSpec

_MAX_MASKS = 256  # kept for one grammar


class _Tree:
    """Tokens by their characters."""

    __slots__ = ("children", "ids")

    def __init__(self) -> None:
        self.children: dict[str, _Tree] = {}
        self.ids: list[int] = []


class _Words:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self.root, self.texts = _Tree(), {}
        for i, data in enumerate(vocabulary.tokens):
            try:
                text = data.decode()
            except UnicodeDecodeError:
                continue
            if not text or i in vocabulary.special:
                continue
            self.texts[i] = text
            node = self.root
            for char in text:
                node = node.children.setdefault(char, _Tree())
            node.ids.append(i)
        self.alphabet = "".join(self.root.children)


_made: WeakKeyDictionary[Vocabulary, _Words] = WeakKeyDictionary()


class EnforcerMatcher:
    __slots__ = ("_masks", "_states", "_words")

    def __init__(self, words: _Words, masks: dict[Hashable, U32], states: list[Any]) -> None:
        self._words, self._masks, self._states = words, masks, states

    def copy(self) -> EnforcerMatcher:
        return EnforcerMatcher(self._words, self._masks, self._states[:])

    def advance(self, token_ids: Sequence[int]) -> int:
        for count, token in enumerate(token_ids):
            state, text = self._states[-1], self._words.texts.get(token)
            for char in text or "\0":
                if text is None or char not in state.get_allowed_characters():
                    return count
                state = state.add_character(char)
            self._states.append(state)
        return len(token_ids)

    def rollback(self, count: int) -> bool:
        if count >= len(self._states):
            return False
        del self._states[len(self._states) - count :]
        return True

    def fill(self, row: U32) -> None:
        key = self._states[-1].cache_key()
        mask = self._masks.get(key) if key is not None else None
        if mask is None:
            mask = np.zeros_like(row)
            ids = np.asarray(self._allowed(), np.int64)
            np.bitwise_or.at(mask, ids >> 5, np.uint32(1) << (ids & 31).astype(np.uint32))
            if key is not None and len(self._masks) < _MAX_MASKS:
                self._masks[key] = mask
        row[:] = mask

    def _allowed(self) -> list[int]:
        found: list[int] = []
        todo = [(self._words.root, self._states[-1])]
        while todo:
            node, state = todo.pop()
            found += node.ids
            children = node.children
            if children:
                allowed = set(state.get_allowed_characters())
                todo += [(children[c], state.add_character(c)) for c in children if c in allowed]
        return found

    @property
    def is_accepting(self) -> bool:
        return bool(self._states[-1].can_end())

    @property
    def is_terminated(self) -> bool:
        return self.is_accepting and not self._states[-1].get_allowed_characters()

    @property
    def problem(self) -> str | None:
        return None


class EnforcerBackend:
    name = "lm-format-enforcer"
    kinds = frozenset(("regex", "choice"))

    def compile(self, spec: StructuredSpec, vocabulary: Vocabulary) -> Matcher:
        words = _made.get(vocabulary)
        if words is None:
            words = _made[vocabulary] = _Words(vocabulary)
        pattern = spec.text
        if spec.kind == "choice":
            pattern = "|".join(f"({re.escape(choice)})" for choice in json.loads(spec.text))
        if UNCOMMON_PATTERN.search(pattern):
            raise GrammarError(
                "the grammar backend lm-format-enforcer knows no look-around and no anchors in patterns"
            )
        try:
            parser = lmformatenforcer.RegexParser(
                pattern, CharacterLevelParserConfig(alphabet=words.alphabet)
            )
        except Exception as error:  # the package and its parser of patterns raise what they like
            raise GrammarError(f"pattern: {' '.join(str(error).split())[:400]}") from None
        return EnforcerMatcher(words, {}, [parser])
