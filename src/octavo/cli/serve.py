"""`octavo serve [MODEL]`: an OpenAI-compatible server."""

from __future__ import annotations

from octavo.config.asked import TOPICS
from octavo.config.load import Parser, add_options, parse


def parser() -> Parser:
    made = Parser(
        prog="octavo serve",
        usage="octavo serve [MODEL] [OPTIONS]",
        description="Serve a model over HTTP (OpenAI's API). Without MODEL: the default one, if it has been pulled.",
        allow_abbrev=False,
    )
    made.add_argument("model_tag", metavar="MODEL", nargs="?", help="the same as --model")
    made.add_argument(
        "--pull-default",
        action="store_true",
        help="without MODEL: fetch the default one first, if it is not here (the only download of a server)",
    )
    add_options(made, tuple(TOPICS))
    return made


def pull_default(download_dir: str | None) -> None:
    """Fetches the default model unless it is here; what that takes otherwise is a look at the file."""
    from octavo import registry
    from octavo.weights import fetch

    if fetch.locate(registry.DEFAULT_MODEL, download_dir) is None:
        fetch.fetch(registry.DEFAULT_MODEL, download_dir)


def main(argv: list[str]) -> int:
    asked, given = parse(parser(), argv, tuple(TOPICS))
    if given.pull_default and asked.model.model is None:
        pull_default(asked.model.download_dir)
    from octavo.launch.serve import serve

    return serve(asked)
