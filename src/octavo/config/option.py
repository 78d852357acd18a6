"""How an asked field is declared, and the list of options read from the declarations.

A field is `name: Annotated[type, Doc("what it does", ...)] = default`; everything else (flag, YAML
key, `LLM(...)` keyword, line of docs/flags.md) follows from that one line. Owns no option itself.
"""

from __future__ import annotations

import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import msgspec

Kind = Literal["int", "float", "str", "bool", "list", "json", "choice"]


@dataclass(frozen=True, slots=True)
class Doc:
    """What an asked field means, and which values it takes.

    `auto`: also takes the word "auto" (-1). `unset`: what None leads to. `secret`: never printed.
    `flag_only`: a switch without a --no- twin.
    """

    text: str
    short: str | None = None
    aliases: tuple[str, ...] = ()
    ge: float | None = None
    le: float | None = None
    lt: float | None = None
    auto: bool = False
    unset: str | None = None
    secret: bool = False
    flag_only: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """One field of one asked struct, as the command line and the documents see it."""

    name: str
    topic: str
    kind: Kind
    choices: tuple[str | int, ...]
    default: Any
    doc: Doc

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def spellings(self) -> tuple[str, ...]:
        """The flag, its short form, its aliases."""
        return tuple(s for s in (self.flag, self.doc.short, *self.doc.aliases) if s)

    def is_in_bounds(self, value: float) -> bool:
        doc = self.doc
        if doc.auto and value == -1:
            return True
        return (
            (doc.ge is None or value >= doc.ge)
            and (doc.le is None or value <= doc.le)
            and (doc.lt is None or value < doc.lt)
        )

    @property
    def allowed(self) -> str:
        """What may be given, in words: for errors and for docs/flags.md."""
        if self.choices:
            return " | ".join(str(c) for c in self.choices)
        word = {
            "int": "a whole number",
            "float": "a number",
            "str": "text",
            "bool": "true or false",
            "list": "one or more values",
            "json": "a JSON object",
        }[self.kind]
        bounds = [
            f"{sign} {bound:g}"
            for sign, bound in ((">=", self.doc.ge), ("<=", self.doc.le), ("<", self.doc.lt))
            if bound is not None
        ]
        word = " ".join([word, " and ".join(bounds)]).strip()
        return word + (" or auto" if self.doc.auto else "")


def _kind(annotation: Any) -> tuple[Kind, tuple[str | int, ...]]:
    """Kind and choices of a field's type, with None taken out of unions."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        parts = [a for a in typing.get_args(annotation) if a is not type(None)]
        (annotation,) = parts
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return "choice", typing.get_args(annotation)
    if origin is tuple:
        return "list", ()
    if origin is dict:
        return "json", ()
    simple: dict[Any, Kind] = {int: "int", float: "float", str: "str", bool: "bool"}
    return simple[annotation], ()


@cache
def options_of(struct: type[msgspec.Struct], topic: str) -> tuple[Option, ...]:
    """The options that the fields of an asked struct declare, in order."""
    hints = typing.get_type_hints(struct, include_extras=True)
    found = []
    for field in msgspec.structs.fields(struct):
        annotation, doc = typing.get_args(hints[field.name])
        kind, choices = _kind(annotation)
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        found.append(Option(field.name, topic, kind, choices, default, doc))
    return tuple(found)
