"""What this process may use of the machine: cores, memory, instruction sets. Linux first, others plainly."""

from __future__ import annotations

import ctypes
import math
import os
import platform
from pathlib import Path

from octavo.util import cgroup


def usable_cpus(root: Path = Path("/")) -> tuple[int, str]:
    """(cores, why): the affinity mask, or the cgroup quota when that is less (rounded down, at least 1)."""
    if hasattr(os, "sched_getaffinity"):
        cores, why = len(os.sched_getaffinity(0)), "cores of the affinity mask"
    else:
        cores, why = os.cpu_count() or 1, "cores of the machine"
    quota = cgroup.cpu_quota(root)
    if quota is not None and quota < cores:
        return max(1, math.floor(quota)), f"cgroup quota of {quota:g} cores"
    return cores, why


def usable_memory(root: Path = Path("/")) -> tuple[int, str]:
    """(bytes that may be taken now, why): what the host has available, or less by a cgroup limit."""
    available = _host_available(root)
    left = cgroup.memory_left(root)
    if left is not None and left < available:
        return left, "cgroup limit"
    return available, "available on the host"


def _host_available(root: Path) -> int:
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


TILE_FLAGS = {"avx512vbmi", "amx_tile", "amx_bf16", "amx_int8"}


def isas(root: Path = Path("/")) -> tuple[str, ...]:
    """Instruction sets of the native kernels that this CPU runs, worst first."""
    if platform.machine() in ("aarch64", "arm64"):
        return ("generic", "neon")
    flags = _cpu_flags(root)
    found = ["generic"]
    wanted = (
        ("avx2", {"avx2", "fma", "f16c"}),
        ("avx512", {"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
        ("avx512_bf16", {"avx512_bf16", "avx512_vnni"}),
    )
    for name, needed in wanted:
        if not needed <= flags:
            break
        found.append(name)
    if found[-1] == "avx512_bf16" and flags >= TILE_FLAGS and may_use_tiles():
        found.append("avx512_amx")
    return tuple(found)


def may_use_tiles() -> bool:
    """Whether the kernel lets this process use the tile unit (AMX): asks it, as the native core does (csrc/isa.cpp)."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18  # of x86-64
    try:
        refused: int = ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)
        return refused == 0
    except (OSError, AttributeError):
        return False


def _cpu_flags(root: Path) -> set[str]:
    try:
        for line in (root / "proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return set(line.partition(":")[2].split())
    except OSError:
        pass
    return set()


def cpu_name(root: Path = Path("/")) -> str:
    """The processor's own name, or its architecture."""
    try:
        for line in (root / "proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
