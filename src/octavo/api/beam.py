"""Beam search as a state machine: which sequences want scores, and what follows from them. No I/O.

Owns the rule of what continues, what ends and when it is over; HTTP (api.beam_generation) and
`LLM.beam_search` both drive it with one-token requests. Knows no engine, no prompt and no text.

The rule: in each round the candidates are all sequences, each extended by its best tokens, ranked by the
sum of their log-probabilities. An end token among the best `width` candidates finishes its sequence; the
best `width` others go on. A finished sequence scores sum / tokens ** length_penalty, its end token
counted. It is over when `width` sequences have finished and the best one that still runs would, at its
present length, score no more than the worst of them; or at `max_tokens`, where the best `width`
candidates finish as they are.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from octavo.errors import InvalidRequest
from octavo.wire.messages import EngineRequest, FinishReason, TokenDelta, TokenLogprobs
from octavo.wire.sampling import SamplingParams, StructuredSpec

MAX_WIDTH = 64
MAX_ENDS = 128
MAX_PENALTY = 10.0  # tokens ** penalty stays a float for any context
MAX_SCORES = 1 << 22  # width x tokens x (1 + logprobs): what all sequences of a prompt may keep


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True):
    """What `LLM.beam_search` takes. Names as vLLM has them; the last three are additions.

    The search follows the model's own probabilities, so `temperature` is 0 or 1, which mean the same.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False  # the text of the end token
    structured_outputs: StructuredSpec | None = None
    skip_special_tokens: bool = True
    watermarking: bool | None = None
    min_tokens: int = 0
    stop_token_ids: list[int] = []
    logprobs: int | None = None

    def sampling(self) -> SamplingParams:
        """The same as parameters of a request. Raises InvalidRequest for what cannot act."""
        check_temperature(self.temperature)
        if self.structured_outputs is not None:
            raise InvalidRequest(
                "structured_outputs does not act on beam search: its sequences follow no grammar",
                param="structured_outputs",
            )
        if self.watermarking:
            raise InvalidRequest("watermarking is not supported", param="watermarking")
        return SamplingParams(
            n=self.beam_width,
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
            stop_token_ids=list(dict.fromkeys(self.stop_token_ids)),
            include_stop_str_in_output=self.include_stop_str_in_output,
            skip_special_tokens=self.skip_special_tokens,
            logprobs=self.logprobs,
        )


def check_temperature(value: float | None) -> None:
    if value is not None and value not in (0, 1):
        raise InvalidRequest(
            f"temperature is {value:g}; beam search follows the model's own probabilities, where nothing is drawn",
            param="temperature",
            fix="leave it out, or give 0 or 1",
        )


def check_mode(logprobs_mode: str) -> None:
    """Raises InvalidRequest on a server whose logprobs are no log-probabilities."""
    if logprobs_mode.endswith("logits"):
        raise InvalidRequest(
            f"beam search adds up log-probabilities; this server gives {logprobs_mode}",
            param="use_beam_search",
            fix="serve it with --logprobs-mode raw_logprobs",
        )


