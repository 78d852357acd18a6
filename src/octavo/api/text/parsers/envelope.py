"""How each family of call formats is written as a grammar: the inverse of `families`.

Owns the envelope, the names, and arguments by the tool's schema where they are to be enforced. What a
family cannot say as a grammar is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo.api.text.parsers.harmony import CALL, CHANNEL, CONSTRAIN, MESSAGE, START
from octavo.api.text.parsers.lark import NEWLINES, Lark, quoted
from octavo.api.text.parsers.rows import ToolRow
from octavo.api.text.parsers.values import types_of

#: Keywords that say something about a string, which a value without JSON's quotes cannot follow.
_STRING_KEYWORDS = ("pattern", "format", "minLength", "maxLength")
_SCALARS = frozenset({"null", "boolean", "integer", "number"})


class NotWritable(Exception):
    """A format, or a schema in it, that has no grammar."""


def is_writable(row: ToolRow) -> bool:
    return row.family in _WRITERS


@dataclass(frozen=True, slots=True)
class Callee:
    """`schema` None: any arguments."""

    name: str
    schema: dict[str, Any] | None


class Envelope:
    """Calls of one format in one grammar. `first`: the marker with which calls begin."""

    def __init__(self, lark: Lark, row: ToolRow, callees: list[Callee]) -> None:
        self._lark = lark
        self._row = row
        self._callees = callees
        if not is_writable(row):
            raise NotWritable(f"calls in the format {row.name} are not written as a grammar")

    @property
    def first(self) -> str:
        """'' where calls begin without a marker."""
        row = self._row
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
        for key, schema, is_required in self._properties(callee):
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
        for key, schema, is_required in self._properties(callee):
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
            for key, schema, is_required in self._properties(callee)
        ]
        return lark.rule(f'{quoted(callee.name + "(")} {self._commas(pairs)} ")"')

    def _commas(self, pairs: list[tuple[str, bool]]) -> str:
        """Pairs in order, optional ones left out or not, with a comma between those that are there."""
        lark, tail, options = self._lark, "", []
        for i in range(len(pairs) - 1, -1, -1):
            body, is_required = pairs[i]
            options.append((i, lark.rule(f"{body} {tail}".strip())))
            piece = f'", " {body}'
            piece = piece if is_required else f"({piece})?"
            tail = lark.rule(f"{piece} {tail}".strip())
        first_required = next((i for i, p in enumerate(pairs) if p[1]), None)
        starts = [rule for i, rule in options if first_required is None or i <= first_required]
        if not starts:
            return ""
        choice = f"({' | '.join(starts)})"
        return choice if first_required is not None else choice + "?"

    def _harmony(self, callee: Callee) -> str:
        lark = self._lark
        head = f" to=functions.{callee.name} {CONSTRAIN}json{MESSAGE}"
        return lark.rule(f"{lark.literal(head)} {self._object(callee)} {lark.literal(CALL)}")

    # ---- arguments ------------------------------------------------------------------------------

    def _object(self, callee: Callee) -> str:
        schema = dict(callee.schema or {})
        schema.setdefault("type", "object")
        return self._lark.json(schema)

    def _properties(self, callee: Callee) -> list[tuple[str, Any, bool]]:
        """(key, schema, is it required), in the order of the schema."""
        schema = callee.schema or {}
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, dict):
            return []
        wanted = set(required) if isinstance(required, list) else set()
        return [(key, held, key in wanted) for key, held in properties.items()]

    def _with_defs(self, callee: Callee, schema: Any) -> dict[str, Any]:
        """A parameter's schema where its references still lead somewhere."""
        root = callee.schema or {}
        held = dict(schema) if isinstance(schema, dict) else {}
        return {**held, **{k: root[k] for k in ("$defs", "definitions") if k in root}}

    def _value(self, callee: Callee, key: str, schema: Any, end: str) -> str:
        """A value without quotes, and the marker behind it."""
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
        return lark.until(end)


_WRITERS: dict[str, Callable[[Envelope, Callee], str]] = {
    "json": Envelope._json,
    "named": Envelope._named,
    "xml": Envelope._xml,
    "keyed": Envelope._keyed,
    "pythonic": Envelope._pythonic,
    "harmony": Envelope._harmony,
}
