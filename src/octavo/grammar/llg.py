"""The backend of the base install: llguidance, an Earley parser over a derivative-based lexer.

Owns the translation of every kind into its Lark dialect or its JSON compiler, and its limits: a
grammar that is too large fails at `compile`, a step that is too costly fails its own matcher.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import llguidance
import numpy as np

from octavo.grammar.base import U32, GrammarError, Matcher, Vocabulary
from octavo.grammar.ebnf import to_lark
from octavo.grammar.keys import UniqueKeys
from octavo.grammar.parts import UniqueKeysInParts, has_open_parts
from octavo.grammar.schema import blame, has_open_objects, parse, prepare
from octavo.grammar.tags import tags_to_lark
from octavo.wire.sampling import StructuredSpec

#: Bounded, so that an answer cannot be white space for ever: one space, or a line and its indent.
WHITESPACE = r"( |\n {0,32})"
_LIMITS: dict[str, Any] = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 1_000_000,  # some 20 ms
    "step_lexer_fuel": 200_000,  # some 15 ms
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,  # 1 to 2 kB each
    "max_grammar_size": 500_000,
    "verbose_errors": False,
}
_MAX_MESSAGE = 400
_TEXT = r'[^"\\\x00-\x1F\x7F]'  # of a JSON string, without escapes
#: Sets of tokens that are taken into a mask at once where the state allows all of them, inner ones first. Finer ones
#: than the package's own: strings of bounded length and patterns of small letters are walked less (docs/log.md).
_SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    *("[a-z]{1,5}", " [a-z]{1,5}", "[a-z]{1,10}", " [a-z]{1,10}"),
    *(f"{_TEXT}{{1,{most}}}" for most in (10, 16, 20, 30)),
    f"{_TEXT}+",
]

_lock = threading.Lock()
_made: WeakKeyDictionary[Vocabulary, Any] = WeakKeyDictionary()


class _Spelling:
    """The vocabulary as the package wants to see it.

    An id that adds nothing must not look like text of no length; and a byte FF, which is in no text, is the
    package's own mark of a special token.
    """

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        no_text = {i for i, data in enumerate(vocabulary.tokens) if not data or 0xFF in data}
        self.tokens = [
            f"<[{i}]>".encode() if i in no_text else bytes(data) for i, data in enumerate(vocabulary.tokens)
        ]
        self.special_token_ids = sorted(vocabulary.special | no_text)
        self.eos_token_id = min(vocabulary.eos_ids, default=(self.special_token_ids or [0])[0])

    def __call__(self, text: bytes | str) -> list[int]:
        return self._vocabulary.spell(text.encode() if isinstance(text, str) else bytes(text))


def tokenizer_of(vocabulary: Vocabulary) -> Any:
    """The package's own view of a vocabulary; made once, some 0.1 to 1 s."""
    with _lock:
        made = _made.get(vocabulary)
        if made is None:
            wrapper = llguidance.TokenizerWrapper(_Spelling(vocabulary))
            made = llguidance.LLTokenizer(wrapper, n_vocab=len(vocabulary.tokens), slices=_SLICES)
            _made[vocabulary] = made
        return made


class LlguidanceMatcher:
    __slots__ = ("_end", "inner")

    def __init__(self, inner: Any, end: int) -> None:
        self.inner = inner
        self._end = end  # the id that the package itself takes for the end of a text

    def copy(self) -> LlguidanceMatcher:
        return LlguidanceMatcher(self.inner.deep_copy(), self._end)

    def advance(self, token_ids: Sequence[int]) -> int:
        return int(self.inner.try_consume_tokens(list(token_ids)))

    def forced(self) -> int | None:
        if not self.inner.compute_ff_bytes():  # a twentieth of the time that tokens take
            return None
        tokens = self.inner.compute_ff_tokens()
        return int(tokens[0]) if tokens else None

    def accept(self, token_id: int) -> bool:
        return token_id != self._end and self.inner.try_consume_tokens([token_id]) == 1

    def rollback(self, count: int) -> bool:
        return bool(self.inner.rollback(count))

    def fill(self, row: U32) -> None:
        if self.inner.is_stopped():
            row[:] = 0
            return
        self.inner.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self.clear_end(row)

    def clear_end(self, row: U32) -> None:
        """The package allows its end of text in an accepting state; here that is the caller's to say."""
        row[self._end >> 5] &= np.uint32(~(1 << (self._end & 31)) & 0xFFFFFFFF)

    @property
    def is_stopped(self) -> bool:
        """Nothing may follow, for whatever reason."""
        return bool(self.inner.is_stopped())

    @property
    def is_accepting(self) -> bool:
        inner = self.inner
        if inner.is_error():
            return False
        return bool(inner.is_accepting()) or self.is_terminated

    @property
    def is_terminated(self) -> bool:
        inner = self.inner
        return bool(inner.is_stopped()) and not inner.is_error()

    @property
    def problem(self) -> str | None:
        inner = self.inner
        return _short(inner.get_error()) if inner.is_error() else None


