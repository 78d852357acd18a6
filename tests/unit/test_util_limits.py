"""Container limits: laid out as files of cgroup v1 and v2, on a tree of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.kernels import native
from octavo.util import cgroup, cpus

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_no_cgroup_is_no_limit(tmp_path: Path) -> None:
    assert cgroup.cpu_quota(tmp_path) is None
    assert cgroup.memory_left(tmp_path) is None


def test_v2_takes_the_tightest_ancestor(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/memory.max": f"{2 * GIB}\n",
            "sys/fs/cgroup/pod/memory.current": f"{GIB}\n",
            "sys/fs/cgroup/pod/memory.stat": f"anon 5\ninactive_file {GIB // 4}\nactive_file {GIB // 4}\n",
            "sys/fs/cgroup/pod/box/memory.max": "max\n",
        },
    )
    assert cgroup.cpu_quota(root) == 1.5
    assert cgroup.memory_left(root) == 2 * GIB - GIB // 2


def test_v2_in_a_container_whose_path_is_not_mounted(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/host/only\n",
            "sys/fs/cgroup/cpu.max": "200000 100000\n",
            "sys/fs/cgroup/memory.max": "1000\n",
        },
    )
    assert cgroup.cpu_quota(root) == 2.0
    assert cgroup.memory_left(root) == 1000


def test_v1(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "300000",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": str(GIB // 2),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096),
        },
    )
    assert cgroup.cpu_quota(root) == 3.0
    assert cgroup.memory_left(root) == GIB // 2


def test_v1_without_a_quota(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
    )
    assert cgroup.cpu_quota(root) is None


@pytest.mark.parametrize(("quota", "cores"), [("50000", 1), ("100000", 1)])
def test_a_quota_is_rounded_down_and_never_to_nothing(tmp_path: Path, quota: str, cores: int) -> None:
    root = write(tmp_path, {"sys/fs/cgroup/cpu.max": f"{quota} 100000\n"})
    assert cpus.usable_cpus(root)[0] == cores


def test_memory_is_the_smaller_of_host_and_limit(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable: {GIB // 1024} kB\n"})
    assert cpus.usable_memory(root) == (GIB, "available on the host")
    write(root, {"sys/fs/cgroup/memory.max": "4096\n"})
    assert cpus.usable_memory(root) == (4096, "cgroup limit")


AVX512_BF16 = "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16"


@pytest.mark.parametrize(
    ("flags", "best"),
    [
        ("sse4_2", "generic"),
        ("avx2 fma f16c", "avx2"),
        ("avx2 fma f16c avx512f avx512bw avx512dq avx512vl", "avx512"),
        (AVX512_BF16, "avx512_bf16"),
        (f"{AVX512_BF16} avx512vbmi amx_tile", "avx512_bf16"),
        (f"{AVX512_BF16} avx512vbmi amx_tile amx_bf16 amx_int8", "avx512_amx"),
        ("avx2 fma f16c avx512vbmi amx_tile amx_bf16 amx_int8", "avx2"),
    ],
)
def test_instruction_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, best: str) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(cpus, "may_use_tiles", lambda: True)
    root = write(tmp_path, {"proc/cpuinfo": f"model name\t: A CPU\nflags\t\t: fpu {flags}\n"})
    assert cpus.isas(root)[-1] == best
    assert cpus.cpu_name(root) == "A CPU"


def test_tiles_that_the_kernel_refuses_are_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(cpus, "may_use_tiles", lambda: False)
    root = write(
        tmp_path, {"proc/cpuinfo": f"flags\t\t: fpu {AVX512_BF16} avx512vbmi amx_tile amx_bf16 amx_int8\n"}
    )
    assert cpus.isas(root)[-1] == "avx512_bf16"


def test_this_machine_offers_what_the_native_core_offers() -> None:
    assert list(cpus.isas()) == native.isas()
