"""The load driver against a fake server whose tokens come at known times; figures, ratios, the anatomy of a step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from benchmarks import cases, draw, figures, page, run_bench, serve_load
from benchmarks.cases import Sent
from benchmarks.figures import Seen
from benchmarks.peers import prepare, servers
from benchmarks.serve_load import Target

from octavo.cli import bench_step
from octavo.cli import main as cli
from octavo.config.load import from_keywords
from octavo.launch.facts import optimise
from octavo.launch.plan import make_plan
from octavo.models.registry import build_program
from octavo.program.cost import StepShape, cost_of, unit_of
from octavo.weights.load import open_model


@dataclass
class FakeServer:
    """Streams one completion; its clock is the client's too, and stands still until the client has read it."""

    times_ms: Sequence[int]
    texts: Sequence[str]
    usage: dict[str, int] | None
    cut: int = 0  # bytes of a frame of chunked transfer; 0 = a frame for an event
    now_s: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    _read: asyncio.Event = field(default_factory=asyncio.Event)

    def clock(self) -> float:
        self._read.set()
        return self.now_s

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        self.bodies.append(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for time_ms, text in zip(self.times_ms, self.texts, strict=True):
            await self._event(writer, time_ms, {"choices": [{"text": text}]})
        if self.usage is not None:
            await self._event(writer, self.times_ms[-1] + 500, {"choices": [], "usage": self.usage})
        await self._event(writer, self.times_ms[-1] + 900, None)
        writer.write(b"0\r\n\r\n")
        writer.close()

    async def _event(
        self, writer: asyncio.StreamWriter, time_ms: int, content: dict[str, Any] | None
    ) -> None:
        data = b"data: " + (b"[DONE]" if content is None else json.dumps(content).encode()) + b"\n\n"
        self.now_s = time_ms / 1000
        self._read.clear()
        size = self.cut or len(data)
        for piece in (data[i : i + size] for i in range(0, len(data), size)):
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await self._read.wait()


async def asked(fake: FakeServer, sent: Sent) -> Seen:
    async with await asyncio.start_server(fake.serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        return await serve_load.ask(Target(f"http://127.0.0.1:{port}/v1", "m"), sent, fake.clock)


@pytest.mark.parametrize("cut", [0, 7])
async def test_ttft_is_no_gap_and_tokens_come_from_usage_bb144(cut: int) -> None:
    """Case BB-144. Four chunks; usage says four tokens, whatever the texts would re-tokenise to."""
    texts = ["many words in one chunk", "b", "c", "d"]
    fake = FakeServer([100, 110, 130, 160], texts, {"prompt_tokens": 7, "completion_tokens": 4}, cut)
    seen = await asked(fake, Sent("hello", 4))
    assert not seen.error
    assert seen.ttft_s == pytest.approx(0.100)
    assert seen.gaps_s == pytest.approx([0.010, 0.020, 0.030])
    assert seen.tpot_s == pytest.approx(0.020)
    assert (seen.num_prompt, seen.num_out) == (7, 4)
    got = figures.of_case("c1", "fake", [seen], 2.0)
    assert (got["ttft_p50_ms"], got["itl_p50_ms"], got["itl_p99_ms"]) == (100.0, 20.0, 30.0)
    assert (got["stream_tok_s"], got["output_tokens"], got["out_tok_s"]) == (50.0, 4, 2.0)
    body = fake.bodies[0]
    assert (body["temperature"], body["ignore_eos"], body["max_tokens"]) == (0, True, 4)


async def test_empty_texts_are_no_chunks_and_several_tokens_in_one_count_by_usage() -> None:
    fake = FakeServer([50, 90, 95], ["a", "b", ""], {"prompt_tokens": 1, "completion_tokens": 9})
    seen = await asked(fake, Sent("x", 9))
    assert seen.gaps_s == pytest.approx([0.040])
    assert seen.tpot_s == pytest.approx(0.005)


async def test_a_stream_without_usage_and_a_refused_connection_are_errors() -> None:
    seen = await asked(FakeServer([10], ["a"], None), Sent("x", 1))
    assert "usage" in seen.error
    seen = await serve_load.ask(Target("http://127.0.0.1:9", "m"), Sent("x", 1))
    assert seen.error
    got = figures.of_case("c2", "fake", [seen], 1.0)
    assert (got["n"], got["errors"], got["output_tokens"], got["first_error"]) == (1, 1, 0, seen.error)


def test_prompts_depend_on_the_seed_alone_and_share_only_what_a_case_means_to() -> None:
    for name in cases.CASES:
        again, other = cases.case(name, 3), cases.case(name, 4)
        assert again == cases.case(name, 3)
        mine = {sent.prompt for sent in again.sent}
        assert len(mine) == len(again.sent)
        assert not mine & {sent.prompt for sent in other.sent}
    shared = cases.case("c3", 0)
    heads = {sent.prompt.partition("\n")[0] for sent in shared.sent + shared.first}
    assert len(heads) == 1
    assert [len(cases.case(name, 0).sent) for name in cases.CASES] == [3, 64, 32, 3, 11, 128]
    assert cases.case(cases.TRY, 3).sent != cases.warm_up(3).sent


def result(label: str, bits: int, case: str, **figures_of_it: float) -> dict[str, Any]:
    engine, _, weights = label.partition(" ")
    return {
        "label": label,
        "engine": engine,
        "weights": weights,
        "bits": bits,
        "case": case,
        **figures_of_it,
    }


def test_ratios_are_of_medians_against_the_best_rival_of_no_more_bits() -> None:
    found = [result("octavo w8", 8, "c2", out_tok_s=v, limit=200) for v in (100, 90, 500)]
    found += [result("vllm W8A8", 8, "c2", out_tok_s=50), result("llama.cpp Q4_0", 4, "c2", out_tok_s=40)]
    found += [result("vllm bf16", 16, "c2", out_tok_s=99)]  # more bits: not compared
    found += [result("llama.cpp Q8_0", 8, "c2", out_tok_s=900, errors=1)]  # failed: not compared
    found += [result("octavo w8", 8, "c5", itl_p99_ms=10), result("vllm W8A8", 8, "c5", itl_p99_ms=250)]
    c2, c5 = run_bench.ratios(found, ["c2", "c5"])
    assert (c2["ours"], c2["best"], c2["ratio"], c2["of_limit"]) == (100, "vllm W8A8", 2.0, 0.5)
    assert (c5["best"], c5["ratio"], c5["goal"]) == ("vllm W8A8", 25.0, 20.0)
    assert "yes" in run_bench.render([c2, c5])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--peers", "vllm"], "--vllm-python"),
        (["--peers", "sglang"], "sglang"),
        (["--peers", "vllm", "--vllm-python", "python", "--vllm-models", "bf16=/nowhere"], "/nowhere"),
    ],
)
def test_a_rival_that_is_not_placed_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        run_bench.chosen_sides(run_bench.parser().parse_args(words))


