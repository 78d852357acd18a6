"""Folders of killed servers are removed at a later start; those of running ones, and all others, stay."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from octavo.launch.folders import own_dir, remove_stale

HOLDER = (
    "import sys; from octavo.launch.folders import own_dir; print(own_dir(), flush=True); sys.stdin.read()"
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def holder(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that owns a folder until it ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(place), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_folder_goes_when_its_process_was_killed_and_not_before(place: Path) -> None:
    process, folder = holder(place)
    other, kept = holder(place)
    (folder / "engine0.in").touch()
    remove_stale(str(place))
    assert folder.is_dir()
    kill(process)
    mine = own_dir()
    assert not folder.exists()
    assert kept.is_dir()
    remove_stale(str(place))
    assert Path(mine).is_dir()
    kill(other)


def test_what_is_not_ours_for_sure_stays(place: Path) -> None:
    outside = place / "outside"
    outside.mkdir(mode=0o700)
    (outside / "lock").touch()
    (place / "octavo-link").symlink_to(outside)
    (place / "octavo-file").touch()
    (place / "octavo-no-lock").mkdir(mode=0o700)
    (place / "octavo-open").mkdir()
    (place / "octavo-open").chmod(0o755)
    (place / "octavo-open" / "lock").touch()
    linked = place / "octavo-linked-lock"
    linked.mkdir(mode=0o700)
    (linked / "lock").symlink_to(outside / "lock")
    before = sorted(p.name for p in place.iterdir())
    remove_stale(str(place))
    assert sorted(p.name for p in place.iterdir()) == before


def test_a_folder_of_another_user_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, folder = holder(place)
    kill(process)
    monkeypatch.setattr(os, "getuid", lambda: os.stat(folder).st_uid + 1)
    remove_stale(str(place))
    assert folder.is_dir()


def test_no_place_at_all_is_no_error(place: Path) -> None:
    remove_stale(str(place / "absent"))
