"""One grammar for all that shapes an answer: thinking and its budget, calls, the answer's own schema.

Owns what is enforced when (tool_choice, strict, --tool-strict-level, parallel_tool_calls). The engine gets one
spec, so that no two constraints can contradict each other. Knows neither the engine nor a dialect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from octavo.api.text.codec import TextCodec
from octavo.api.text.parsers.choose import Parsers, Thinking
from octavo.api.text.parsers.envelope import LOOSE_BEGIN, Callee, Envelope, is_writable
from octavo.api.text.parsers.lark import ANY, NEWLINES, Lark, quoted
from octavo.api.text.parsers.nested import NotWritable, properties_of
from octavo.api.tools import Function, ToolWish
from octavo.errors import InvalidRequest
from octavo.grammar.base import GrammarError
from octavo.grammar.schema import prepare
from octavo.wire.sampling import StructuredSpec

_WORDS = re.compile(r'"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\\n])+/|\bstart\b')


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What one answer must look like. `answer` is what response_format or structured_outputs asked for."""

    wish: ToolWish
    thinking: Thinking = "no"
    budget: int | None = None
    answer: StructuredSpec | None = None
    level: str = "auto"


@dataclass(slots=True)
class Composed:
    """`spec` None: nothing has to be enforced, or the answer's own spec does it alone."""

    spec: StructuredSpec | None
    notes: list[str] = field(default_factory=list)
    has_loose: bool = False  # calls may stand without their marks


def compose(shape: Shape, parsers: Parsers, codec: TextCodec, eos_ids: list[int]) -> Composed:
    """Raises InvalidRequest for what cannot be enforced."""
    wish = shape.wish
    calls_follow = wish.must_call or (wish.may_call and _is_pinned(shape, parsers))
    thinks = shape.thinking != "no" and parsers.reasoning is not None
    if not calls_follow and not (thinks and (shape.answer is not None or shape.budget is not None)):
        if shape.budget is not None and parsers.reasoning is None:
            raise InvalidRequest(
                "thinking_token_budget is not supported: no mark of thinking is known for this model",
                param="thinking_token_budget",
                fix="start the server with --reasoning-parser",
            )
        return Composed(None)
    return _Composer(shape, parsers, codec, eos_ids).compose(thinks=thinks)


def _is_pinned(shape: Shape, parsers: Parsers) -> bool:
    """Whether the model is free to call, but calls have to be well-formed.

    One call at most needs no grammar where the format has none: the parser ends the answer behind it.
    """
    wish = shape.wish
    return (
        shape.level != "auto"
        or not (wish.is_parallel or (parsers.tool is not None and not is_writable(parsers.tool)))
        or shape.answer is not None
        or any(f.is_strict for f in wish.functions)
    )


