"""Random answers under a grammar, without a model: a small vocabulary, and a walk over the masks."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np

from octavo.grammar.backends import compile_spec
from octavo.grammar.base import Matcher, Vocabulary
from octavo.wire.sampling import StructuredSpec

_WORDS = [
    '":"', '","', '":', '",', '{"', '"}', '"]', '["', '":{"', '"},{"', "}}", "]}", "true", "false", "null", "name",
    "value", " the", "ing", "\\n", '\\"', "\\u00", "12", "00", ".5", "e-", "2024", "-0", "é", "日本", "\n\n", "   ",
    "ab",
]  # fmt: skip
END, NOTHING = 256 + len(_WORDS), 256 + len(_WORDS) + 2
WALKS = 3  # per schema
TOKENS = [bytes([i]) for i in range(256)] + [w.encode() for w in _WORDS] + [b"<end>", b"<tool>", b""]
VOCABULARY = Vocabulary(TOKENS, frozenset((END, END + 1)), frozenset((END,)))


def compiled(kind: str, text: str, **options: object) -> Matcher:
    return compile_spec(StructuredSpec(kind=kind, text=text, **options), VOCABULARY)  # type: ignore[arg-type]


def allowed(matcher: Matcher) -> list[int]:
    """Ids that may follow."""
    row = np.zeros(VOCABULARY.num_words, np.uint32)
    matcher.fill(row)
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def accepts(matcher: Matcher, text: str) -> bool:
    """Whether `text`, spelled in any one way, is a complete answer."""
    copy = matcher.copy()
    ids = VOCABULARY.spell(text.encode())
    return copy.advance(ids) == len(ids) and copy.is_accepting


def walk(matcher: Matcher, rng: random.Random, most: int = 600) -> tuple[str, str]:
    """(text, "complete" | "long" | why it could not go on), drawing from what every mask allows.

    What closes a string, a list or an object is drawn more often the longer the text is.
    """
    state, ids = matcher.copy(), []
    for step in range(most):
        can = allowed(state)
        if state.is_accepting and (not can or rng.random() < 0.3):
            return _text(ids), "complete"
        if not can:
            return _text(ids), state.problem or "nothing may follow"
        closers = [i for i in can if TOKENS[i] in (b'"', b"}", b"]")]
        token = rng.choice(closers if closers and rng.random() < step / 150 else can)
        ids.append(token)
        assert state.advance([token]) == 1, f"token {token} was allowed and then refused"
    return _text(ids), "long"


def _text(ids: list[int]) -> str:
    return b"".join(TOKENS[i] for i in ids).decode("utf-8", "replace")


def check(schema: dict[str, Any], rng: random.Random, walks: int = WALKS, **options: object) -> int:
    """How many answers ended and were checked. Raises GrammarError for a schema that is refused."""
    matcher = compiled("json_schema", json.dumps(schema), **options)
    validator = jsonschema.Draft202012Validator(schema)
    done = 0
    for _ in range(walks):
        text, how = walk(matcher, rng)
        assert how in ("complete", "long"), f"{schema}: {text!r}: {how}"
        if how == "complete":
            document = json.loads(text, object_pairs_hook=_pairs)
            error = next(iter(validator.iter_errors(document)), None)
            if not (error and error.validator == "multipleOf" and isinstance(document, float)):
                assert error is None, f"{schema}: {text!r}: {error.message}"
            done += 1
    return done


def _pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(items)) == len(items), f"a key is repeated: {items}"
    return dict(items)