class LlguidanceBackend:
    name = "llguidance"
    kinds = frozenset(
        ("json_schema", "json_object", "regex", "choice", "lark", "gbnf", "ebnf", "structural_tag")
    )

    def compile(self, spec: StructuredSpec, vocabulary: Vocabulary) -> Matcher:
        tokenizer = tokenizer_of(vocabulary)
        limits = llguidance.LLParserLimits(**_LIMITS)
        grammar = grammar_of(spec)
        inner = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if inner.is_error():
            raise _blamed(spec, _short(inner.get_error()))
        matcher = LlguidanceMatcher(inner, tokenizer.eos_token)
        row = np.zeros(vocabulary.num_words, np.uint32)
        matcher.copy().fill(row)  # also makes what every copy then shares
        if not row.any() and not matcher.is_accepting:
            raise GrammarError("no text of this model's tokens satisfies it")
        if spec.kind == "json_object" or (spec.kind == "json_schema" and has_open_objects(parse(spec.text))):
            return UniqueKeys(matcher, vocabulary)
        if spec.kind in ("lark", "structural_tag") and has_open_parts(grammar):
            return UniqueKeysInParts(matcher, vocabulary)
        return matcher


def _blamed(spec: StructuredSpec, message: str) -> GrammarError:
    """What is said of a grammar that the package refused; for a schema, keyword and place."""
    if spec.kind != "json_schema":
        return GrammarError(message)
    schema = prepare(spec.text, additional_properties=spec.additional_properties)
    return blame(schema, lambda part: compile_schema(part, spec))


def grammar_of(spec: StructuredSpec) -> str:
    """The package's form of a spec. Raises GrammarError for what it would take and not enforce."""
    match spec.kind:
        case "json_schema":
            return json_grammar(prepare(spec.text, additional_properties=spec.additional_properties), spec)
        case "json_object":
            return json_grammar({"type": "object"}, spec)
        case "regex":
            return str(llguidance.LLMatcher.grammar_from_regex(spec.text))
        case "choice":
            return _lark(_choices(json.loads(spec.text)))
        case "lark":
            return _lark(spec.text)
        case "gbnf" | "ebnf":
            return _lark(to_lark(spec.text))
        case "structural_tag":
            return _lark(tags_to_lark(spec, json_options(spec)))


def _choices(choices: list[str]) -> str:
    """One terminal, that is one automaton: as alternatives of a rule each would be an item of the parser's row."""
    texts = [literal(choice) for choice in choices if choice]
    return f"start: CHOICE{'?' if '' in choices else ''}\nCHOICE: " + " | ".join(texts)


def _lark(text: str) -> str:
    return str(llguidance.LLMatcher.grammar_from_lark(text))


def literal(text: str) -> str:
    """A text as a Lark string."""
    return json.dumps(text, ensure_ascii=False)


def json_options(spec: StructuredSpec) -> Any:
    if spec.whitespace_pattern is not None:
        return {"whitespace_pattern": spec.whitespace_pattern}
    if spec.any_whitespace:
        return {"whitespace_pattern": WHITESPACE}
    return {"whitespace_flexible": False}


def json_grammar(schema: dict[str, Any], spec: StructuredSpec) -> str:
    return str(
        llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=json_options(spec))
    )


def compile_schema(schema: dict[str, Any], spec: StructuredSpec) -> str | None:
    """The package's complaint about a schema, or None: needs no vocabulary."""
    failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(
        json_grammar(schema, spec), limits=llguidance.LLParserLimits(**_LIMITS)
    )
    return _short(messages[0] if messages else "it cannot be compiled") if failed else None


def _short(message: str) -> str:
    text = " ".join(message.replace("<non-verbose/>", "").partition("<backtrace>")[0].split())
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + " ..."
