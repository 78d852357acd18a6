"""The folder of one server's sockets: made at its start, and removed at a later one when its server was killed.

A server holds a lock on a file in its folder for as long as it lives; the system lets it go, however the process
ends. So a folder whose lock can be had belongs to nobody, whatever process has its number by now.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from octavo.wire.addresses import PREFIX, private_dir

_LOCK = "lock"


def own_dir() -> str:
    """A new private folder, locked until this process ends. Removes what killed servers of this user left."""
    remove_stale(tempfile.gettempdir())
    folder = private_dir()
    hidden = os.path.join(folder, f"{_LOCK}.new")
    fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)  # never closed: it is the lock
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.rename(hidden, os.path.join(folder, _LOCK))  # nobody ever sees it unlocked while its owner lives
    return folder


def remove_stale(parent: str) -> None:
    """Folders in `parent` by our name, of this user, private, with a lock that nobody holds. Others stay."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                with contextlib.suppress(OSError):
                    _remove_if_stale(Path(entry.path))


def _remove_if_stale(folder: Path) -> None:
    """Raises OSError for whatever is not ours, or in use."""
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        return
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(fd)
