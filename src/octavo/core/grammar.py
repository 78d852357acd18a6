"""A request whose answer follows a grammar starts when that is compiled. Compiles nothing itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from octavo.core.protocols import Verdict
from octavo.core.request import Request
from octavo.grammar.base import GrammarError
from octavo.grammar.store import GrammarStore

#: The API has tried every grammar under a shorter limit; this one is for requests that came otherwise. It begins
#: when a thread begins with the grammar: those of others, which wait in line before it, do not count.
COMPILE_LIMIT_S = 60.0


class GrammarGate:
    """`Gate`: SKIP while it is compiled, FAIL when it cannot be; other requests are not held back."""

    def __init__(
        self,
        store: GrammarStore,
        *,
        limit_s: float = COMPILE_LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._limit_s = limit_s
        self._clock = clock

    def check(self, request: Request) -> Verdict:
        spec = request.wire.params.structured
        if spec is None:
            return Verdict.GO
        future, since = self._store.ask(spec)
        if future.done():
            return Verdict.FAIL if future.exception() is not None else Verdict.GO
        return Verdict.FAIL if self._clock() - since > self._limit_s else Verdict.SKIP

    def problem(self, request: Request) -> str:
        spec = request.wire.params.structured
        assert spec is not None
        future, _ = self._store.ask(spec)
        if not future.done():
            return f"its grammar took longer than {self._limit_s:g} s to compile"
        error = future.exception()
        cause = error.message if isinstance(error, GrammarError) else repr(error)
        return f"its grammar cannot be compiled: {cause}"