@dataclass(frozen=True, slots=True)
class BeamRules:
    """`ends` maps each end token to the stop_reason that it gives (None for end-of-text)."""

    width: int
    max_tokens: int
    length_penalty: float
    ends: dict[int, int | None]
    min_tokens: int = 0
    keep: int | None = None  # logprobs to keep with each token, as SamplingParams.logprobs
    vocab_size: int = 1 << 30

    @classmethod
    def of(
        cls,
        params: SamplingParams,
        *,
        length_penalty: float,
        max_tokens: int,
        eos_ids: Sequence[int],
        vocab_size: int,
    ) -> BeamRules:
        """Raises InvalidRequest for bounds; everything else of `params` was checked before."""
        if not (math.isfinite(length_penalty) and abs(length_penalty) <= MAX_PENALTY):
            raise InvalidRequest(
                f"length_penalty is {length_penalty:g}; allowed is {-MAX_PENALTY:g} to {MAX_PENALTY:g}",
                param="length_penalty",
            )
        most = min(MAX_WIDTH, vocab_size // 2)
        if not 1 <= params.n <= most:
            raise InvalidRequest(
                f"n is {params.n}; the width of a beam search is 1 to {most}", param="n", fix="ask for fewer"
            )
        ends: dict[int, int | None] = {i: i for i in params.stop_token_ids}
        ends |= dict.fromkeys(eos_ids)
        if len(ends) > min(MAX_ENDS, vocab_size - params.n):
            raise InvalidRequest(
                f"beam search has {len(ends)} end tokens to look for; allowed are {MAX_ENDS}",
                param="stop_token_ids",
            )
        kept = vocab_size if params.logprobs == -1 else params.logprobs or 0
        if params.n * max_tokens * (1 + kept) > MAX_SCORES:
            raise InvalidRequest(
                f"{params.n} sequences of {max_tokens} tokens with {kept} logprobs each are too much to keep",
                param="max_tokens",
                fix="ask for fewer tokens, a smaller n or fewer logprobs",
            )
        return cls(params.n, max_tokens, length_penalty, ends, params.min_tokens, params.logprobs, vocab_size)

    @property
    def num_scores(self) -> int:
        """How many of the best tokens a round has to know of each sequence: 2 x width, unless there are many
        ends. No more than len(ends) of them end a sequence, so `width` are left that do not."""
        needed = self.width + max(self.width, len(self.ends))
        if self.keep is not None:
            needed = self.vocab_size if self.keep == -1 else max(needed, self.keep)
        return min(needed, self.vocab_size)

    def score(self, logprob: float, num_tokens: int) -> float:
        return float(logprob / num_tokens**self.length_penalty)

    def request(
        self, request_id: str, prompt: list[int], tokens: list[int], *, prompt_logprobs: int | None = None
    ) -> EngineRequest:
        """The one-token request that scores what may follow `tokens`."""
        return EngineRequest(
            id=request_id,
            prompt=[*prompt, *tokens],
            params=SamplingParams(
                temperature=0.0, max_tokens=1, logprobs=self.num_scores, prompt_logprobs=prompt_logprobs
            ),
            max_tokens=1,
            seed=0,
            skip_reading_prefix_cache=prompt_logprobs is not None,
        )


@dataclass(frozen=True, slots=True)
class _Node:
    """The last token of a sequence; the others are behind `parent`. `num_tokens` 0 is the prompt's end."""

    parent: _Node | None = None
    token: int = -1
    logprob: float = 0.0  # of this token
    total: float = 0.0  # of the sequence
    num_tokens: int = 0
    rank: int = 0
    row: TokenLogprobs | None = None  # what else could have come here

    def path(self) -> list[_Node]:
        nodes, node = [], self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def tokens(self) -> list[int]:
        return [node.token for node in self.path()]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A sequence as it ended."""

    token_ids: list[int]
    logprob: float
    score: float
    finish: FinishReason
    stop_reason: int | None
    logprobs: list[TokenLogprobs] | None

    def delta(self, request_id: str = "") -> TokenDelta:
        """As the engine would have said it, all at once."""
        return TokenDelta(
            id=request_id,
            token_ids=self.token_ids,
            logprobs=self.logprobs,
            finish=self.finish,
            stop_reason=self.stop_reason,
        )


@dataclass(frozen=True, slots=True)
class _Finished:
    node: _Node
    score: float
    finish: FinishReason
    stop_reason: int | None = None


class BeamSearch:
    """One prompt's search. Round by round: `open()` says what wants scores, `advance` takes them."""

    def __init__(self, rules: BeamRules) -> None:
        self._rules = rules
        self._running = [_Node()]
        self._finished: list[_Finished] = []  # the best `width` so far, best first

    @property
    def is_over(self) -> bool:
        return not self._running

    def open(self) -> list[list[int]]:
        """Tokens of each running sequence, best first. (The first round has one: the prompt alone.)"""
        return [node.tokens() for node in self._running]

    def advance(self, rows: Sequence[TokenLogprobs]) -> None:
        """`rows[i]`: the best `num_scores` next tokens of sequence i of `open()`."""
        rules, running = self._rules, []
        is_last = self._running[0].num_tokens + 1 == rules.max_tokens
        for rank, node in enumerate(self._candidates(rows)):
            ends = node.token in rules.ends
            if rank < rules.width and (ends or is_last):
                score = rules.score(node.total, node.num_tokens)
                finish = FinishReason.STOP if ends else FinishReason.LENGTH
                self._finished.append(_Finished(node, score, finish, rules.ends.get(node.token)))
            elif not ends:
                running.append(node)
            if (is_last and rank + 1 == rules.width) or len(running) == rules.width:
                break
        self._finished.sort(key=lambda f: -f.score)  # stable: of equals, who finished first stays first
        del self._finished[rules.width :]
        self._running = [] if is_last or self._is_decided(running) else running

    def _candidates(self, rows: Sequence[TokenLogprobs]) -> Iterator[_Node]:
        """Extended sequences, best first; of equals, the better sequence's, then the better token's."""
        rules = self._rules
        found: list[tuple[float, int, int, float, int]] = []
        for i, (node, row) in enumerate(zip(self._running, rows, strict=True)):
            may_end = node.num_tokens >= rules.min_tokens
            for rank, (token, logprob) in enumerate(zip(row.top_ids, row.top_logprobs, strict=True)):
                if token >= 0 and (may_end or token not in rules.ends):
                    found.append((-(node.total + logprob), i, rank, logprob, token))
        kept = None if rules.keep is None else [self._kept(row) for row in rows]
        for negative, i, rank, logprob, token in heapq.nsmallest(rules.width + self._most_ends(), found):
            parent = self._running[i]
            others = None if kept is None else kept[i]
            yield _Node(parent, token, logprob, -negative, parent.num_tokens + 1, rank + 1, others)

    def _most_ends(self) -> int:
        return max(1, len(self._rules.ends)) * len(self._running)

    def _kept(self, row: TokenLogprobs) -> TokenLogprobs:
        keep = self._rules.keep
        if keep is None or keep < 0:
            return row
        return msgspec.structs.replace(row, top_ids=row.top_ids[:keep], top_logprobs=row.top_logprobs[:keep])

    def _is_decided(self, running: list[_Node]) -> bool:
        if not running:
            return True
        if len(self._finished) < self._rules.width:
            return False
        best = running[0]
        return self._rules.score(best.total, best.num_tokens) <= self._finished[-1].score

    def best(self) -> list[Hypothesis]:
        """The finished sequences, best first."""
        return [self._hypothesis(f) for f in self._finished]

    def so_far(self) -> list[Hypothesis]:
        """What there is when the search is cut off: finished ones, then running ones, `width` in all."""
        rules = self._rules
        cut = [
            _Finished(n, rules.score(n.total, n.num_tokens), FinishReason.ABORT)
            for n in self._running
            if n.num_tokens
        ]
        found = [self._hypothesis(f) for f in [*self._finished, *cut][: rules.width]]
        empty = Hypothesis([], 0.0, 0.0, FinishReason.ABORT, None, None)
        return found + [empty] * (rules.width - len(found))

    def _hypothesis(self, finished: _Finished) -> Hypothesis:
        path = finished.node.path()
        scored = [
            TokenLogprobs(node.token, node.logprob, node.rank, node.row.top_ids, node.row.top_logprobs)
            for node in path
            if node.row is not None
        ]
        return Hypothesis(
            [n.token for n in path],
            finished.node.total,
            finished.score,
            finished.finish,
            finished.stop_reason,
            scored if self._rules.keep is not None else None,
        )


Answer = Callable[[list[EngineRequest]], dict[str, TokenDelta]]  # requests -> the deltas with their tokens


def search_together(
    searches: Sequence[tuple[BeamSearch, BeamRules, list[int]]], answer: Answer, on_over: Callable[[], object]
) -> list[TokenDelta]:
    """Runs (search, rules, prompt) side by side to their ends, a round of all of them at a time.

    Returns what the first request of each had to say of its prompt.
    """
    firsts: list[TokenDelta] = []
    left, count = list(range(len(searches))), 0
    while left:
        requests: dict[int, list[EngineRequest]] = {}
        for s in left:
            search, rules, prompt = searches[s]
            requests[s] = []
            for tokens in search.open():
                count += 1
                requests[s].append(rules.request(f"beam.{count}", prompt, tokens))
        answers = answer([r for asked in requests.values() for r in asked])
        firsts = firsts or [answers[asked[0].id] for asked in requests.values()]
        for s, asked in requests.items():
            deltas = [answers[r.id] for r in asked]
            searches[s][0].advance([d.logprobs[0] for d in deltas if d.logprobs])
            if searches[s][0].is_over:
                left.remove(s)
                on_over()
    return firsts
