"""How each family of call formats is written as a grammar: the inverse of `families`.

Owns the envelope, the names, and arguments by the tool's schema where they are to be enforced. What a
family cannot say as a grammar is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo.api.text.parsers.checkpoint.envelope import ResponseCalls
from octavo.api.text.parsers.harmony import CALL, CHANNEL, CONSTRAIN, MESSAGE, START
from octavo.api.text.parsers.lark import ANY, NEWLINES, Lark, quoted
from octavo.api.text.parsers.nested import Braces, Elements, NotWritable, commas, properties_of
from octavo.api.text.parsers.rows import ToolRow
from octavo.api.text.parsers.values import types_of

#: Keywords that say something about a string, which a value without JSON's quotes cannot follow.
_STRING_KEYWORDS = ("pattern", "format", "minLength", "maxLength")
#: White space of calls without marks: bounded, so that they end.
LOOSE_SPACE = r"[ \n]{0,16}"
#: How an answer begins that is such a call, or looks like one.
LOOSE_BEGIN = r"\s*(```(json)?\s*)?\{"
_SCALARS = frozenset({"null", "boolean", "integer", "number"})


def is_writable(row: ToolRow) -> bool:
    if row.response is None:
        return row.family in _WRITERS
    try:
        ResponseCalls(row.response, Lark({}))
    except NotWritable:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Callee:
    """`schema` None: any arguments; `keys` are known ones, where a format cannot have others."""

    name: str
    schema: dict[str, Any] | None
    keys: tuple[str, ...] = ()


class Envelope:
    """Calls of one format in one grammar. `first`: the marker with which calls begin."""

    def __init__(self, lark: Lark, row: ToolRow, callees: list[Callee]) -> None:
        self._lark = lark
        self._row = row
        self._callees = callees
        self._own = None if row.response is None else ResponseCalls(row.response, lark)

    @property
    def first(self) -> str:
        """'' where calls begin without a marker."""
        row = self._row
        if self._own is not None:
            return self._own.first
        if row.family == "harmony":
            return START + "assistant" + CHANNEL + "commentary"
        if row.section is not None:
            return row.section[0]
        opens = [m for m in row.opens if m not in row.bare]
        return opens[0] if opens and not (row.bare and row.family in ("json", "pythonic")) else ""

    def calls(self, *, is_single: bool, without_first: bool = False) -> str:
        """A rule for one call, or for one and more."""
        lark, row = self._lark, self._row
        one = lark.rule(" | ".join(_WRITERS[row.family](self, c) for c in self._callees))
        first = "" if without_first else lark.literal(self.first)
        if self._own is not None and self._own.is_list:
            more = one if is_single else f"{one} ({quoted(', ')} {one})*"
            head, close = lark.literal(self._own.head("")), lark.literal(self._own.close)
            return lark.rule(f'{first} {head} "[" {more} "]" {close}')
        if (row.is_list and row.family == "json") or (row.family == "pythonic" and row.name != "olmo3"):
            more = one if is_single else f'{one} (", " {one})*'
            close = f" {lark.literal(row.closes[0])}" if row.closes and self.first else ""
            return lark.rule(f'{first} "[" {more} "]"{close}')
        if row.family == "pythonic":
            more = one if is_single else f'{one} ("\\n" {one})*'
            return lark.rule(f'{first} "\\n" {more} "\\n" {lark.literal(row.closes[0])}')
        if row.section is not None:
            more = one if is_single else f"{one} ({NEWLINES} {one})*"
            return lark.rule(f"{first} {NEWLINES} {more} {NEWLINES} {lark.literal(row.section[1])}")
        if row.family == "harmony" or is_single:
            return lark.rule(f"{first} {one}")
        separator = quoted("; ") if row.separators else NEWLINES
        return lark.rule(f"{first} {one} ({separator} {lark.literal(self.first)} {one})*")

    def loose(self, *, is_single: bool) -> str:
        """A rule for calls as the format's models write them without its marks; '' where they do not."""
        lark, row, space = self._lark, self._row, f"/{LOOSE_SPACE}/"
        if not row.loose:
            return ""
        bodies = []
        for callee in self._callees:
            schema = {"type": "object", **(callee.schema or {})}
            pairs = (
                (row.name_keys[0], quoted(json.dumps(callee.name))),
                (row.argument_keys[0], lark.json(schema, space=LOOSE_SPACE)),
            )
            fields = f" {space} {quoted(',')} {space} ".join(
                f"{quoted(json.dumps(key))} {space} {quoted(':')} {space} {value}" for key, value in pairs
            )
            bodies.append(f"{space} {fields} {space} {quoted('}')}")
        rest = lark.rule(" | ".join(bodies))
        # The beginning is one lexeme up to the brace that no other text may have there: a shorter one would
        # lose against that text.
        block = rf"/({'|'.join(row.fences)}){LOOSE_SPACE}\{{/"
        one = lark.rule(f"{block} {rest} {space} {quoted('```')} | {quoted('{')} {rest}")
        return one if is_single else lark.rule(f"{one} ({space} {one})*")

    # ---- one call by family -----------------------------------------------------------------------

    def _json(self, callee: Callee) -> str:
        lark, row = self._lark, self._row
        name = json.dumps(callee.name)
        if row.is_keyed:
            return lark.rule(f"{quoted('{' + name + ': ')} {self._object(callee)} {quoted('}')}")
        head = f'{{"{row.name_keys[0]}": {name}, "{row.argument_keys[0]}": '
        body = f"{quoted(head)} {self._object(callee)} {quoted('}')}"
        if row.is_list or not row.closes:
            return lark.rule(body)
        return lark.rule(f"{NEWLINES} {body} {NEWLINES} {lark.literal(row.closes[0])}")

    def _named(self, callee: Callee) -> str:
        lark, row = self._lark, self._row
        name = f"functions.{callee.name}:" if row.ids == "own" else callee.name
        parts = [lark.literal(row.opens[0])] if row.section is not None else []
        parts += [lark.literal(row.prefix), quoted(name), "/[0-9]{1,6}/" if row.ids == "own" else ""]
        if row.name_ends[0] != "[ARGS]" or "<[" in lark.literal("[ARGS]"):
            parts.append(lark.literal(row.name_ends[0]))
        for literal in row.before_arguments:
            parts += [lark.literal(literal), NEWLINES if literal == "```json" else ""]
        parts.append(self._object(callee))
        for literal in row.after_arguments:
            parts += [NEWLINES if literal == "```" else "", lark.literal(literal)]
        if row.closes:
            parts.append(lark.literal(row.closes[0]))
        return lark.rule(" ".join(p for p in parts if p))

    def _xml(self, callee: Callee) -> str:
        lark, row = self._lark, self._row
        head = row.quote + row.head_end
        if row.name == "kimi_k3":
            head = '" index="1"' + row.head_end
        opening = row.opens[0] if row.section is not None else ""
        parts = [lark.literal(opening + callee.name + head), NEWLINES]
        for key, schema, is_required in properties_of(callee.schema):
            head = lark.literal(row.parameter + key + self._key_head(schema))
            one = f"{head} {self._value(callee, key, schema, row.parameter_close)} {NEWLINES}"
            parts.append(one if is_required else f"({lark.rule(one)})?")
        if callee.schema is None:
            any_key = lark.rule(
                f"{lark.literal(row.parameter)} /[A-Za-z0-9_.\\-]{{1,64}}/ {lark.literal(self._key_head({}))} "
                f"{lark.until(row.parameter_close)} {NEWLINES}"
            )
            parts.append(f"{any_key}*")
        parts.append(lark.literal(row.closes[0]))
        return lark.rule(" ".join(parts))

    def _key_head(self, schema: Any) -> str:
        row = self._row
        is_text = types_of(schema) <= {"string"}
        if "DSML" in row.parameter:
            return f'" string="{"true" if is_text else "false"}"' + row.head_end
        if row.name == "kimi_k3":
            kind = "string" if is_text else min(types_of(schema))
            return f'" type="{kind}"' + row.head_end
        return row.quote + row.head_end

    def _keyed(self, callee: Callee) -> str:
        lark, row = self._lark, self._row
        name_end = "<tool_sep>" if "<tool_sep>" in row.name_ends else ""
        opening = row.opens[0] if row.section is not None else ""
        parts = [lark.literal(opening + callee.name + name_end), NEWLINES]
        for key, schema, is_required in properties_of(callee.schema):
            one = (
                f"{lark.literal(row.key[0] + key + row.key[1])} {NEWLINES} {lark.literal(row.value[0])} "
                f"{self._value(callee, key, schema, row.value[1])} {NEWLINES}"
            )
            parts.append(one if is_required else f"({lark.rule(one)})?")
        if callee.schema is None:
            any_pair = lark.rule(
                f"{lark.literal(row.key[0])} /[A-Za-z0-9_.\\-]{{1,64}}/ {lark.literal(row.key[1])} {NEWLINES} "
                f"{lark.literal(row.value[0])} {lark.until(row.value[1])} {NEWLINES}"
            )
            parts.append(f"{any_pair}*")
        parts.append(lark.literal(row.closes[0]))
        return lark.rule(" ".join(parts))

    def _pythonic(self, callee: Callee) -> str:
        lark = self._lark
        if callee.schema is None:
            any_value = lark.json({})
            pair = lark.rule(f'/[A-Za-z_][A-Za-z0-9_]{{0,63}}/ "=" {any_value}')
            return lark.rule(f'{quoted(callee.name + "(")} ({pair} (", " {pair})*)? ")"')
        pairs = [
            (f"{quoted(key + '=')} {lark.json(self._with_defs(callee, schema))}", is_required)
            for key, schema, is_required in properties_of(callee.schema)
        ]
        return lark.rule(f'{quoted(callee.name + "(")} {commas(lark, pairs)} ")"')

    def _response(self, callee: Callee) -> str:
        own, lark = self._own, self._lark
        assert own is not None
        if own.field.content == "python-call-list":
            return self._pythonic(callee)

        def value(key: str, schema: Any, end: str, text: str) -> str:
            return self._value(callee, key, schema, end, text)

        parameters = properties_of(callee.schema)
        body = own.body(callee.name, callee.schema, parameters, lambda: self._object(callee), value)
        if own.is_list:
            return body
        return lark.rule(f"{lark.literal(own.head(callee.name))} {body} {lark.literal(own.close)}")

    def _braced(self, callee: Callee) -> str:
        lark, row = self._lark, self._row
        values = Braces(lark, callee.schema, row.name, row.string_quote)
        body = (
            values.any_mapping()
            if callee.schema is None
            else values.value({"type": "object", **callee.schema}, "")
        )
        return lark.rule(f"{quoted('call:' + callee.name)} {body} {lark.literal(row.closes[0])}")

    def _elements(self, callee: Callee) -> str:
        lark, row = self._lark, self._row
        values = Elements(lark, callee.schema, row.name, row.parameter)
        pairs = [
            (key, values.value(schema, f"/properties/{key}", key), is_required)
            for key, schema, is_required in properties_of(callee.schema)
        ]
        pairs += [(key, values.anything(key), False) for key in callee.keys if callee.schema is None]
        body = values.mapping(pairs)
        head = lark.literal(row.opens[0] + callee.name + row.quote + row.head_end)
        return lark.rule(f"{head} {body} {lark.literal(f'{row.parameter}</invoke>')}")

    def _harmony(self, callee: Callee) -> str:
        lark = self._lark
        head = f" to=functions.{callee.name} {CONSTRAIN}json{MESSAGE}"
        return lark.rule(f"{lark.literal(head)} {self._object(callee)} {lark.literal(CALL)}")

    # ---- arguments ------------------------------------------------------------------------------

    def _object(self, callee: Callee) -> str:
        schema = dict(callee.schema or {})
        schema.setdefault("type", "object")
        return self._lark.json(schema)

    def _with_defs(self, callee: Callee, schema: Any) -> dict[str, Any]:
        """A parameter's schema where its references still lead somewhere."""
        root = callee.schema or {}
        held = dict(schema) if isinstance(schema, dict) else {}
        return {**held, **{k: root[k] for k in ("$defs", "definitions") if k in root}}

    def _value(self, callee: Callee, key: str, schema: Any, end: str, text: str = ANY) -> str:
        """A value without quotes, and the marker behind it. `text`: what any value is."""
        lark = self._lark
        types = types_of(schema, callee.schema)
        if isinstance(schema, dict):
            values = [schema["const"]] if "const" in schema else schema.get("enum")
            if isinstance(values, list) and values:
                texts = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
                return f"({' | '.join(lark.literal(t) or quoted(t) for t in texts)}) {lark.literal(end)}"
        if types and "string" not in types:
            return f"{lark.json(self._with_defs(callee, schema))} {lark.literal(end)}"
        held = [k for k in _STRING_KEYWORDS if isinstance(schema, dict) and k in schema]
        if held:
            raise NotWritable(
                f"{held[0]} at /properties/{key}/{held[0]} is not enforced in this model's format of calls "
                f"({self._row.name}), where text has no quotes"
            )
        return lark.until(end, text)


_WRITERS: dict[str, Callable[[Envelope, Callee], str]] = {
    "json": Envelope._json,
    "named": Envelope._named,
    "xml": Envelope._xml,
    "keyed": Envelope._keyed,
    "pythonic": Envelope._pythonic,
    "braced": Envelope._braced,
    "elements": Envelope._elements,
    "response": Envelope._response,
    "harmony": Envelope._harmony,
}
