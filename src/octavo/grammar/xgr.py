"""Adapter to xgrammar: a pushdown automaton with masks made at `compile` (extra `xgrammar`, which needs torch).

Its patterns have no look-around and take anchors for nothing. Its JSON Schema leaves keywords out silently, and lets
control characters into strings of a given length, which are no JSON then: so schemas are not taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import xgrammar

from octavo.grammar.base import U32, UNCOMMON_PATTERN, GrammarError, Matcher, Vocabulary
from octavo.grammar.keys import UniqueKeys
from octavo.wire.sampling import StructuredSpec

_MAX_SPACES = 33  # between two JSON tokens

_made: WeakKeyDictionary[Vocabulary, _Compiler] = WeakKeyDictionary()


class _Compiler:
    """The package's view of a vocabulary. Tokens that are no text are hidden from it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not vocabulary.eos_ids:
            raise GrammarError("the grammar backend xgrammar needs a model with an end token")
        hidden = vocabulary.special | vocabulary.eos_ids
        tokens = [b"" if i in hidden else bytes(data) for i, data in enumerate(vocabulary.tokens)]
        info = xgrammar.TokenizerInfo(
            tokens,
            xgrammar.VocabType.RAW,
            vocab_size=len(tokens),
            stop_token_ids=sorted(vocabulary.eos_ids),
        )
        self.package = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.no_text = frozenset(i for i, data in enumerate(tokens) if not data)
        bits = np.zeros(vocabulary.num_words * 32, np.uint8)
        bits[[i for i, data in enumerate(tokens) if data]] = 1
        self.text = np.packbits(bits, bitorder="little").view(np.uint32)  # a mask of all tokens that are text


class XgrammarMatcher:
    __slots__ = ("_compiler", "_length", "inner")

    def __init__(self, inner: Any, compiler: _Compiler, length: int = 0) -> None:
        self.inner, self._compiler, self._length = inner, compiler, length

    def copy(self) -> XgrammarMatcher:
        return XgrammarMatcher(self.inner.fork(), self._compiler, self._length)

    def advance(self, token_ids: Sequence[int]) -> int:
        for count, token in enumerate(token_ids):
            if token in self._compiler.no_text or not self.inner.accept_token(token):
                return count
            self._length += 1
        return len(token_ids)

    def rollback(self, count: int) -> bool:
        if count > self._length:
            return False
        self.inner.rollback(count)
        self._length -= count
        return True

    def fill(self, row: U32) -> None:
        row[:] = 0xFFFFFFFF  # what it is where the package says that nothing is to be masked
        self.inner.fill_next_token_bitmask(row.view(np.int32)[None])
        row &= self._compiler.text

    @property
    def is_accepting(self) -> bool:
        return bool(self.inner.is_completed())

    @property
    def is_terminated(self) -> bool:
        if not self.inner.is_completed():
            return False
        row = np.zeros_like(self._compiler.text)
        self.fill(row)
        return not row.any()

    @property
    def problem(self) -> str | None:
        return None


class XgrammarBackend:
    name = "xgrammar"
    kinds = frozenset(("regex", "choice", "json_object", "gbnf", "ebnf"))

    def compile(self, spec: StructuredSpec, vocabulary: Vocabulary) -> Matcher:
        compiler = _made.get(vocabulary)
        if compiler is None:
            compiler = _made[vocabulary] = _Compiler(vocabulary)
        try:
            grammar = _compiled(compiler.package, spec)
        except RuntimeError as error:
            raise GrammarError(_short(str(error))) from None
        matcher = XgrammarMatcher(xgrammar.GrammarMatcher(grammar), compiler)
        row = np.zeros(vocabulary.num_words, np.uint32)
        matcher.fill(row)
        if not row.any() and not matcher.is_accepting:
            raise GrammarError("no text of this model's tokens satisfies it")
        return UniqueKeys(matcher, vocabulary) if spec.kind == "json_object" else matcher


def _compiled(package: Any, spec: StructuredSpec) -> Any:
    match spec.kind:
        case "regex":
            return package.compile_regex(_pattern(spec.text))
        case "choice":
            choices = [re.escape(choice) for choice in json.loads(spec.text)]
            return package.compile_regex("|".join(f"({choice})" for choice in choices))
        case "gbnf" | "ebnf":
            return package.compile_grammar(spec.text)
    if spec.whitespace_pattern is not None:
        raise GrammarError("the grammar backend xgrammar has no whitespace_pattern")
    return package.compile_json_schema(
        '{"type": "object"}',
        any_whitespace=spec.any_whitespace,
        separators=(",", ":"),
        strict_mode=False,
        max_whitespace_cnt=_MAX_SPACES if spec.any_whitespace else None,
    )


def _pattern(pattern: str) -> str:
    if UNCOMMON_PATTERN.search(pattern):
        raise GrammarError("the grammar backend xgrammar knows no look-around and no anchors in patterns")
    return pattern


def _short(message: str) -> str:
    """Without the package's time and place of the source."""
    text = re.sub(r"^\[[0-9:]+\] \S+: ", "", " ".join(message.split()))
    return text[:400]
