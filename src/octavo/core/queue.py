"""The line of waiting requests, by key. Does not know why anybody waits."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from octavo.core.request import Request, State


class WaitingLine:
    """A heap by `Request.key`: O(log n) in and out, whatever waits. A preempted request keeps its key,
    and so stands again where its age or priority puts it. A request that left by `discard` (it must
    be FINISHED then) is dropped when it surfaces, or when such entries outnumber the others.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, ...], Request]] = []
        self._num_gone = 0
        self.num_tokens = 0  # of the prompts in line

    def __len__(self) -> int:
        return len(self._heap) - self._num_gone

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in self._heap if request.state is not State.FINISHED)

    def push(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.key, request))
        self.num_tokens += request.num_prompt

    def pop(self) -> Request | None:
        while self._heap:
            request = heapq.heappop(self._heap)[1]
            if request.state is not State.FINISHED:
                self.num_tokens -= request.num_prompt
                return request
            self._num_gone -= 1
        return None

    def discard(self, request: Request) -> None:
        assert request.state is State.FINISHED
        self._num_gone += 1
        self.num_tokens -= request.num_prompt
        if self._num_gone > 64 and 2 * self._num_gone > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[1].state is not State.FINISHED]
            heapq.heapify(self._heap)
            self._num_gone = 0
