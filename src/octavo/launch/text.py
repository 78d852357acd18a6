"""The text side of a model as it was asked for: tokenizer, chat template, defaults of sampling."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.config.asked import Asked
from octavo.errors import ConfigError, InvalidRequest
from octavo.weights.source import ModelSource, TokenizerFiles

if TYPE_CHECKING:
    from octavo.api.prompt import ChatTemplate
    from octavo.api.text.tokenizer import Tokenizer

NO_GENERATION_CONFIG = ("octavo", "vllm")


def load_codec(source: ModelSource, asked: Asked) -> Tokenizer:
    """The model's tokenizer, or the one of --tokenizer. Raises ConfigError, WeightError."""
    return codec_at(source, asked.model.tokenizer)


def codec_at(source: ModelSource, given: str | None) -> Tokenizer:
    """The model's own tokenizer, or the one at the path `given`."""
    from octavo.api.text.tokenizer import load_tokenizer

    if not given:
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
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--chat-template: {path} cannot be read ({error})", fix="check the file"
            ) from None
    if "{" not in given:
        raise ConfigError(f"--chat-template is {given!r}", fix="give an existing file, or a template")
    return given


def check_template(template: ChatTemplate) -> None:
    """Raises ConfigError for an operator's template that does not compile."""
    try:
        template.check()
    except InvalidRequest as error:
        raise ConfigError(f"--chat-template: {error.message}", fix="correct the template") from None


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
    derived = ("eos_token_ids", "max_tokens_cap")
    known = [name for name in SamplingDefaults.__struct_fields__ if name not in derived] + ["eos_token_id"]
    for key in override:
        if key not in known:
            raise ConfigError(
                f"--override-generation-config sets {key!r}, which acts on nothing",
                fix=f"allowed: {', '.join(known)}",
            )
    found = {**found, **override, "max_tokens_cap": None}
    if where not in ("auto", *NO_GENERATION_CONFIG) or "max_new_tokens" in override:
        found["max_tokens_cap"] = found.get("max_new_tokens")  # an operator's number, not a model's advice
    return found


def check_text(source: ModelSource, asked: Asked, vocab_size: int) -> None:
    """What a start refuses of the text side, for who plans one. Raises ConfigError, WeightError."""
    if asked.model.tokenizer:
        load_codec(source, asked)
    check_defaults(source, asked, vocab_size)


def check_defaults(source: ModelSource, asked: Asked, vocab_size: int) -> None:
    """Raises ConfigError for defaults of sampling that no request could have, or that cannot act."""
    from octavo.api.sampling import SamplingDefaults

    defaults = SamplingDefaults.read(generation_config(source, asked))
    is_asked = asked.model.override_generation_config or asked.model.generation_config != "auto"
    for token_id in defaults.eos_token_ids:
        if is_asked and token_id >= vocab_size:
            raise ConfigError(
                f"generation config: eos_token_id has {token_id}; the vocabulary is 0 to {vocab_size - 1}",
                fix="correct it with --override-generation-config",
            )


def _read_json(path: Path, flag: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{flag}: {path} cannot be read ({error})", fix="check the path") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{flag}: {path} holds no JSON object")
    return content
