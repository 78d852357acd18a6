"""A worker with glass walls: its KV memory can be seen through, and a stale entry cannot hide.

It stands in for model and kernels behind `WorkerPort`. Physical memory is a flat list; the entry of
(block, offset) is a code of everything a real KV entry depends on: the token, its position and, like
real hidden states, all tokens before it. A row writes the codes of its new tokens where a kernel
would, the code of the token before being *read through the block table*; then it reads its whole
visible history back through the table, compares it with the codes of its true tokens, and draws its
next token as a hash of what it read. So a wrong block, a reused block, or a right token behind a wrong
prefix is found at once (`StaleKVError`), or, with `check=False`, changes the output.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from octavo.wire.layout import KVGroup, KVLayout
from octavo.wire.messages import (
    EngineRequest,
    FinishReason,
    SlotAdd,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from octavo.wire.sampling import RepetitionDetectionParams

MASK = (1 << 61) - 1
ROOT = 17


class StaleKVError(AssertionError):
    """A row read something that its own tokens did not write."""


def code_of(before: int, token: int, position: int) -> int:
    return (before * 1_000_003 + token * 8_191 + position * 131 + 7) & MASK


def codes_of(tokens: Iterable[int]) -> list[int]:
    codes, before = [], ROOT
    for position, token in enumerate(tokens):
        before = code_of(before, token, position)
        codes.append(before)
    return codes


def make_layout(windows: Sequence[int], block_size: int) -> KVLayout:
    groups = tuple(KVGroup((g,), window) for g, window in enumerate(windows))
    return KVLayout(groups=groups, block_size=block_size, kv_heads=1, head_dim=8, dtype="f32")


def first_seen(window: int, position: int) -> int:
    """First position that the query at `position` sees."""
    return max(0, position - window + 1) if window else 0


def look(reads: Sequence[Sequence[int]]) -> int:
    """What a query makes of the codes that it sees in each group."""
    return hash(tuple(map(tuple, reads))) & MASK


def choose(seen: int, seed: int, position: int, vocab: int, masked: Iterable[int]) -> int:
    """The token at `position`: a function of (what is seen, seed, position), as law 1 wants it."""
    token = hash((seen, seed, position)) % vocab
    masked = set(masked)
    while token in masked:
        token = (token + 1) % vocab
    return token


def scored(seen: int, token: int, top: int, vocab: int) -> TokenLogprobs:
    ids = [(seen + i) % vocab for i in range(max(0, top))]
    return TokenLogprobs(token, -(hash((seen, token)) % 997) / 100, 1 + seen % vocab, ids, [-0.5] * len(ids))


class Solo(NamedTuple):
    """What a request alone in the world gets; `seen[i]` is what output token i was drawn from."""

    token_ids: list[int]
    finish: FinishReason
    stop_reason: int | str | None
    seen: list[int]


def expected(request: EngineRequest, windows: Sequence[int], vocab: int, max_len: int) -> Solo:
    """The answer to a request, by the definition of the glass model and of stopping. No engine."""
    history: list[int] = []
    tokens, num_prompt = list(request.prompt), len(request.prompt)
    codes, params = codes_of(tokens), request.params
    stops = [*request.eos_ids, *params.stop_token_ids]
    while True:
        position = len(tokens)
        seen = look([codes[first_seen(w, position - 1) : position] for w in windows])
        history.append(seen)
        masked = stops if position - num_prompt < params.min_tokens else ()
        token = choose(seen, request.seed, position, vocab, masked)
        codes.append(code_of(codes[-1], token, position))
        tokens.append(token)
        output = tokens[num_prompt:]
        if len(output) > params.min_tokens:
            if token in request.eos_ids:
                return Solo(output, FinishReason.STOP, None, history)
            if token in params.stop_token_ids:
                return Solo(output, FinishReason.STOP, token, history)
        if len(output) >= request.max_tokens or len(tokens) >= max_len:
            return Solo(output, FinishReason.LENGTH, None, history)
        if repeats(output, params.repetition_detection) and len(output) >= params.min_tokens:
            return Solo(output, FinishReason.REPETITION, "repetition_detected", history)


def repeats(output: Sequence[int], asked: RepetitionDetectionParams | None) -> bool:
    """Does the output end in one pattern, `min_count` times? By its definition, over the whole of it."""
    if asked is None:
        return False
    for size in range(max(1, asked.min_pattern_size), asked.max_pattern_size + 1):
        tail = list(output[-size * asked.min_count :])
        if len(tail) == size * asked.min_count and tail == tail[:size] * asked.min_count:
            return True
    return False


class Row:
    """What a worker knows of a slot."""

    def __init__(self, add: SlotAdd) -> None:
        self.add = add
        self.tokens = list(add.token_ids)
        self.codes = codes_of(self.tokens)  # the truth, from the tokens alone
        self.computed = add.computed
        self.tables = [list(blocks) for blocks in add.blocks]


class GlassWorker:
    """A `WorkerPort`. `latency()` says how many looks a result stays invisible for (0 = ready at once);
    `fault_at` is the step that fails; `takes_s` says how long a step took. `check=False` reads stale KV
    without complaint, as a kernel would."""

    def __init__(
        self,
        windows: Sequence[int],
        block_size: int,
        num_blocks: int,
        vocab: int,
        *,
        max_rows: int = 1 << 30,
        max_tokens: int = 1 << 30,
        latency: Callable[[], int] = lambda: 0,
        fault_at: int | None = None,
        takes_s: Callable[[GlassWorker, StepPlan], float] = lambda worker, plan: 0.0,
        check: bool = True,
    ) -> None:
        self.windows = tuple(windows)
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.vocab = vocab
        self.max_rows = max_rows
        self.max_tokens = max_tokens
        self.latency = latency
        self.fault_at = fault_at
        self.takes_s = takes_s
        self.check = check
        self.memory = [-1] * (num_blocks * block_size)
        self.rows: dict[int, Row] = {}
        self.plans: list[StepPlan] = []
        self._results: deque[list[int | StepResult]] = deque()  # [looks left, result]
        self._pipe: tuple[int, int] | None = None
        self._is_raised = False

    # ---- WorkerPort ---------------------------------------------------------------------------

    @property
    def wake_fd(self) -> int:
        if self._pipe is None:
            self._pipe = os.pipe()
            self._signal()
        return self._pipe[0]

    def submit(self, plan: StepPlan) -> None:
        result = self._run(plan)
        self._results.append([self.latency(), result])
        self._signal()

    def collect(self, timeout_s: float | None = None) -> StepResult | None:
        if not self._results:
            assert timeout_s is not None, "waited for ever, and no step is in flight"
            return None
        entry = self._results[0]
        looks, result = entry
        assert isinstance(looks, int) and isinstance(result, StepResult)
        if looks > 0 and timeout_s == 0:
            entry[0] = looks - 1
            return None
        self._results.popleft()
        self._signal()
        return result

    def close(self) -> None:
        if self._pipe is not None:
            for fd in self._pipe:
                os.close(fd)
            self._pipe = None

    def _signal(self) -> None:
        """The descriptor is readable exactly while results wait."""
        if self._pipe is None or bool(self._results) == self._is_raised:
            return
        self._is_raised = bool(self._results)
        if self._is_raised:
            os.write(self._pipe[1], b"!")
        else:
            os.read(self._pipe[0], 1)

    # ---- a step -------------------------------------------------------------------------------

    def _run(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        if plan.step == self.fault_at:
            return StepResult(step=plan.step, fault="glass breaks")
        self._apply(plan)
        for slot, count in zip(plan.slots, plan.counts, strict=True):
            self._write(self.rows[slot], count)
        # As in a real layer: every row has written before any row reads.
        result = StepResult(step=plan.step, elapsed_s=self.takes_s(self, plan))
        wants_logprobs = any(self.rows[slot].add.params.logprobs is not None for slot in plan.slots)
        for slot, count, samples in zip(plan.slots, plan.counts, plan.samples, strict=True):
            row = self.rows[slot]
            start = row.computed
            row.computed += count
            if row.add.params.prompt_logprobs is not None:
                result.prompt_logprobs[slot] = self._score(row, start)
            seen = look([self._read(row, g, row.computed - 1) for g in range(len(self.windows))])
            token_ids, logprobs = self._sample(row, seen) if samples else ([], None)
            result.token_ids.append(token_ids)
            if wants_logprobs:
                result.logprobs.append(logprobs)
        return result

    def _apply(self, plan: StepPlan) -> None:
        for slot in plan.removed:
            del self.rows[slot]
        for add in plan.added:
            assert add.slot not in self.rows, f"slot {add.slot} is taken"
            assert 0 <= add.slot < self.max_rows
            assert 0 <= add.computed < len(add.token_ids), "at least one token is computed"
            self.rows[add.slot] = Row(add)
        for slot, group, blocks in plan.new_blocks:
            self.rows[slot].tables[group] += blocks
        assert len(set(plan.slots)) == len(plan.slots) > 0
        assert all(count > 0 for count in plan.counts)
        assert plan.num_tokens <= self.max_tokens
        for slot, count, samples in zip(plan.slots, plan.counts, plan.samples, strict=True):
            row = self.rows[slot]
            assert row.computed + count <= len(row.tokens), "a token that nobody knows was planned"
            assert samples == (row.computed + count == len(row.tokens))
            for table in row.tables:
                assert len(table) * self.block_size >= row.computed + count, "the table is too short"
                assert all(0 <= block < self.num_blocks for block in table)

    def _write(self, row: Row, count: int) -> None:
        size, memory = self.block_size, self.memory
        for g, table in enumerate(row.tables):
            position = row.computed
            if position == 0:
                before = ROOT
            elif self.windows[g] == 1:
                before = row.codes[position - 1]  # nothing behind is in sight
            else:
                before = memory[table[(position - 1) // size] * size + (position - 1) % size]
            for position in range(row.computed, row.computed + count):
                before = code_of(before, row.tokens[position], position)
                memory[table[position // size] * size + position % size] = before

    def _read(self, row: Row, group: int, position: int) -> list[int]:
        """The codes that the query at `position` sees, through the block table."""
        size, memory, table = self.block_size, self.memory, row.tables[group]
        first, end = first_seen(self.windows[group], position), position + 1
        low = first // size
        read: list[int] = []
        for i in range(low, -(-end // size)):
            at = table[i] * size
            read += memory[at : at + size]
        read = read[first - low * size : end - low * size]
        if self.check and read != row.codes[first:end]:
            truth = row.codes[first:end]
            wrong = next(i for i in range(len(truth)) if read[i] != truth[i])
            raise StaleKVError(
                f"{row.add.request_id}: group {group}, position {first + wrong} of {position} reads block "
                f"{table[(first + wrong) // size]} written for something else"
            )
        return read

    def _sample(self, row: Row, seen: int) -> tuple[list[int], list[TokenLogprobs] | None]:
        add, position = row.add, len(row.tokens)
        masked = add.stop_ids if position - add.num_prompt < add.params.min_tokens else ()
        token = choose(seen, add.seed, position, self.vocab, masked)
        row.tokens.append(token)
        row.codes.append(code_of(row.codes[-1], token, position))
        if add.params.logprobs is None:
            return [token], None
        return [token], [scored(seen, token, add.params.logprobs, self.vocab)]

    def _score(self, row: Row, start: int) -> list[TokenLogprobs]:
        top, scores = row.add.params.prompt_logprobs or 0, []
        for position in range(start, min(row.computed, row.add.num_prompt - 1)):
            seen = look([self._read(row, g, position) for g in range(len(self.windows))])
            scores.append(scored(seen, row.tokens[position + 1], top, self.vocab))
        return scores


def expected_scores(
    prompt: Sequence[int], windows: Sequence[int], vocab: int, top: int
) -> list[TokenLogprobs | None]:
    codes = codes_of(prompt)
    return [
        None,
        *(
            scored(look([codes[first_seen(w, p) : p + 1] for w in windows]), prompt[p + 1], top, vocab)
            for p in range(len(prompt) - 1)
        ),
    ]
