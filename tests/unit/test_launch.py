"""Of launch, what needs no engine: sockets, signals, rows of the table."""

from __future__ import annotations

import signal
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from octavo.cli.serve import main as serve_command
from octavo.config.asked import Asked
from octavo.config.parallel import ParallelAsked
from octavo.config.plan import ServerPlan
from octavo.config.server import ServerAsked
from octavo.errors import ConfigError
from octavo.launch import facts
from octavo.launch.serve import listen, listen_all
from octavo.launch.server import is_local
from octavo.launch.signals import Signals
from octavo.llm import LLM


def test_a_native_module_is_one_of_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "__file__", str(tmp_path / "launch" / "facts.py"))
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name in ("_native.pyi", "_native.cpython-27-x.so"):  # types alone, and what another Python loads
        (folder / name).touch()
    assert not facts.has_native()
    (folder / f"_native{EXTENSION_SUFFIXES[0]}").touch()
    assert facts.has_native()


def test_a_socket_that_a_killed_server_left_is_taken_over(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    listen(ServerAsked(uds=path)).close()
    with listen(ServerAsked(uds=path)) as bound:
        bound.listen()
        with pytest.raises(ConfigError, match="another --uds"):
            listen(ServerAsked(uds=path))


def test_a_file_that_is_no_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="cannot listen"):
        listen(ServerAsked(uds=str(path)))
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("example.org", False)],
)  # fmt: skip
def test_who_reaches_an_address(host: str, local: bool) -> None:
    assert is_local(ServerPlan(host=host, port=1, served_names=("m",))) is local


def test_signals_are_told_once_and_clean_up_what_is_still_theirs(tmp_path: Path) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    signals, told = Signals(), []
    try:
        ours, theirs, folder = tmp_path / "ours", tmp_path / "theirs", tmp_path / "folder"
        folder.mkdir()
        for path in (ours, theirs):
            path.touch()
            signals.own_file(str(path))
        (tmp_path / "new").touch()
        (tmp_path / "new").replace(theirs)  # another server has taken the place
        signals.own_folder(str(folder))
        signal.raise_signal(signal.SIGTERM)
        signals.tell(lambda: told.append(signals.first))
        signal.raise_signal(signal.SIGTERM)
        signals.clean_up()
    finally:
        signals.restore()
    assert told == [signal.SIGTERM]
    assert not signals.is_hurried
    assert [p.name for p in tmp_path.iterdir()] == ["theirs"]
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before


def test_the_default_model_is_fetched_only_when_none_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fetched: list[str] = []
    monkeypatch.setattr("octavo.weights.fetch.fetch", lambda name, folder: fetched.append(name))
    monkeypatch.setattr("octavo.launch.serve.serve", lambda asked: 0)
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    config = tmp_path / "x.yaml"
    for text, words, count in (
        ("threads: 1", ["--config", str(config)], 1),
        ("model: other", ["--config", str(config)], 0),
        ("", ["--threads", "1", "gemma3-270m"], 0),
        ("", ["--threads", "1"], 1),
    ):
        config.write_text(text)
        fetched.clear()
        assert serve_command(["--pull-default", *words]) == 0
        assert fetched == ["smollm2"] * count
    fetched.clear()
    assert serve_command([]) == 0
    assert fetched == []


def test_api_processes_get_a_socket_each_at_one_address(tmp_path: Path) -> None:
    parallel = ParallelAsked(api_server_count=3)
    sockets = listen_all(Asked(server=ServerAsked(port=0), parallel=parallel))
    assert len({one.fileno() for one in sockets}) == 3
    assert len({one.getsockname() for one in sockets}) == 1
    port = sockets[0].getsockname()[1]
    for one in sockets:
        one.listen()
    with pytest.raises(ConfigError, match="cannot listen"):
        listen_all(Asked(server=ServerAsked(port=port), parallel=parallel))
    path = str(tmp_path / "s")
    unix = listen_all(Asked(server=ServerAsked(uds=path), parallel=parallel))
    assert [one.getsockname() for one in unix] == [path] * 3
    for one in (*sockets, *unix):
        one.close()


def test_without_a_server_there_are_no_api_processes() -> None:
    with pytest.raises(ConfigError, match="an LLM has no API process"):
        LLM("nowhere", api_server_count=2)
