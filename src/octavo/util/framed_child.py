"""A child process that answers one framed message at a time: 4 bytes of length, big-endian, then the data.

Owns the pipes and the process. Does not know what is asked; limits of CPU time and memory are set by the
child itself.
"""

from __future__ import annotations

import os
import selectors
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

_EXIT_S = 30.0


class FramedChild:
    """A Python process without the parent's paths, and with none but the given environment (no keys, no tokens)."""

    def __init__(
        self, arguments: Sequence[str], *, keeps: Sequence[str], extra: Mapping[str, str] | None = None
    ):
        """`arguments` follow the interpreter's own; `keeps` names variables that the child may see."""
        env = {name: os.environ[name] for name in keeps if name in os.environ} | dict(extra or {})
        self._process = subprocess.Popen(
            [sys.executable, "-P", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            bufsize=0,
        )

    def ask(self, data: bytes, timeout_s: float) -> bytes:
        """The answer. Raises TimeoutError when it takes too long by the wall, or ended by a limit of CPU
        time, and EOFError when the child has died; then it is of no more use."""
        try:
            self.send(data)
            return self.receive(timeout_s)
        except EOFError:
            if self._process.wait(_EXIT_S) in (-signal.SIGPROF, -signal.SIGALRM):
                raise TimeoutError from None
            raise

    def send(self, data: bytes) -> None:
        stream = self._process.stdin
        assert stream is not None
        try:
            view = memoryview(struct.pack(">I", len(data)) + data)
            while view:
                view = view[stream.write(view) or 0 :]
        except BrokenPipeError:
            raise EOFError from None

    def receive(self, timeout_s: float) -> bytes:
        deadline_s = time.monotonic() + timeout_s
        (size,) = struct.unpack(">I", self._read(4, deadline_s))
        return self._read(size, deadline_s)

    def _read(self, size: int, deadline_s: float) -> bytes:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        data = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while len(data) < size:
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    raise TimeoutError
                part = os.read(fd, min(1 << 20, size - len(data)))
                if not part:
                    raise EOFError
                data += part
        return bytes(data)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()
