"""Names from files and requests cannot write lines of their own into logs and errors, nor texts into streams."""

from __future__ import annotations

import json
import logging
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit import gguf_files as make

from octavo.api.writers.sse import frame
from octavo.cli.main import main
from octavo.errors import ConfigError, InvalidRequest, WeightError
from octavo.launch.logs import _Line
from octavo.launch.table import render
from octavo.util.lines import one_line
from octavo.weights.load import open_model

HOSTILE = "x\n12:00:00 info octavo.request: all is well\r\x1b[2J\u2028\u202e"


@given(st.text())
def test_whatever_comes_out_is_one_line_that_a_terminal_shows_as_it_is(text: str) -> None:
    made = one_line(text)
    assert len(made.splitlines()) <= 1
    assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in made)
    if text.isprintable():
        assert made == text
    made.encode()


def test_what_is_spelled_out_can_be_read() -> None:
    assert one_line("a\nb\tc\x1b[0m\u2028") == r"a\nb\tc\x1b[0m\u2028"
    assert one_line("中 é 👩‍🚀\u3000") == "中 é 👩‍🚀\u3000"


def test_errors_are_one_line() -> None:
    error = InvalidRequest(f"no {HOSTILE}", fix=f"not {HOSTILE}")
    assert len(str(error).splitlines()) == 1
    assert str(ConfigError("plain")) == "plain"


def test_records_are_one_line() -> None:
    record = logging.makeLogRecord({"msg": "the name is %s", "args": (HOSTILE,), "levelname": "info"})
    assert len(_Line("%(levelname)s: %(message)s").format(record).splitlines()) == 1


def test_a_row_of_a_table_is_no_two_rows() -> None:
    assert len(render([["name", HOSTILE, "y"]]).splitlines()) == 1


def test_a_key_of_a_file_writes_no_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OCTAVO_LOG_LEVEL", raising=False)
    metadata = make.llama_metadata()
    metadata["general.architecture"] = (make.STRING, HOSTILE)
    path = tmp_path / "m.gguf"
    path.write_bytes(make.with_tensors(metadata, {}))
    with pytest.raises((WeightError, ConfigError)) as caught:
        open_model(str(path))
    assert len(str(caught.value).splitlines()) == 1
    assert main(["plan", str(path)]) != 0
    shown = capsys.readouterr().err
    assert "all is well" in shown
    assert len(shown.splitlines()) == 1


def test_a_frame_of_a_stream_is_one_line_by_every_reading() -> None:
    text = "a\x85b\u2028c\u2029d\x1ce\x0bf\r\n é 日本 🙂"
    data = frame({"text": text}).decode()
    assert data.splitlines() == [data.rstrip("\n"), ""]
    assert json.loads(data.removeprefix("data: ")) == {"text": text}