class _Composer:
    def __init__(self, shape: Shape, parsers: Parsers, codec: TextCodec, eos_ids: list[int]) -> None:
        self._shape = shape
        self._parsers = parsers
        self._codec = codec
        self._eos_ids = eos_ids
        self._lark = Lark(parsers.controls)
        self._notes: list[str] = []
        self._has_loose = False

    def compose(self, *, thinks: bool) -> Composed:
        if thinks and self._parsers.reasoning is not None and self._parsers.reasoning.is_harmony:
            raise InvalidRequest(
                "output that follows a grammar is not supported with the harmony format's channels yet",
                param="tool_choice" if self._shape.wish.must_call else "response_format",
            )
        body = self._calls_or_answer() if self._shape.wish.may_call else self._answer() or ANY
        start = f"{self._thought()} {body}" if thinks else body
        return Composed(
            StructuredSpec(kind="lark", text=self._lark.text(start)), self._notes, self._has_loose
        )

    # ---- thinking -------------------------------------------------------------------------------

    def _thought(self) -> str:
        row, shape, lark = self._parsers.reasoning, self._shape, self._lark
        assert row is not None
        end = row.closes[0]
        end_id = self._single(end)
        if end_id is not None:
            others = sorted({end_id, *self._eos_ids, *self._parsers.controls.values()})
            inside = f"<[{end_id}]>"
            if shape.budget != 0:
                count = "*" if shape.budget is None else f"{{0,{shape.budget}}}"
                inside = f"(<[^{','.join(map(str, others))}]>){count} {inside}"
        elif shape.budget is not None:
            others = self._no_thought(end)
            count = f"(<[^{','.join(map(str, others))}]>){{0,{shape.budget}}} " if shape.budget else ""
            inside = f"{count}{lark.literal(end)}"
        else:
            inside = lark.until(end)
        closed = lark.rule(f"{inside} {NEWLINES}")
        if shape.thinking == "open":
            return closed
        return f"({lark.rule(f'{lark.literal(row.opens[0])} {closed}')})?"

    def _single(self, marker: str) -> int | None:
        ids = self._codec.encode(marker, add_special_tokens=False, parse_special=True)
        return ids[0] if len(ids) == 1 else None

    def _no_thought(self, end: str) -> list[int]:
        """Tokens that a counted thought has none of: what ends the answer, controls, what may begin its end mark.

        Without them no token is both a part of the thought and of the mark, so that tokens can be counted.
        """
        return sorted({*self._eos_ids, *self._parsers.controls.values(), *_may_begin(self._codec, end)})

    # ---- calls ----------------------------------------------------------------------------------

    def _calls_or_answer(self) -> str:
        lark, wish = self._lark, self._shape.wish
        row = self._parsers.tool
        assert row is not None
        try:
            envelope = Envelope(lark, row, [self._callee(f) for f in wish.functions])
            is_single = not wish.is_parallel
            if wish.must_call:
                return envelope.calls(is_single=is_single)
            answer = self._answer()
            if answer is not None:
                return f"({envelope.calls(is_single=is_single)} | {answer})"
            return self._free_text_with(envelope, is_single=is_single)
        except NotWritable as error:
            raise InvalidRequest(
                f"tools: {error}",
                param="tools",
                fix='send tool_choice "auto" without strict functions and response_format',
            ) from None

    def _free_text_with(self, envelope: Envelope, *, is_single: bool) -> str:
        lark, first = self._lark, envelope.first
        if not first:  # a call is told by its first character only, so an answer may not begin with it
            calls = envelope.calls(is_single=is_single)
            return f"({calls} | /[^\\[{{ \\n](?s:.*)/ | {quoted('')})"
        calls = envelope.calls(is_single=is_single, without_first=True)
        tail = lark.without([first])
        with_text = lark.rule(f"{lark.until(first)} {calls}")
        loose = envelope.loose(is_single=is_single)
        if not loose:
            return f"({with_text} | {tail})" if is_single else f"{with_text}* {tail}"
        # Whatever looks like a call without marks is one; so no other text may begin like that.
        self._has_loose = True
        begun = lark.rule(f"{lark.until(first, lark.without([], begin=LOOSE_BEGIN))} {calls}")
        more = "" if is_single else f"{with_text}* {tail}"
        return f"({loose} | {begun} {more} | {lark.without([first], begin=LOOSE_BEGIN)})"

    def _callee(self, function: Function) -> Callee:
        """Arguments by their schema where that is asked for; a schema that cannot act is refused or told of."""
        shape = self._shape
        free = Callee(function.name, None, tuple(key for key, _, _ in properties_of(function.parameters)))
        is_wanted = function.is_strict or shape.wish.must_call or shape.level != "function"
        if not is_wanted or not function.parameters:
            return free
        try:
            schema = prepare(json.dumps(function.parameters))
            if function.is_strict or shape.level == "parameter":
                _closed(schema)
            self._try(function, schema)
        except (GrammarError, NotWritable) as error:
            if function.is_strict or shape.level == "parameter":
                raise InvalidRequest(
                    f"the parameters of {function.name}: {error}",
                    param=getattr(error, "pointer", "") or "tools",
                    fix="leave the keyword or strict out",
                ) from None
            self._notes.append(f"the arguments of {function.name} do not follow their schema: {error}")
            return free
        return Callee(function.name, schema)

    def _try(self, function: Function, schema: dict[str, Any]) -> None:
        """Raises for a schema that this format or the grammar's compiler cannot follow."""
        row = self._parsers.tool
        assert row is not None
        Envelope(Lark(self._parsers.controls), row, [Callee(function.name, schema)]).calls(is_single=True)

    # ---- the answer -------------------------------------------------------------------------------

    def _answer(self) -> str | None:
        """The answer's own constraint as a symbol of this grammar."""
        spec, lark = self._shape.answer, self._lark
        if spec is None:
            return None
        try:
            if spec.kind in ("json_schema", "json_object"):
                return self._json_answer(spec)
            if spec.kind == "choice":
                return "(" + " | ".join(quoted(choice) for choice in json.loads(spec.text)) + ")"
            text = _as_lark(spec)
        except GrammarError as error:
            raise InvalidRequest(str(error), param="response_format") from None
        lark.add(_WORDS.sub(lambda m: "answer" if m.group() == "start" else m.group(), text))
        return "answer"

    def _json_answer(self, spec: StructuredSpec) -> str:
        from octavo.grammar.llg import json_options

        schema = {"type": "object"}
        if spec.kind == "json_schema":
            schema = prepare(spec.text, additional_properties=spec.additional_properties)
        return self._lark.rule("%json " + json.dumps({**schema, "x-guidance": json_options(spec)}))


@lru_cache(maxsize=8)  # it looks at the whole vocabulary
def _may_begin(codec: TextCodec, mark: str) -> frozenset[int]:
    """Tokens that hold `mark`, end in what may begin it, or are no text."""
    whole = mark.encode()
    begins = tuple(whole[:size] for size in range(1, len(whole) + 1))
    texts = ((i, codec.token_bytes(i)) for i in range(codec.vocab_size))
    return frozenset(i for i, text in texts if not text or whole in text or text.endswith(begins))


def _as_lark(spec: StructuredSpec) -> str:
    """A grammar whose first rule is `start`, for the other kinds."""
    import llguidance

    from octavo.grammar.ebnf import to_lark
    from octavo.grammar.llg import json_options
    from octavo.grammar.tags import tags_to_lark

    match spec.kind:
        case "regex":
            return f"start: /{llguidance.regex_to_lark(spec.text, '')}/"
        case "gbnf" | "ebnf":
            return to_lark(spec.text)
        case "structural_tag":
            return tags_to_lark(spec, json_options(spec)).replace("%llguidance {}\n", "")
    return spec.text


def _closed(schema: Mapping[str, Any]) -> None:
    """Strict functions take the keys they name and no others."""
    if isinstance(schema, dict) and schema.get("type", "object") == "object":
        schema.setdefault("additionalProperties", False)
