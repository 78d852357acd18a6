"""Real processes: starts that fail readably, engines that die, signals, orphans (BB-142, BB-113, P126, P132, P161)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

import pytest
from tests.multi.launched import (
    START_TIMEOUT_S,
    Launched,
    Stream,
    command,
    environment,
    free_port,
    launched,
    run_to_end,
)

from octavo import LLM, BeamSearchParams

PROMPT = "The three primary colours are"


@pytest.fixture(scope="module")
def server(smollm2_path: str) -> Iterator[Launched]:
    with launched(smollm2_path) as running:
        yield running


# ---- starts that fail (BB-142) ----------------------------------------------------------------------


def check_failure(stderr: str, code: int, *words: str) -> None:
    lines = stderr.strip().splitlines()
    assert code != 0
    assert 0 < len(lines) < 20, stderr
    for word in words:
        assert word in lines[-1], stderr
    assert "Traceback" not in stderr


def test_a_wrong_path() -> None:
    got = run_to_end("serve", "no/such/model.gguf", "--port", "0")
    check_failure(got.stderr, got.returncode, "no/such/model.gguf", "does not exist", "check the path")


def test_a_busy_port(smollm2_path: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        got = run_to_end("serve", smollm2_path, "--port", str(port))
    check_failure(got.stderr, got.returncode, str(port), "in use", "--port")


def test_too_large_a_context(smollm2_path: str) -> None:
    got = run_to_end("serve", smollm2_path, "--port", "0", "--max-model-len", "100000")
    check_failure(got.stderr, got.returncode, "100,000", "--max-model-len 8192")


def test_a_damaged_file(smollm2_path: str, tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "cut.gguf")
    with open(smollm2_path, "rb") as whole, open(path, "wb") as cut:
        cut.write(whole.read(3_000_000))
    got = run_to_end("serve", path, "--port", "0")
    check_failure(got.stderr, got.returncode, "cut.gguf")


def test_a_model_that_is_not_here_names_the_command(tmp_path: os.PathLike[str]) -> None:
    got = run_to_end("serve", "--port", "0", OCTAVO_CACHE=str(tmp_path))
    check_failure(got.stderr, got.returncode, "octavo pull smollm2")


# ---- a running server -------------------------------------------------------------------------------


def test_it_answers_and_says_what_runs(server: Launched) -> None:
    assert server.request("GET", "/health")[0] == 200
    assert server.completion(prompt=PROMPT, max_tokens=4, temperature=0)
    assert "threads" in server.log
    assert "kv cache" in server.log


def test_streams_go_on_when_the_engine_dies(server: Launched) -> None:
    body = {"prompt": PROMPT, "max_tokens": 96, "temperature": 0, "ignore_eos": True}
    undisturbed = server.completion(**body)
    (pid,) = server.engine_pids()
    streams = [Stream(server, **body) for _ in range(4)]
    for stream in streams:
        assert stream.has_begun.wait(START_TIMEOUT_S)
    os.kill(pid, signal.SIGKILL)
    for stream in streams:
        stream.join(START_TIMEOUT_S)
        assert stream.is_done
        assert stream.finish == "length"
        assert stream.text == undisturbed
    assert "SIGKILL" in server.log
    assert server.engine_pids() != [pid]


def test_an_idle_engine_that_dies_is_replaced(server: Launched) -> None:
    (pid,) = server.engine_pids()
    os.kill(pid, signal.SIGKILL)
    assert server.completion(prompt=PROMPT, max_tokens=4, temperature=0)
    assert server.engine_pids() != [pid]


# ---- the end ----------------------------------------------------------------------------------------


def test_sigterm_drains(smollm2_path: str) -> None:
    with launched(smollm2_path) as server:
        body = {"prompt": PROMPT, "max_tokens": 128, "temperature": 0, "ignore_eos": True}
        streams = [Stream(server, **body) for _ in range(2)]
        for stream in streams:
            assert stream.has_begun.wait(START_TIMEOUT_S)
        server.process.send_signal(signal.SIGTERM)
        seen = _status_while_running(server, streams)
        for stream in streams:
            stream.join(START_TIMEOUT_S)
            assert stream.is_done
            assert stream.finish == "length"
        assert server.wait() == 0
        assert seen == {503}
        assert server.engine_pids() == []


def _status_while_running(server: Launched, streams: list[Stream]) -> set[int]:
    """What a new request gets from the moment on at which the signal was seen."""
    while server.request("GET", "/health")[0] == 200 and all(s.is_alive() for s in streams):
        time.sleep(0.005)
    return {server.request("POST", "/v1/completions", {"prompt": "x"})[0]}


def test_a_second_interrupt_ends_at_once(smollm2_path: str) -> None:
    with launched(smollm2_path) as server:
        stream = Stream(server, prompt=PROMPT, max_tokens=512, temperature=0, ignore_eos=True)
        assert stream.has_begun.wait(START_TIMEOUT_S)
        server.process.send_signal(signal.SIGINT)
        server.wait_for_line("finishing 1 request, for at most 30 s; Ctrl-C again ends at once")
        assert server.end(signal.SIGINT) == 130
        assert server.engine_pids() == []


@pytest.mark.parametrize("signals", [(signal.SIGTERM,) * 3, (signal.SIGINT, signal.SIGTERM)])
def test_signals_in_a_row_end_an_idle_server_once(smollm2_path: str, signals: tuple[int, ...]) -> None:
    with launched(smollm2_path) as server:
        for number in signals:
            server.process.send_signal(number)
            time.sleep(0.01)
        assert server.wait() == 0
        assert server.lines[-1] == "octavo: stopped"
        assert "finishing" not in server.log
        assert server.engine_pids() == []


def test_sigterm_again_does_not_cut_the_drain(smollm2_path: str) -> None:
    with launched(smollm2_path) as server:
        stream = Stream(server, prompt=PROMPT, max_tokens=200, temperature=0, ignore_eos=True)
        assert stream.has_begun.wait(START_TIMEOUT_S)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_line("draining: 1 request, for at most 30 s")
        assert server.end(signal.SIGTERM) == 0
        stream.join(START_TIMEOUT_S)
        assert stream.is_done
        assert stream.finish == "length"


@pytest.mark.parametrize("signals", [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT,) * 3])
def test_ending_at_once_leaves_nothing(
    smollm2_path: str, signals: tuple[int, ...], tmp_path: os.PathLike[str]
) -> None:
    path = os.path.join(tmp_path, "octavo.sock")
    temporary = tempfile.mkdtemp()
    process = subprocess.Popen(
        command("serve", smollm2_path, "--max-model-len", "8192", "--threads", "1", "--uds", path),
        stderr=subprocess.PIPE, text=True, env=environment(TMPDIR=temporary),
    )  # fmt: skip
    server = Launched(process, 0)
    try:
        server.wait_for_line("octavo: ready:")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            body = b'{"prompt": "One, two,", "max_tokens": 8000, "stream": true, "ignore_eos": true}'
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            answer = b""
            while b"data:" not in answer:
                answer += client.recv(65536)
            for number in signals:
                process.send_signal(number)
                time.sleep(0.05)
            while piece := client.recv(65536):
                answer += piece
        assert server.wait() == 130
        if len(signals) == 2:
            assert b"shut down before this request had ended" in answer
        assert not os.path.exists(path)
        assert os.listdir(temporary) == []
        assert server.engine_pids() == []
    finally:
        if process.poll() is None:
            process.kill()
        server.wait()
        assert process.stderr is not None
        process.stderr.close()
        shutil.rmtree(temporary)


def test_a_server_whose_log_nobody_reads_serves_and_drains(smollm2_path: str) -> None:
    """The other end of its stderr is closed: no line of its can fail, and SIGTERM still ends it."""
    port = free_port()
    process = subprocess.Popen(
        command("serve", smollm2_path, "--max-model-len", "512", "--threads", "1", "--port", str(port)),
        stderr=subprocess.PIPE,
        env=environment(),
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if b"octavo: ready:" in line:
                break
        process.stderr.close()
        server = Launched.__new__(Launched)
        server.process, server.port = process, port
        stream = Stream(server, prompt="On", max_tokens=100, temperature=0, ignore_eos=True)
        assert stream.has_begun.wait(START_TIMEOUT_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_TIMEOUT_S) == 0
        stream.join(START_TIMEOUT_S)
        assert stream.is_done and stream.finish == "length"
    finally:
        process.kill()
        process.wait()


def test_the_engine_dies_with_its_parent(smollm2_path: str) -> None:
    with launched(smollm2_path) as server:
        assert len(server.engine_pids()) == 1
        server.end(signal.SIGKILL)
        deadline = time.monotonic() + START_TIMEOUT_S
        while server.engine_pids() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert server.engine_pids() == []


def test_the_folder_of_a_killed_server_goes_at_the_next_start(
    smollm2_path: str, tmp_path: os.PathLike[str]
) -> None:
    place = {"TMPDIR": str(tmp_path)}
    with launched(smollm2_path, **place) as first:
        (folder,) = os.listdir(tmp_path)
        with launched(smollm2_path, **place) as second:
            assert set(os.listdir(tmp_path)) > {folder}  # a running server's stays
            second.end()
        assert os.listdir(tmp_path) == [folder]
        first.end(signal.SIGKILL)
    assert os.listdir(tmp_path) == [folder]
    with launched(smollm2_path, **place):
        assert folder not in os.listdir(tmp_path)


def test_beam_search_over_http_is_beam_search_offline(server: Launched, smollm2_path: str) -> None:
    body = {"prompt": PROMPT, "use_beam_search": True, "n": 4, "max_tokens": 10, "return_token_ids": True}
    status, text = server.request("POST", "/v1/completions", body)
    assert status == 200, text
    served = json.loads(text)
    with LLM(smollm2_path, max_model_len=256, max_num_seqs=4, threads=1) as llm:
        (offline,) = llm.beam_search(PROMPT, BeamSearchParams(beam_width=4, max_tokens=10))
    assert [c["token_ids"] for c in served["choices"]] == [c.token_ids for c in offline.outputs]
    assert [c["text"] for c in served["choices"]] == [c.text for c in offline.outputs]
    assert served["usage"]["completion_tokens"] == sum(len(c.token_ids) for c in offline.outputs)
