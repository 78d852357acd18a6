"""Whether an answer has begun to repeat itself: the last tokens are one pattern, over and over.

Owns the state of one request. Sees each output token once, in order, so that the answer to "did it
end here?" depends on the tokens only. Knows neither the other stop checks nor their order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.wire.sampling import RepetitionDetectionParams, SamplingParams

I32 = npt.NDArray[np.int32]
_NO_TOKEN = -1


class Repetition:
    """`runs[p - low]`: how many of the last tokens, without a gap, equal the one `p` places before.

    A pattern of p tokens stands there `count` times exactly when that run has p * (count - 1) tokens. So
    a token costs one pass over the sizes that are looked for, however long the answer is.
    """

    def __init__(self, asked: RepetitionDetectionParams, max_output: int, min_output: int = 0) -> None:
        self._left = min_output  # tokens to come before anything may end
        self._count = asked.min_count
        self._low = max(1, asked.min_pattern_size)
        # A longer pattern cannot stand `count` times in the longest answer that there may be.
        self._high = min(asked.max_pattern_size, max_output // asked.min_count)
        self._newest = 0
        self._seen: I32 | None = None

    def _begin(self) -> I32:
        """Memory is taken with the first token: requests that only wait have none."""
        low, high = self._low, self._high
        self._runs: I32 = np.zeros(high + 1 - low, np.int32)  # [sizes]
        self._need: I32 = np.arange(low, high + 1, dtype=np.int32) * np.int32(self._count - 1)  # [sizes]
        # Newest first, so that the tokens `low` to `high` places before are one slice; moved when full.
        self._seen = seen = np.full(2 * high + 64, _NO_TOKEN, np.int32)
        self._newest = len(seen) - high
        return seen

    def push(self, token: int) -> bool:
        """One output token; true when it completes a repetition, and `min_output` tokens are there."""
        self._left -= 1
        high = self._high
        if high < self._low:
            return False
        seen = self._begin() if self._seen is None else self._seen
        if self._newest == 0:
            self._newest = len(seen) - high
            seen[self._newest :] = seen[:high]
        self._newest -= 1
        at = self._newest
        seen[at] = token
        self._runs += 1
        self._runs *= seen[at + self._low : at + high + 1] == token
        return self._left <= 0 and bool((self._runs >= self._need).any())


def repetition_of(params: SamplingParams, max_output: int) -> Repetition | None:
    """None where nothing is looked for."""
    asked = params.repetition_detection
    if asked is None or asked.max_pattern_size < 1 or asked.min_count < 2:
        return None
    return Repetition(asked, max_output, params.min_tokens)
