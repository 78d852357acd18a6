"""SIGTERM and SIGINT, from the first thing that a server must give back to the last.

One handler stays installed all the time: what a signal means changes, that it is handled does not, so none
can skip the cleanup. The first signal asks for a drain. SIGTERM again changes nothing; Ctrl-C again cuts
requests off, and the process ends within HURRY_S, or at the next Ctrl-C, whatever it is doing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

HURRY_S = 1.0  # for error events of streams that are cut, and for the usual way out
EXIT_CODE = 130  # of a process that Ctrl-C has ended


class Signals:
    """`first` is the signal that asked for the end, or None. Made in the main thread, as Python demands."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.is_hurried = False
        self._notify: Callable[[], object] = lambda: None
        self._kill_engine: Callable[[], object] = lambda: None
        self._files: list[tuple[str, int]] = []  # path, inode
        self._folders: list[str] = []
        self._before = {n: signal.signal(n, self._handle) for n in (signal.SIGTERM, signal.SIGINT)}

    def tell(self, notify: Callable[[], object]) -> None:
        """Calls `notify` at the first signal, from the handler; at once when it has come already."""
        self._notify = notify
        if self.first is not None:
            notify()

    def own_file(self, path: str) -> None:
        """`path` is removed at the end, if it is still the same file."""
        self._files.append((path, os.stat(path).st_ino))

    def own_folder(self, path: str) -> None:
        self._folders.append(path)

    def own_engine(self, kill: Callable[[], object]) -> None:
        self._kill_engine = kill

    def clean_up(self) -> None:
        """Gives back files and folders; the usual way out has ended the engine before."""
        for path, inode in self._files:
            with contextlib.suppress(OSError):
                if os.stat(path).st_ino == inode:
                    os.unlink(path)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def restore(self) -> None:
        """For a start that failed: the caller's handlers count again."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ignore(self) -> None:
        """All is given back: what is left is the interpreter's own end, and no signal spoils its exit code."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def end_now(self) -> NoReturn:
        with contextlib.suppress(OSError):
            self._kill_engine()
        self.clean_up()
        os._exit(EXIT_CODE)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.first is None:
            self.first = signal.Signals(number)
            self._notify()
        elif number == signal.SIGINT:
            if self.is_hurried:
                self.end_now()
            self.is_hurried = True
            timer = threading.Timer(HURRY_S, self.end_now)
            timer.daemon = True
            timer.start()
