"""From what the user calls a model to a path on this machine. Never downloads (law 5)."""

from __future__ import annotations

import difflib
import os

from octavo import env
from octavo.config.model import ModelAsked
from octavo.errors import ConfigError


def find_model(asked: ModelAsked) -> tuple[str, str]:
    """(path, name as served). Raises ConfigError that says how to get the model."""
    from octavo import registry
    from octavo.weights import fetch

    if asked.model is None:
        name = registry.DEFAULT_MODEL
        path = fetch.locate(name, asked.download_dir)
        if path is None:
            raise ConfigError(
                f"no model is named, and the default one ({name}) is not on this machine",
                fix=f"`{env.command(f'pull {name}')}` fetches it",
            )
        return str(path), name
    if os.path.exists(asked.model):
        for flag, value in (("--revision", asked.revision), ("--download-dir", asked.download_dir)):
            if value is not None:
                raise ConfigError(
                    f"{flag} cannot act: the model is the path {asked.model}", fix=f"leave {flag} out"
                )
        return os.path.abspath(asked.model), asked.model
    looks_like_path = asked.model.endswith((".gguf", ".safetensors")) or asked.model.startswith(
        (".", "/", "~")
    )
    if not looks_like_path:
        path = fetch.locate(asked.model, asked.download_dir, asked.revision)
        if path is not None:
            return str(path), asked.model
        if asked.model in registry.MODELS:
            raise ConfigError(
                f"model {asked.model!r} is not on this machine",
                fix=f"`{env.command(f'pull {asked.model}')}` fetches it",
            )
        if asked.model.count("/") == 1:
            raise ConfigError(
                f"model {asked.model!r} is neither a path nor in the Hugging Face cache",
                fix=f"`{env.command(f'pull hf:{asked.model}')}` fetches it",
            )
    close = difflib.get_close_matches(asked.model, registry.MODELS, 1)
    hint = f"did you mean {close[0]}?" if close else f"or pull one of: {', '.join(sorted(registry.MODELS))}"
    raise ConfigError(f"model {asked.model!r} does not exist", fix=f"check the path, {hint}")
