"""Grammars are tried in processes of their own first: a hostile one costs its request, never a server process.

Owns those processes, their limits of time and memory, and the verdicts (bounded, by content). Blocking calls may
come from any thread. Knows the frames of `check_worker`; what a grammar is, it does not.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from octavo.grammar.base import GrammarError, Vocabulary, digest
from octavo.grammar.vocabulary import pack
from octavo.util.framed_child import FramedChild
from octavo.wire.sampling import StructuredSpec

log = logging.getLogger("octavo.grammar")

_ROOT = Path(__file__).parents[2]
_START = "import sys; sys.path.insert(0, sys.argv[1]); from octavo.grammar.check_worker import main; main()"
_START_S = 60.0
#: Of a job by the wall, for one that waits and does not work; a busy machine may take its time over a job.
_WALL_S = 120.0
_KEPT_ENV = ("PATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "HOME")
MAX_VERDICTS = 1_024


class CheckJob(msgspec.Struct, omit_defaults=True):
    """Parent -> child. With `ids` an answer is verified, else a grammar is tried."""

    spec: StructuredSpec
    ids: list[int] | None = None
    text: str | None = None  # None = only the tokens are looked at


class CheckReply(msgspec.Struct, omit_defaults=True):
    error: str | None = None
    keyword: str = ""
    pointer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLimits:
    max_seconds: float = 5.0  # of CPU time, for a grammar or an answer
    max_bytes: int = 2 << 30  # address space of a process
    max_chars: int = 1 << 20  # of a grammar or schema
    workers: int = 2


class _Child(FramedChild):
    """One process. `check` raises TimeoutError when it is too slow and EOFError when it has died."""

    def __init__(self, vocabulary: bytes, limits: CheckLimits) -> None:
        numbers = [str(limits.max_bytes), str(limits.max_seconds), str(_WALL_S)]
        super().__init__(
            ["-c", _START, str(_ROOT), *numbers], keeps=_KEPT_ENV, extra={"RAYON_NUM_THREADS": "1"}
        )
        self.send(vocabulary)
        self.receive(_START_S)

    def check(self, job: CheckJob) -> CheckReply:
        return msgspec.msgpack.decode(self.ask(msgspec.msgpack.encode(job), _WALL_S), type=CheckReply)


class GrammarChecker:
    """At most `limits.workers` processes, started when needed and replaced when one is lost."""

    def __init__(self, vocabulary: Callable[[], Vocabulary], limits: CheckLimits | None = None) -> None:
        self.limits = limits or CheckLimits()
        self._make_vocabulary = vocabulary
        self._packed: bytes | None = None
        self._verdicts: OrderedDict[bytes, CheckReply] = OrderedDict()
        self._idle: list[_Child] = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(self.limits.workers)
        self._is_closed = False

    def check(self, spec: StructuredSpec) -> None:
        """Raises GrammarError for a grammar that cannot be compiled, or not within the limits."""
        if len(spec.text) > self.limits.max_chars:
            raise GrammarError(f"it has {len(spec.text):,} characters; allowed are {self.limits.max_chars:,}")
        reply = self.known(spec)
        if reply is None:
            reply = self._try(spec)
            with self._lock:
                self._verdicts[digest(spec)] = reply
                if len(self._verdicts) > MAX_VERDICTS:
                    self._verdicts.popitem(last=False)
        if reply.error is not None:
            raise GrammarError(reply.error, keyword=reply.keyword, pointer=reply.pointer)

    def _try(self, spec: StructuredSpec) -> CheckReply:
        try:
            return self._ask(CheckJob(spec))
        except TimeoutError:
            return CheckReply(f"it takes more than {self.limits.max_seconds:g} s of CPU time to compile")
        except EOFError:
            return CheckReply("it needs more memory or nesting to compile than it may have")

    def known(self, spec: StructuredSpec) -> CheckReply | None:
        """What was found before, if it was."""
        with self._lock:
            key = digest(spec)
            reply = self._verdicts.get(key)
            if reply is not None:
                self._verdicts.move_to_end(key)
            return reply

    def verify(self, spec: StructuredSpec, ids: Sequence[int], text: str | None) -> str | None:
        """What is wrong with a complete answer, or None. A check that fails itself finds nothing."""
        try:
            return self._ask(CheckJob(spec, list(ids), text)).error
        except (GrammarError, TimeoutError, EOFError) as error:
            log.warning("an answer could not be checked against its grammar: %r", error)
            return None

    def _ask(self, job: CheckJob) -> CheckReply:
        """Raises TimeoutError and EOFError of a process, which is gone then."""
        with self._slots:
            child = self._take()
            try:
                reply = child.check(job)
            except BaseException:
                child.close()
                raise
            self._give(child)
        return reply

    def _take(self) -> _Child:
        with self._lock:
            if self._is_closed:
                raise GrammarError("the server is shutting down")
            while self._idle:
                child = self._idle.pop()
                if child.is_alive:
                    return child
                child.close()
            if self._packed is None:
                self._packed = pack(self._make_vocabulary())
        try:
            return _Child(self._packed, self.limits)
        except (EOFError, TimeoutError, OSError) as error:
            raise GrammarError(f"the process that tries grammars could not start: {error!r}") from None

    def _give(self, child: _Child) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(child)
                return
        child.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()
