"""`plan` refuses what `serve` would refuse: the text side of a model is checked by one function for both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.api.client import EngineClient
from octavo.config.load import asked_from
from octavo.errors import ConfigError, UserError
from octavo.launch.find import find_model
from octavo.launch.front import Front
from octavo.launch.plan import make_plan, plan_at
from octavo.launch.text import generation_config


def start(values: dict[str, Any], folder: Path) -> None:
    """As much of a start as reads the text side."""
    asked = asked_from(values)
    planned = plan_at(*find_model(asked.model), asked)
    plan = planned.resolved
    front = Front(EngineClient(), asked, plan.server, plan.engine, folder=str(folder))
    try:
        front.build(planned.source)
    finally:
        if front.state is not None:
            front.state.pool.close()


def error_of(what: Any) -> str:
    with pytest.raises(UserError) as caught:
        what()
    return str(caught.value)


HOSTILE: list[tuple[str, Any]] = [
    ("tokenizer", "no/such"),
    ("tokenizer", "{folder}"),
    ("tokenizer", "{folder}/model.bin"),
    ("generation_config", "no/such"),
    ("generation_config", "{folder}"),
    ("generation_config", "{folder}/list.json"),
    ("override_generation_config", {"temperature": 9}),
    ("override_generation_config", {"top_k": -5}),
    ("override_generation_config", {"eos_token_id": "x"}),
    ("override_generation_config", {"eos_token_id": [10**9]}),
    ("override_generation_config", {"zzz": 1}),
]


@pytest.mark.parametrize(("name", "value"), HOSTILE)
def test_both_refuse_it_with_the_same_words(smollm2_path: str, tmp_path: Path, name: str, value: Any) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": "hot"}))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "model.bin").write_bytes(bytes(range(256)))
    if isinstance(value, str):
        value = value.replace("{folder}", str(tmp_path))
    values = {"model": smollm2_path, "max_model_len": 256, name: value}
    planned = error_of(lambda: make_plan(asked_from(values)))
    assert planned == error_of(lambda: start(values, tmp_path))


def test_both_take_what_is_sound(smollm2_path: str, tmp_path: Path) -> None:
    values = {"model": smollm2_path, "override_generation_config": {"temperature": 0.5, "eos_token_id": [2]}}
    make_plan(asked_from(values))
    start(values, tmp_path)


def test_only_an_operators_number_caps_answers(smollm2_path: str, tmp_path: Path) -> None:
    """What comes with a model is advice: a request may ask for more."""
    (tmp_path / "generation_config.json").write_text(json.dumps({"max_new_tokens": 7, "max_tokens_cap": 1}))
    for fields, cap in (
        ({}, None),
        ({"override_generation_config": {"temperature": 0.5}}, None),
        ({"override_generation_config": {"max_new_tokens": 5}}, 5),
        ({"generation_config": str(tmp_path)}, 7),
        ({"generation_config": str(tmp_path), "override_generation_config": {"max_new_tokens": 9}}, 9),
        ({"generation_config": "octavo"}, None),
    ):
        asked = asked_from({"model": smollm2_path, **fields})
        assert generation_config(make_plan(asked).source, asked)["max_tokens_cap"] == cap


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{", "line 1"),
        ("{% for m in messages %}x", "line 1"),
        ("{{ messages | nosuchfilter }}", "nosuchfilter"),
        ("no/such/file", "existing file"),
    ],
)
def test_a_chat_template_that_does_not_compile_ends_the_start(
    smollm2_path: str, tmp_path: Path, template: str, words: str
) -> None:
    """Before, every chat was a 400 instead."""
    with pytest.raises(ConfigError, match="--chat-template") as caught:
        start({"model": smollm2_path, "chat_template": template}, tmp_path)
    assert words in str(caught.value)


def test_a_chat_template_in_a_file_that_is_no_text(smollm2_path: str, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_bytes(b"{{ \xff }}")
    with pytest.raises(ConfigError, match="cannot be read"):
        start({"model": smollm2_path, "chat_template": str(tmp_path / "t.jinja")}, tmp_path)


def test_a_chat_template_that_compiles_is_taken(smollm2_path: str, tmp_path: Path) -> None:
    good = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    start({"model": smollm2_path, "chat_template": good}, tmp_path)
