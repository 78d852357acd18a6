"""`octavo complete`: text completion by a running server, streamed to the terminal."""

from __future__ import annotations

from octavo.cli.talk import connect, parser, prompts, show


def main(argv: list[str]) -> int:
    made = parser(
        "octavo complete", "Complete each line with a running server. Ctrl-C stops an answer, Ctrl-D ends."
    )
    made.add_argument("--max-tokens", type=int, help="most tokens of an answer (default: the server's, 16)")
    made.add_argument("--temperature", type=float, help="default: the server's")
    given = made.parse_args(argv)
    server, model = connect(given)
    options = {k: v for k in ("temperature", "max_tokens") if (v := getattr(given, k)) is not None}
    for text in [given.quick] if given.quick is not None else prompts(f"{model}; Ctrl-D ends"):
        body = {"model": model, "prompt": text, **options}
        try:
            show(server.stream("/completions", body), "text", given.stats)
        except KeyboardInterrupt:
            print()
    return 0
