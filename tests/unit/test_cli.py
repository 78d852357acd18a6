"""Commands without a model: help, refusals, exit codes, the client against a fake server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from octavo.cli import main as cli
from octavo.cli import talk
from octavo.cli.client import Server, ServerError


def run(*argv: str) -> int:
    return cli.main(list(argv))


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(command, "--help")
    assert ended.value.code == 0
    assert f"octavo {command}" in capsys.readouterr().out


def test_usage_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in cli.COMMANDS)
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("octavo ")
    assert run() == 2


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["sevre"], "did you mean serve"),
        (["run-batch"], "refuses"),
        (["serve", "--enable-lora"], "LoRA"),
        (["serve", "--prot", "1"], "--port"),
        (["plan", "--port", "1"], "--port is not an option of `octavo plan`"),
        (["serve", "--version"], "`octavo --version`"),
        (["serve", __file__, "--port", "0"], "pull --list"),
        (["pull"], "octavo: NAME is missing"),
        (["bench"], "serve|step"),
        (["serve", "nowhere.gguf", "--port", "0"], "nowhere.gguf"),
        (["chat", "--bogus"], "--bogus"),
        (["chat", "--url", "ftp://x", "-q", "hi"], "--url"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_a_code(
    argv: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*argv) in (1, 2)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.strip().splitlines()) == 1
    assert shown.err.startswith("octavo: ")
    assert not shown.err.startswith("octavo: octavo")
    assert word in shown.err


def test_collect_env_prints_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "very-secret")
    assert run("collect-env") == 0
    shown = capsys.readouterr().out
    assert "very-secret" not in shown
    assert "OCTAVO_API_KEY" in shown


# ---- the terminal client ----------------------------------------------------------------------------


class _Fake(BaseHTTPRequestHandler):
    """A server that streams two words; keeps what it was asked."""

    bodies: ClassVar[list[dict[str, Any]]] = []
    breaks_off = False

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._reply(200, "application/json", json.dumps({"data": [{"id": "fake"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).bodies.append(body)
        if "prompt" not in body and body["messages"][-1]["content"] == "refuse":
            self._reply(
                400, "application/json", json.dumps({"error": {"message": "no", "param": "messages"}})
            )
            return
        key = "text" if "prompt" in body else "delta"
        events = [{"choices": [{key: "Hel" if key == "text" else {"content": "Hel"}}]}]
        events.append({"choices": [{key: "lo" if key == "text" else {"content": "lo"}}]})
        if key == "delta" and body["messages"][-1]["content"] == "think":
            events.insert(0, {"choices": [{"delta": {"reasoning": "Hm."}}]})
        events.append({"choices": [], "usage": {"completion_tokens": 2}})
        lines = [f"data: {json.dumps(e)}" for e in events] + ([] if self.breaks_off else ["data: [DONE]"])
        self._reply(200, "text/event-stream", "\n\n".join(lines) + "\n\n")

    def _reply(self, status: int, kind: str, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def url() -> Iterator[str]:
    _Fake.bodies, _Fake.breaks_off = [], False
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Fake)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_quick_chat_streams_and_names_the_first_model(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("chat", "--url", url, "-q", "hi", "--system-prompt", "be brief", "--stats") == 0
    shown = capsys.readouterr()
    assert shown.out == "Hello\n"
    assert "2 tokens" in shown.err
    (body,) = _Fake.bodies
    assert body["model"] == "fake"
    assert body["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


def test_thoughts_show_apart_from_the_answer(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("chat", "--url", url, "-q", "think") == 0
    shown = capsys.readouterr()
    assert shown.out == "Hello\n"
    assert shown.err == "Hm.\n\n"


def test_quick_completion(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("complete", "--url", url, "-q", "once", "--max-tokens", "5", "--model-name", "mine") == 0
    assert capsys.readouterr().out == "Hello\n"
    assert _Fake.bodies[0] == {
        "model": "mine", "prompt": "once", "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_the_address_may_lack_v1(url: str, end: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("complete", "--url", url.removesuffix("/v1") + end, "-q", "once") == 0
    assert capsys.readouterr().out == "Hello\n"


@pytest.mark.parametrize(
    ("lines", "sent"),
    [
        (["^C", "^C", "no"], []),
        (["hel^C", "hi", "^C", "^D"], ["hi"]),
        (["hel^C", "lo^C", "hi", "^D"], ["hi"]),
    ],
)
def test_ctrl_c_at_the_prompt_clears_the_line(
    lines: list[str], sent: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left, line = iter(lines), ""

    def typed(prompt: str = "") -> str:
        nonlocal line
        line = next(left)
        if line == "^D":
            raise EOFError
        if line.endswith("^C"):
            raise KeyboardInterrupt
        return line

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(talk, "_typed", lambda: line.removesuffix("^C"))
    assert list(talk.prompts("hint")) == sent
    assert "Ctrl-C again or Ctrl-D ends" in capsys.readouterr().err


def test_chat_keeps_the_conversation(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["one", "", "two"])

    def typed(prompt: str = "") -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    assert run("chat", "--url", url) == 0
    assert [m["content"] for m in _Fake.bodies[1]["messages"]] == ["one", "Hello", "two"]


def test_a_refusal_shows_the_servers_words(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("chat", "--url", url, "-q", "refuse") == 2
    assert "refused (400): no" in capsys.readouterr().err


def test_a_stream_that_breaks_off_is_an_error(url: str) -> None:
    _Fake.breaks_off = True
    with pytest.raises(ServerError, match="broke off"):
        list(Server(url).stream("/completions", {"prompt": "x"}))


def test_no_server_is_an_error_with_a_fix(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["chat", "-q", "hi"], ["complete", "-q", "hi"], ["bench", "serve"]):
        assert run(*words, "--url", "http://127.0.0.1:9/v1") == 2
        shown = capsys.readouterr().err
        assert "octavo serve" in shown
        assert "--url" in shown


def test_a_model_file_that_is_none_ends_as_every_error_of_a_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the user can fix is code 2: a file, a flag, a name."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model at all")
    for words in (
        ["plan", str(broken)],
        ["plan", str(tmp_path / "gone.gguf")],
        ["plan", "--block-size", "0"],
    ):
        assert run(*words) == 2, words
        assert capsys.readouterr().err
