"""`octavo chat`: a conversation with a running server, streamed to the terminal."""

from __future__ import annotations

from octavo.cli.talk import connect, parser, prompts, show


def main(argv: list[str]) -> int:
    made = parser("octavo chat", "Talk to a running server. Ctrl-C stops an answer, Ctrl-D ends.")
    made.add_argument("--system-prompt", metavar="TEXT", help="first message of the conversation")
    made.add_argument("--temperature", type=float, help="default: the server's")
    made.add_argument("--max-tokens", type=int, help="default: what is left of the context")
    given = made.parse_args(argv)
    server, model = connect(given)
    messages = [{"role": "system", "content": given.system_prompt}] if given.system_prompt else []
    options = {k: v for k in ("temperature", "max_tokens") if (v := getattr(given, k)) is not None}
    for text in [given.quick] if given.quick is not None else prompts(f"{model}; Ctrl-D ends"):
        messages.append({"role": "user", "content": text})
        body = {"model": model, "messages": messages, **options}
        try:
            answer = show(server.stream("/chat/completions", body), "delta", given.stats)
        except KeyboardInterrupt:
            print()
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": answer})
    return 0
