"""The text side of a model as it was asked for: tokenizer, chat template, defaults of sampling."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.config.asked import Asked
from octavo.errors import ConfigError
from octavo.weights.source import ModelSource, TokenizerFiles

if TYPE_CHECKING:
    from octavo.api.text.tokenizer import Tokenizer

NO_GENERATION_CONFIG = ("octavo", "vllm")


def load_codec(source: ModelSource, asked: Asked) -> Tokenizer:
    """The model's tokenizer, or the one of --tokenizer. Raises ConfigError, WeightError."""
    from octavo.api.text.tokenizer import load_tokenizer

    given = asked.model.tokenizer
    if given is None:
        return load_tokenizer(source)
    path = Path(given)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(
            f"--tokenizer is {given!r}", fix="give a tokenizer.json, or a directory that has one"
        )
    config = file.with_name("tokenizer_config.json")
    files = TokenizerFiles(
        tokenizer_json=str(file),
        tokenizer_config=_read_json(config, "--tokenizer") if config.is_file() else {},
    )
    return load_tokenizer(replace(source, tokenizer=files))


def chat_template(source: ModelSource, asked: Asked) -> str | None:
    """--chat-template (a file, or the template itself), else the model's own."""
    given = asked.server.chat_template
    if given is None:
        return source.chat_template
    path = Path(given) if len(given) < 4096 and "\n" not in given else None
    if path is not None and path.is_file():
        return path.read_text(encoding="utf-8")
    if "{" not in given:
        raise ConfigError(f"--chat-template is {given!r}", fix="give an existing file, or a template")
    return given


def generation_config(source: ModelSource, asked: Asked) -> dict[str, Any]:
    """--generation-config, changed by --override-generation-config. Unknown keys there are refused."""
    from octavo.api.sampling import SamplingDefaults

    where = asked.model.generation_config
    if where == "auto":
        found = dict(source.generation_config)
    elif where in NO_GENERATION_CONFIG:
        # ids that end an answer are facts of the model, not defaults of sampling
        found = {k: v for k, v in source.generation_config.items() if k == "eos_token_id"}
    else:
        path = Path(where)
        found = _read_json(path / "generation_config.json" if path.is_dir() else path, "--generation-config")
    override = asked.model.override_generation_config
    known = [name for name in SamplingDefaults.__struct_fields__ if name != "eos_token_ids"] + [
        "eos_token_id"
    ]
    for key in override:
        if key not in known:
            raise ConfigError(
                f"--override-generation-config sets {key!r}, which acts on nothing",
                fix=f"allowed: {', '.join(known)}",
            )
    return found | override


def _read_json(path: Path, flag: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{flag}: {path} cannot be read ({error})", fix="check the path") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{flag}: {path} holds no JSON object")
    return content