def test_what_is_prepared_is_placed_by_its_file_of_flags(tmp_path: Path) -> None:
    """As `--peers ... @FILE` reads it; a rival that is not there is not named."""
    made = {name: tmp_path / name for name in ("llama-server", "m.gguf", "python", "int4")}
    for path in made.values():
        path.touch()
    words = prepare.flags(
        made["llama-server"], {"Q4_K_M": made["m.gguf"]}, made["python"], {"int4": made["int4"]}
    )
    (tmp_path / "peers.txt").write_text("\n".join(words) + "\n")
    given = run_bench.parser().parse_args(["--weights", "w8", f"@{tmp_path}/peers.txt"])
    sides = run_bench.chosen_sides(given)
    assert [side.label for side in sides] == ["octavo w8", "llama.cpp Q4_K_M", "openvino int4"]
    assert prepare.flags(None, {}, made["python"], {"int4": made["int4"]})[-1] == "openvino"


def test_two_choices_that_mean_the_same_are_one_side(smollm2_path: str) -> None:
    given = run_bench.parser().parse_args(["--model", smollm2_path, "--weights", "file,w8,w4"])
    sides = run_bench.chosen_sides(given)
    assert [(side.label, side.asked) for side in sides] == [("octavo w4", "file"), ("octavo w8", "w8")]


def test_goals_belong_to_a_model() -> None:
    found = [result("octavo w8", 8, "c2", out_tok_s=100), result("llama.cpp Q4_K_M", 4, "c2", out_tok_s=80)]
    goals = run_bench.goals_of("folder/qwen2.5-coder-1.5b.gguf")
    start, c2 = run_bench.ratios([*found, result("octavo w8", 8, "start", start_s=1)], ["c2"], goals)
    assert (c2["ratio"], c2["goal"], start.get("goal")) == (1.25, 1.3, None)
    assert run_bench.goals_of("smollm2") is run_bench.GOALS


def test_the_expected_time_counts_rounds_rivals_and_size() -> None:
    ours = servers.octavo("m", "w8", 2, "w4")
    sides = [ours, servers.vllm("python", "dir", "bf16", 2)]
    times = run_bench.expected_s(sides, ["c1"], 3, True, int(2 * run_bench.SMOLLM2_BYTES))
    c1, start = run_bench.CASE_S["c1"], run_bench.CASE_S["start"]
    assert times[ours.label, "c1"] == pytest.approx(3 * 2 * c1)
    assert times["vllm bf16", "c1"] == pytest.approx(2 * times[ours.label, "c1"])
    assert times[ours.label, "start"] == pytest.approx(2 * start)
    progress = run_bench.Progress(times)
    progress.add(ours.label, "c1", 3)
    assert progress.done_s == pytest.approx(2 * c1)
    said = run_bench.announcement("m", sides, ["c1"], 3, progress, Path("out.json"))
    assert "about 3 min" in said
    assert "--quick" in said


def test_bits_follow_from_the_names_of_weights() -> None:
    for weights, bits in {
        "Q4_0": 4,
        "Q4_K_M": 4,
        "Q5_0": 5,
        "int4": 4,
        "Q8_0": 8,
        "W8A8": 8,
        "bf16": 16,
        "f32": 16,
    }.items():
        assert servers.vllm("python", "dir", weights, 2).bits == bits


