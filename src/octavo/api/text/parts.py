"""What an answer consists of, whatever format the model wrote it in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ContentPart:
    """A piece of the answer. `start`: characters of the raw text (`ChoiceEvent.text`, joined) before it."""

    text: str
    start: int = 0


@dataclass(slots=True)
class ReasoningPart:
    """A piece of what the model thought before it answered."""

    text: str


@dataclass(slots=True)
class CallPart:
    """A piece of a tool call. `id` and `name` come once, with its first piece; then bytes of its arguments.

    `index` counts the calls of a choice from 0. The pieces of `arguments` join to one JSON text.
    """

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


Part = ContentPart | ReasoningPart | CallPart
