"""Whether a token ends its request: one function, asked once per token, in one order."""

from __future__ import annotations

from collections.abc import Collection

from octavo.core.repetition import Repetition
from octavo.wire.messages import FinishReason

REPEATED = "repetition_detected"  # the stop_reason


def may_stop(
    token_id: int,
    *,
    num_output: int,
    min_tokens: int,
    is_last: bool,
    eos_ids: Collection[int],
    stop_token_ids: Collection[int],
    repetition: Repetition | None = None,
) -> tuple[FinishReason, int | str | None] | None:
    """(reason, stop_reason) if the `num_output`-th output token (1-based) ends the request.

    In this order: end of sequence (no stop_reason), a stop id (which is the stop_reason), length, a
    repetition that the token completes. The first two never act on the first `min_tokens` tokens: the
    worker masks those ids there, and a draw that slipped through all the same would not stop. `is_last`:
    max_tokens or the context is reached. Stop strings are the API's: they need text.
    """
    if num_output > min_tokens:
        if token_id in eos_ids:
            return FinishReason.STOP, None
        if token_id in stop_token_ids:
            return FinishReason.STOP, token_id
    if is_last:
        return FinishReason.LENGTH, None
    if repetition is not None and repetition.push(token_id):
        return FinishReason.REPETITION, REPEATED
    return None
