"""Compiled grammars of one engine: compiled in threads beside the step loop, kept by content, bounded.

Owns the threads and the cache. The scheduler's gate asks whether a grammar is there, the worker takes
copies of it. The vocabulary is made when the first grammar comes.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from octavo.grammar.backends import compile_spec
from octavo.grammar.base import GrammarError, Matcher, Vocabulary, digest
from octavo.wire.sampling import StructuredSpec

MAX_ENTRIES = 128
MAX_CHARS = 8 << 20  # of all kept specs together
_THREADS = 2


@dataclass(slots=True)
class StoreCounts:
    """Since the start; they only grow, but for `kept`."""

    compiled: int = 0
    failed: int = 0
    hits: int = 0
    evicted: int = 0
    kept: int = 0
    seconds: float = 0.0  # of compiling


@dataclass(slots=True)
class _Entry:
    size: int
    future: Future[Matcher] = field(default_factory=Future)
    since: float = math.inf  # when a thread began with it


class GrammarStore:
    """Safe to use from several threads. `wake` is called from a compiling thread when it is done."""

    def __init__(
        self,
        vocabulary: Callable[[], Vocabulary],
        *,
        max_entries: int = MAX_ENTRIES,
        max_chars: int = MAX_CHARS,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._make_vocabulary = vocabulary
        self._vocabulary: Vocabulary | None = None
        self._vocabulary_lock = threading.Lock()
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._max_entries, self._max_chars, self._chars = max_entries, max_chars, 0
        self._pool: ThreadPoolExecutor | None = None
        self.wake = wake
        self.counts = StoreCounts()

    def ask(self, spec: StructuredSpec) -> tuple[Future[Matcher], float]:
        """What becomes of the grammar, and since when it is being made (inf: not yet); never waits."""
        key = digest(spec)
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(len(spec.text) + 1)
                entry.future = self._start(spec, entry)
                self._chars += entry.size
                self._evict()
            else:
                self._entries.move_to_end(key)
                self.counts.hits += entry.future.done()
            self.counts.kept = len(self._entries)
            return entry.future, entry.since

    def matcher(self, spec: StructuredSpec) -> Matcher:
        """A matcher of its own for one answer; waits if need be. Raises GrammarError."""
        future, _ = self.ask(spec)
        return future.result().copy()

    def _start(self, spec: StructuredSpec, entry: _Entry) -> Future[Matcher]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="octavo-grammar")
        return self._pool.submit(self._compile, spec, entry)

    def _compile(self, spec: StructuredSpec, entry: _Entry) -> Matcher:
        entry.since = time.monotonic()
        began = time.thread_time()
        try:
            made = compile_spec(spec, self.vocabulary())
        except GrammarError:
            self.counts.failed += 1
            raise
        else:
            self.counts.compiled += 1
            return made
        finally:
            self.counts.seconds += time.thread_time() - began
            if self.wake is not None:
                self.wake()

    def vocabulary(self) -> Vocabulary:
        with self._vocabulary_lock:
            if self._vocabulary is None:
                try:
                    self._vocabulary = self._make_vocabulary()
                except Exception as error:
                    raise GrammarError(f"the vocabulary cannot be read: {error}") from None
            return self._vocabulary

    def _evict(self) -> None:
        """Oldest first; what is being compiled stays."""
        for key in list(self._entries)[:-1]:
            if len(self._entries) <= self._max_entries and self._chars <= self._max_chars:
                return
            if self._entries[key].future.done():
                self._chars -= self._entries.pop(key).size
                self.counts.evicted += 1

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
