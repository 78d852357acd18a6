"""How an asked field is declared, and the list of options read from the declarations.

A field is `name: Annotated[type, doc("what it does", ...)] = default`; everything else (flag, YAML
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


def doc(
    text: str,
    *,
    short: str | None = None,
    flag: str | None = None,
    aliases: tuple[str, ...] = (),
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    auto: bool = False,
    unset: str | None = None,
    secret: bool = False,
    flag_only: bool = False,
) -> msgspec.Meta:
    """Metadata of a field. `auto`: also takes the word "auto" (-1). `unset`: what None leads to.

    `flag_only`: a switch without a --no- twin. `secret`: never printed.
    """
    return msgspec.Meta(
        description=text,
        ge=ge,
        gt=gt,
        le=le,
        lt=lt,
        extra={
            "short": short,
            "flag": flag,
            "aliases": aliases,
            "auto": auto,
            "unset": unset,
            "secret": secret,
            "flag_only": flag_only,
        },
    )


@dataclass(frozen=True, slots=True)
class Option:
    """One field of one asked struct, as the command line and the documents see it."""

    name: str
    topic: str
    flag: str
    short: str | None
    aliases: tuple[str, ...]
    kind: Kind
    choices: tuple[str | int, ...]
    default: Any
    text: str
    ge: float | None
    gt: float | None
    le: float | None
    lt: float | None
    auto: bool
    unset: str | None
    secret: bool
    flag_only: bool

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
            for sign, bound in ((">=", self.ge), (">", self.gt), ("<=", self.le), ("<", self.lt))
            if bound is not None
        ]
        word = " ".join([word, " and ".join(bounds)]).strip()
        return word + (" or auto" if self.auto else "")


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
        annotation, meta = typing.get_args(hints[field.name])
        extra: dict[str, Any] = meta.extra
        kind, choices = _kind(annotation)
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        found.append(
            Option(
                name=field.name,
                topic=topic,
                flag=extra["flag"] or "--" + field.name.replace("_", "-"),
                short=extra["short"],
                aliases=extra["aliases"],
                kind=kind,
                choices=choices,
                default=default,
                text=meta.description,
                ge=meta.ge,
                gt=meta.gt,
                le=meta.le,
                lt=meta.lt,
                auto=extra["auto"],
                unset=extra["unset"],
                secret=extra["secret"],
                flag_only=extra["flag_only"],
            )
        )
    return tuple(found)
