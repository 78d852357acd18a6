"""Limits that a container sets: cpu quota and memory of cgroup v1 and v2, over all ancestors.

A limit of any ancestor binds, so each is read and the smallest counts. `root` stands for "/" so
that tests can lay out a tree of their own. Absent files mean no limit; nothing here raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_NO_LIMIT_V1 = 2**60  # cgroup v1 writes a huge page-rounded number for "none"


def _paths(root: Path) -> dict[str, str]:
    """Cgroup of this process by controller; "" is the unified (v2) one."""
    found: dict[str, str] = {}
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the process's cgroup and its ancestors, v2 (no controller name) or v1.

    In a container the path of /proc may not exist below the mount; the mount itself then is the cgroup.
    """
    paths = _paths(root)
    mount = root / "sys/fs/cgroup"
    base = mount if not controller else mount / controller
    if controller and not base.is_dir():  # v1 mounts cpu and cpuacct together
        base = next((p for p in mount.glob(f"*{controller}*") if controller in p.name.split(",")), base)
    path = base / paths.get(controller, "/").lstrip("/")
    while path != base and base in path.parents:
        yield path
        path = path.parent
    yield base


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().split()[0]
        return int(text)
    except (OSError, ValueError, IndexError):
        return None


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs that the quota allows (1.5 = one and a half), or None."""
    quotas = []
    for folder in _folders(root, ""):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            if quota != "max":
                quotas.append(int(quota) / int(period))
        except (OSError, ValueError):
            continue
    for folder in _folders(root, "cpu"):
        number, period_us = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if number is not None and number > 0 and period_us:
            quotas.append(number / period_us)
    return min(quotas, default=None)


def memory_left(root: Path = Path("/")) -> int | None:
    """Bytes that the tightest memory limit leaves (limit minus use, reclaimable file cache not counted)."""
    lefts = []
    for folder in _folders(root, ""):
        limit = _number(folder / "memory.max")
        if limit is not None:
            used = (_number(folder / "memory.current") or 0) - _file_cache(
                folder, ("inactive_file", "active_file")
            )
            lefts.append(max(limit - max(used, 0), 0))
    for folder in _folders(root, "memory"):
        limit = _number(folder / "memory.limit_in_bytes")
        if limit is not None and limit < _NO_LIMIT_V1:
            cache = _file_cache(folder, ("total_inactive_file", "total_active_file"))
            used = (_number(folder / "memory.usage_in_bytes") or 0) - cache
            lefts.append(max(limit - max(used, 0), 0))
    return min(lefts, default=None)


def _file_cache(folder: Path, names: tuple[str, ...]) -> int:
    try:
        pairs = [line.split() for line in (folder / "memory.stat").read_text().splitlines()]
    except OSError:
        return 0
    return sum(int(value) for name, value in pairs if name in names)
