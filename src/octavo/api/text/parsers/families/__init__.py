"""How each family of formats is read."""

from __future__ import annotations

from octavo.api.text.parsers.families.base import Reader
from octavo.api.text.parsers.families.braced import BracedCalls
from octavo.api.text.parsers.families.elements import ElementCalls
from octavo.api.text.parsers.families.json_calls import JsonCalls
from octavo.api.text.parsers.families.keyed import KeyedCalls
from octavo.api.text.parsers.families.named import NamedCalls
from octavo.api.text.parsers.families.pythonic import PythonicCalls
from octavo.api.text.parsers.families.xml import XmlCalls

READERS: dict[str, type[Reader]] = {
    "json": JsonCalls,
    "named": NamedCalls,
    "xml": XmlCalls,
    "keyed": KeyedCalls,
    "pythonic": PythonicCalls,
    "braced": BracedCalls,
    "elements": ElementCalls,
}
