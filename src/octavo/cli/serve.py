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
    add_options(made, tuple(TOPICS))
    return made


def main(argv: list[str]) -> int:
    asked, _ = parse(parser(), argv, tuple(TOPICS))
    from octavo.launch.serve import serve

    return serve(asked)
