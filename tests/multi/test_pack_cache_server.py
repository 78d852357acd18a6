"""The pack cache of real servers: two at once, a damaged file, a folder that is not to be had, `LLM` and `explain`."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.multi.launched import START_TIMEOUT_S, Launched, launched, run_to_end

from octavo import LLM, SamplingParams
from octavo.errors import ConfigError

PROMPT = "The three primary colours are"
SMALL: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": 4, "threads": 1}


def row_of(server: Launched) -> list[str]:
    rows = json.loads(server.request("GET", "/server_info")[1])["table"]
    (found,) = [row for row in rows if row[0] == "pack cache"]
    return [str(cell) for cell in found]


def answer(server: Launched) -> str:
    return server.completion(prompt=PROMPT, max_tokens=24, temperature=0)


def packs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.pack"))


def wait_for_pack(folder: Path) -> Path:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not packs(folder) and time.monotonic() < deadline:
        time.sleep(0.02)
    (file,) = packs(folder)
    return file


def mapped_by(pid: int, file: Path) -> bool:
    return str(file) in Path(f"/proc/{pid}/maps").read_text()


def test_servers_share_a_file_and_answer_the_same(smollm2_path: str, tmp_path: Path) -> None:
    flags = ("--pack-cache-dir", str(tmp_path))
    with launched(smollm2_path, "--no-pack-cache") as plain:
        expected = answer(plain)
        assert row_of(plain)[1:] == ["off", "--no-pack-cache"]
    with launched(smollm2_path, *flags) as first:
        assert row_of(first)[1] == "miss"
        file = wait_for_pack(tmp_path)
        with launched(smollm2_path, *flags) as second:
            assert row_of(second)[1] == "hit"
            assert any("pack cache" in line for line in second.lines)
            (pid,) = second.engine_pids()
            assert mapped_by(pid, file)
            file.unlink()  # as another server's cap may do
            assert [answer(first), answer(second)] == [expected, expected]
            os.kill(pid, signal.SIGKILL)  # its successor packs again, in the middle of nothing
            second.wait_for_line("is back")
            assert answer(second) == expected


def test_a_damaged_file_is_one_line_and_made_anew(smollm2_path: str, tmp_path: Path) -> None:
    flags = ("--pack-cache-dir", str(tmp_path))
    with launched(smollm2_path, *flags) as server:
        expected, file = answer(server), wait_for_pack(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] + b"?" + whole[len(whole) // 2 + 1 :])
    with launched(smollm2_path, *flags) as server:
        assert answer(server) == expected
        outcome, reason = row_of(server)[1:]
        assert outcome == "miss" and "is damaged in " in reason
        said = [line for line in server.lines if "packed again" in line]
        assert len(said) == 1
        deadline = time.monotonic() + START_TIMEOUT_S
        while file.read_bytes() != whole and time.monotonic() < deadline:
            time.sleep(0.05)
    assert file.read_bytes() == whole


def test_no_folder_is_no_reason_not_to_start(smollm2_path: str, tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    with launched(smollm2_path, OCTAVO_PACK_CACHE=str(place / "folder")) as server:
        assert answer(server)
        assert "not kept: Not a directory" in row_of(server)[2]
        assert len([line for line in server.lines if "are not kept" in line]) == 1


@pytest.mark.parametrize("quantization", [None, "w8", "w4", "none"])
def test_llm_and_explain(smollm2_path: str, tmp_path: Path, quantization: str | None) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=5)
    flags = ["--pack-cache-dir", str(tmp_path), "--threads", "1", "--max-model-len", "512"]
    flags += [] if quantization is None else ["-q", quantization]
    answers, outcomes, explained = [], [], []
    for folder in (None, tmp_path, tmp_path):
        asked = {"pack_cache": False} if folder is None else {"pack_cache_dir": str(folder)}
        shown = run_to_end("explain", smollm2_path, "--no-program", *flags).stdout
        explained.append(
            next(line.split()[2] for line in shown.splitlines() if line.startswith("pack cache"))
        )
        with LLM(smollm2_path, quantization=quantization, **SMALL, **asked) as llm:
            (output,) = llm.generate(PROMPT, params, use_tqdm=False)
            answers.append((output.outputs[0].token_ids, output.outputs[0].logprobs))
            outcomes += [row[1] for row in llm.table if row[0] == "pack cache"]
    assert outcomes == ["off", "miss", "hit"]
    assert explained == ["miss", "miss", "hit"]
    assert answers[0] == answers[1] == answers[2]


def test_flags_that_cannot_act_are_refused() -> None:
    with pytest.raises(ConfigError, match="--no-pack-cache"):
        LLM("smollm2", pack_cache=False, pack_cache_bytes="1G")
