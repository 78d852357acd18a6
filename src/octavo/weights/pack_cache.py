"""The folder of packed weights: a later start maps what an earlier one packed.

One file for a model's files (their paths), a format, and a set of matrices; its header says which state of the
model's files and which packing it was made of, and a file of another state is made anew. Nothing here may keep an
engine from starting: whatever is wrong with the folder is one line, and the weights are packed as without it.

Files appear whole, by a rename; they are never changed afterwards, so that servers share them while others replace
or remove them. A writer holds a lock on NAME.new: two that pack the same model write once, and what a killed one
left is taken over. The least recently used files go when all together are larger than the cap.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.config.plan import PackCachePlan
from octavo.errors import WeightError
from octavo.util.lines import one_line
from octavo.weights import pack_file
from octavo.weights.pack_file import Header, Unfit, Wanted
from octavo.weights.source import ModelSource

if TYPE_CHECKING:
    from octavo.kernels.native import Weight

log = logging.getLogger(__name__)

LAYOUT = "lanes32"  # formats.h; the same for every instruction set
SETTLED_S = (
    2.0  # a file may change again without a new time stamp while that is as young as the clock is coarse
)
FREE_BYTES = 1 << 30  # left on the disk
_NAME = re.compile(r"[0-9a-f]{32}\.pack(\.new)?")


class PackCache:
    """The packed form of one model. Life: load; after a miss keep, then wait. `row` says what came of it."""

    def __init__(
        self, plan: PackCachePlan, source: ModelSource, weights: str, wanted: Mapping[str, Wanted]
    ) -> None:
        self._plan, self._source, self._format, self._wanted = plan, source, weights, wanted
        self._outcome, self._reason = "off", plan.reason
        self._writer: threading.Thread | None = None
        self._known_state: tuple[str, float] | None = None
        if plan.folder:
            self._path = Path(plan.folder) / self._name()

    def row(self) -> list[str]:
        """[topic, choice, reason] for the table of what runs."""
        return ["pack cache", self._outcome, self._reason]

    # ---- reading --------------------------------------------------------------------------------------

    def load(self, num_threads: int) -> dict[str, Weight] | None:
        """Every wanted matrix by its name, checked and mapped; or None, and `row` says why."""
        if not self._plan.folder:
            return None
        try:
            self._state()  # before anything is packed
            fd = self._open()
            try:
                header = self._fitting(fd)
                weights = pack_file.read_matrices(fd, header, num_threads)
            finally:
                os.close(fd)
        except FileNotFoundError:
            self._miss(f"{self._plan.folder} has no packed form of this model yet")
        except Unfit as why:
            self._miss(f"{self._path.name} {why}")
            log.warning("pack cache: %s: packed again", self._reason)
        except (OSError, WeightError, ValueError, MemoryError) as error:
            self._miss(f"{self._path.name} cannot be read ({_words(error)})")
            log.warning("pack cache: %s: packed again", self._reason)
        else:
            with contextlib.suppress(OSError):
                os.utime(self._path)  # used now: a file system may not keep that by itself
            self._outcome = "hit"
            self._reason = (
                f"{_mib(header.size)} of {self._plan.folder} mapped, every byte checked; {self._plan.reason}"
            )
            return weights
        return None

    def look(self) -> list[str]:
        """The row of a start that would come now, by the header alone: for `octavo explain`."""
        if not self._plan.folder:
            return self.row()
        try:
            fd = self._open()
            try:
                header = self._fitting(fd)
            finally:
                os.close(fd)
        except FileNotFoundError:
            self._miss(f"{self._plan.folder} has no packed form of this model yet")
        except Unfit as why:
            self._miss(f"{self._path.name} {why}")
        except OSError as error:
            self._miss(f"{self._path.name} cannot be read ({_words(error)})")
        else:
            self._outcome = "hit"
            self._reason = (
                f"{_mib(header.size)} in {self._plan.folder}, by its header: a start checks every byte; "
                f"{self._plan.reason}"
            )
        return self.row()

    def _open(self) -> int:
        """Raises Unfit for what is not a private file of this user's, or root's."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if self._path.is_symlink():
                raise Unfit("is a link") from None
            raise error
        found = os.fstat(fd)
        is_ours = found.st_uid in (os.geteuid(), 0) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISREG(found.st_mode) or not is_ours:
            os.close(fd)
            raise Unfit("is not a file that only this user can write")
        return fd

    def _fitting(self, fd: int) -> Header:
        """The header of a file that was made of this state of the model. Raises Unfit, OSError."""
        header = pack_file.read_header(fd)
        if header.packing != packing():
            raise Unfit(f"was packed by another version ({one_line(header.packing)[:40]}, not {packing()})")
        if header.model != self._state()[0]:
            raise Unfit("was made before the model's files changed")
        pack_file.check_entries(header, self._wanted, self._format)
        return header

    # ---- writing --------------------------------------------------------------------------------------

    def keep(self, weights: Mapping[str, Weight]) -> None:
        """Writes the file in a thread of its own, or says why not. After a `load` that missed."""
        if self._outcome != "miss":
            return
        size = pack_file.file_size(weights)
        try:
            self._check_worth(size)
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_room(size)
            fd = self._take_lock()
        except (Unfit, OSError) as why:
            self._refuse(why)
            return
        self._reason += f"; {_mib(size)} are being written"
        self._writer = threading.Thread(
            target=self._write, args=(fd, dict(weights), size), name="octavo-pack", daemon=True
        )
        self._writer.start()

    def wait(self) -> None:
        """Until the writer is through."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _check_worth(self, size: int) -> None:
        if size > self._plan.max_bytes:
            raise Unfit(f"it takes {_mib(size)}, and --pack-cache-bytes allows {_mib(self._plan.max_bytes)}")
        before, newest = self._state()
        if time.time() - newest < SETTLED_S:
            raise Unfit("the model's files were written a moment ago, and may still change")
        self._known_state = None  # read anew: packing has taken a while
        if self._state()[0] != before:
            raise Unfit("the model's files have changed since")

    def _check_room(self, size: int) -> None:
        disk = os.statvfs(self._path.parent)
        free = disk.f_bavail * disk.f_frsize
        if free < size + FREE_BYTES:
            raise Unfit(f"{_mib(size)} would leave less than {_mib(FREE_BYTES)} on the disk")

    def _take_lock(self) -> int:
        """An empty NAME.new that only this process writes. Raises Unfit, OSError."""
        new = self._new
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Unfit("another process is writing it") from None
            try:
                is_same = os.path.samestat(os.fstat(fd), os.lstat(new))
            except FileNotFoundError:
                is_same = False
            if not is_same:  # finished by another process between our open and our lock
                raise Unfit("another process has written it")
            os.ftruncate(fd, 0)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _write(self, fd: int, weights: dict[str, Weight], size: int) -> None:
        try:
            try:
                self._make_room(size)
                pack_file.write(fd, packing(), self._state()[0], weights)
                os.rename(self._new, self._path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(self._new)  # before the lock goes
                raise
            finally:
                os.close(fd)
            _sync_folder(self._path.parent)
        except (OSError, WeightError) as error:
            self._refuse(error)

    def _make_room(self, size: int) -> None:
        """Removes the least recently used files until `size` bytes more are within the cap, and what killed writers
        left."""
        others = []
        with os.scandir(self._path.parent) as entries:
            for entry in entries:
                if not _NAME.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                    continue
                if entry.name.endswith(".new"):
                    if entry.name != self._new.name:
                        _remove_if_left(entry.path)
                elif entry.name != self._path.name:  # that one is replaced
                    with contextlib.suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        used_ns = max(found.st_atime_ns, found.st_mtime_ns)
                        others.append((used_ns, found.st_size, entry.path))
        total = size + sum(count for _, count, _ in others)
        for _, count, path in sorted(others):
            if total <= self._plan.max_bytes:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            total -= count

    # ---- names ----------------------------------------------------------------------------------------

    @property
    def _new(self) -> Path:
        return self._path.with_name(self._path.name + ".new")

    def _miss(self, why: str) -> None:
        self._outcome, self._reason = "miss", why

    def _refuse(self, why: Exception) -> None:
        text = why if isinstance(why, Unfit) else _words(why)
        self._reason = f"{self._reason.partition('; ')[0]}; not kept: {text}"
        log.warning("pack cache: packed weights are not kept in %s: %s", self._plan.folder, text)

    def _name(self) -> str:
        files = sorted({os.path.realpath(info.file) for info in self._source.tensors.values()})
        what = [LAYOUT, files, self._format, sorted(self._wanted.items())]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32] + ".pack"

    def _state(self) -> tuple[str, float]:
        """(digest of what the packed bytes follow from, seconds since the epoch of the files' last change).

        The time of the inode's last change cannot be set back, as that of the content can.
        """
        if self._known_state is None:
            digest = hashlib.sha256()
            newest = 0
            for file in sorted({info.file for info in self._source.tensors.values()}):
                found = os.stat(file)
                newest = max(newest, found.st_ctime_ns)
                state = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
                digest.update(repr(state).encode())
            for info in self._source.tensors.values():
                header = (info.name, info.shape, info.type, info.nbytes, info.offset, info.row_order)
                digest.update(repr(header).encode())
            self._known_state = digest.hexdigest()[:32], newest / 1e9
        return self._known_state


def packing() -> str:
    """What the packed bytes of a matrix depend on beside the model."""
    from octavo.kernels.native import packing_version

    return f"{LAYOUT}-{sys.byteorder}-{packing_version()}"


def _remove_if_left(path: str) -> None:
    """A file that a writer left when it was killed: its lock can be had."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.lstat(path)):
                os.unlink(path)
        finally:
            os.close(fd)


def _sync_folder(folder: Path) -> None:
    """So that the new name outlives a power failure."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(str(error)) or type(error).__name__


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB" if count >= 1 << 20 else f"{count:,} bytes"
