"""Where one API process and one engine meet: two addresses in a folder that only this user can enter."""

from __future__ import annotations

import os
from typing import NamedTuple

#: The call by which launch tells an engine that the API process of a line (by index) is gone.
FORGET_LINE = "forget_line"

PREFIX = "octavo-"  # of the names of private folders


class Addresses(NamedTuple):
    to_engine: str
    from_engine: str


def private_dir() -> str:
    """A new directory that only this user can enter; whoever made it removes it."""
    import tempfile  # the engine process, which shares this file, makes no directory

    return tempfile.mkdtemp(prefix=PREFIX)  # mode 0700


def new_addresses(directory: str, name: str) -> Addresses:
    """Addresses of one engine's life; `name` differs between engines and between restarts."""
    return Addresses(*(f"ipc://{os.path.join(directory, name)}.{way}" for way in ("in", "out")))
