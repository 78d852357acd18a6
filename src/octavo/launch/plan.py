"""From asked to planned: finds the model, gathers facts, resolves. Reads headers, loads no weights."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from msgspec.structs import replace

from octavo import env
from octavo.config.asked import Asked
from octavo.config.facts import MachineFacts, ModelFacts
from octavo.config.resolve import Resolved, resolve
from octavo.launch.facts import machine_facts, model_facts, open_checked
from octavo.launch.find import find_model
from octavo.launch.text import check_text
from octavo.weights.source import ModelSource


@dataclass(frozen=True, slots=True)
class Planned:
    source: ModelSource
    model: ModelFacts
    machine: MachineFacts
    resolved: Resolved


def make_plan(asked: Asked) -> Planned:
    """Raises ConfigError, WeightError or CapacityError, each with the nearest thing that works."""
    path, name = find_model(asked.model)
    planned = plan_at(path, name, asked)
    check_text(planned.source, asked, planned.model.vocab_size)
    return planned


def plan_at(path: str, name: str, asked: Asked) -> Planned:
    """The same for a model that was found already, whose text side the caller reads by itself."""
    source = open_checked(path, asked.model.load_format)
    model = model_facts(source, name, asked)
    machine = machine_facts()
    resolved = resolve(asked, model, machine)
    key = env.api_key()
    if key is not None and not resolved.server.api_keys:
        resolved = replace(resolved, server=replace(resolved.server, api_keys=(key,)))
    return Planned(source, model, machine, resolved)


def choices(planned: Planned, asked: Asked) -> list[list[str]]:
    """The plan's table for a model that is not started: what only a start decides is not made up."""
    rows = planned.resolved.engine.table
    if asked.model.seed is not None:
        return rows
    return [["seed", "random at start", "--seed sets it"] if row[0] == "seed" else row for row in rows]


def tensor_rows(source: ModelSource) -> list[list[str]]:
    """Rows [type, tensors, parameters, bytes] of what the file holds."""
    count: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for info in source.tensors.values():
        count[info.type] += 1
        elements[info.type] += math.prod(info.shape)
        size[info.type] += info.nbytes
    return [
        [kind, str(count[kind]), f"{elements[kind]:,}", f"{size[kind]:,}"] for kind, _ in size.most_common()
    ]