def test_the_cost_of_attention_counts_what_each_query_sees(smollm2_path: str) -> None:
    source = open_model(smollm2_path)
    program = optimise(build_program(source.config, block_size=16, kv_dtype="bf16"), 2)
    shape = StepShape((1, 4), (10, 0), 2)
    costs = {op.name: cost_of(op, program, source, "file", shape, "avx2") for op in program.ops}
    attend, logits = costs["layers.0.attn.attend"], costs["logits"]
    assert attend.ops == 4 * 9 * 64 * (11 + 1 + 2 + 3 + 4)
    assert attend.streamed_bytes == (11 + 4) * 2 * 3 * 64 * 2
    assert (logits.ops, logits.unit) == (2.0 * 2 * 49152 * 576, "int8")
    down = costs["layers.0.mlp.down"]
    assert (down.ops, down.streamed_bytes) == (2.0 * 5 * 576 * 1536, 576 // 32 * (1536 // 32) * 640)


@pytest.mark.parametrize(
    ("form", "isa", "rows", "unit"),
    [
        ("w8", "avx512_amx", 1, "bf16"),  # opened to bf16 on tiles, whatever the rows
        ("w8", "avx512_bf16", 512, "int8"),
        ("w4", "avx512_amx", 31, "int8"),
        ("w4", "avx512_amx", 32, "int8 tile"),
        ("w4", "avx512_amx", 33, "int8"),  # 15 rows of 48 would be computed twice
        ("w4", "avx512_amx", 512, "int8 tile"),
        ("w4", "avx2", 512, "int8"),
        ("f16", "avx512_amx", 64, "f32"),
    ],
)
def test_a_product_is_held_against_the_unit_that_computes_it(
    form: str, isa: str, rows: int, unit: str
) -> None:
    assert unit_of(form, isa, rows) == unit


def test_bench_step_prints_the_anatomy(smollm2_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "step", smollm2_path, "--batch", "2", "--context", "20", "--steps", "1", "--json"]
    assert cli.main([*words, "--threads", "1"]) == 0
    anatomy = json.loads(capsys.readouterr().out)
    groups = {group["name"]: group for group in anatomy["groups"]}
    assert groups["layers.*.mlp.down"]["count"] == 30
    assert groups["logits"]["bound_by"] in ("memory", "compute")
    assert all(group["time_us"] > 0 for group in groups.values())
    assert cli.main(["bench", "step", smollm2_path, "--executor", "torch"]) == 2
    assert "native" in capsys.readouterr().err
    assert cli.main(["bench", "step", smollm2_path, "--batch", "0"]) == 2


def test_the_kv_of_a_measured_step_is_memory_of_its_own(smollm2_path: str) -> None:
    """Pages that were never written are one page of zeros: attention would read that from the caches."""
    executor, program, _ = bench_step.bound(make_plan(from_keywords(smollm2_path, {})), 2, 2, 64, None)
    try:
        step = bench_step.make_batch(program, StepShape((1, 1), (40, 40), 2))
        bench_step.allocate_kv(executor, [step])
        assert executor.core.kv().all()
        assert int(step.block_tables.max()) < len(executor.core.kv())
    finally:
        executor.close()


def test_the_page_is_measured_and_drawn_by_one_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Flags that are not the page's go to the cases; a part that fails is drawn all the same."""
    called: list[tuple[str, list[str]]] = []
    for name, code in (("kernels", 0), ("growth", 1), ("run_bench", 0), ("draw", 0)):
        module = getattr(page, name)
        monkeypatch.setattr(module, "main", lambda argv, n=name, c=code: called.append((n, argv)) or c)
    monkeypatch.chdir(tmp_path)
    assert page.main(["--only", "growth,cases", "--rounds", "1", "--quick", "@PEERS.txt"]) == 1
    growth, bench = (str(page.FOLDER / f"{part}.json") for part in ("growth", "cases"))
    assert called == [
        ("growth", ["--json", growth, "--quick"]),
        ("run_bench", ["--out", bench, "--rounds", "1", "--quick", "@PEERS.txt"]),
        ("draw", ["--growth", growth, "--bench", bench]),
    ]


def test_figures_go_into_the_page_between_their_marks() -> None:
    page = "text\n<!-- kernels: measured -->\nold\n<!-- kernels: end -->\nmore\n"
    new = draw.replaced(page, "kernels", "new\n")
    assert new == page.replace("old", "new")
    with pytest.raises(ValueError, match="cases"):
        draw.replaced(page, "cases", "new\n")
    kernel = {"kernel": "linear M=1", "shape": "s", "format": "w4", "ops": 2e6, "num_bytes": 6e5}
    kernel |= {"best_us": 20.0, "limit_us": 15.0, "bound_by": "memory", "unit": "int8", "goal": 0.9}
    found = {"machine": {"cpu": "c", "commit": "d"}, "threads": 2, "compute": {"f32": 1e11, "int8": 4e11}}
    assert "75% of memory, 100 GFLOP/s (goal 90%)" in draw.kernel_part(found | {"kernels": [kernel]})
    assert draw.roofline(found | {"kernels": [kernel]}).count("<title>") == 1
