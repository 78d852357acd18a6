"""Beam search for the HTTP routes: a Generation whose choices are the sequences of `api.beam`, best first.

Owns the rounds of one-token requests. A round's requests share all but
their last tokens with the round before, so the prefix cache makes them cheap. They are internal: metrics,
log and usage know the choices that the client gets, not the sequences that were dropped on the way.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec

from octavo.api.beam import BeamRules, BeamSearch, check_mode
from octavo.api.beam_fields import check_beams
from octavo.api.generation import Generation
from octavo.api.schema.common import GenerationBody
from octavo.api.text.pipeline import ChoiceEvent
from octavo.wire.messages import EngineRequest, FinishReason, TokenDelta, TokenLogprobs


def generation_of(body: GenerationBody) -> Callable[..., Generation]:
    """What makes the choices that a body asks for."""
    if body.use_beam_search:
        return partial(BeamGeneration, length_penalty=body.length_penalty)
    return Generation


class _Ended(Exception):
    """A round did not come to its end: the engine failed (`error`), or gave the request up."""

    def __init__(self, error: str | None, *, is_gone: bool = False) -> None:
        self.error = error
        self.is_gone = is_gone


class BeamGeneration(Generation):
    """`params.n` is the width. Usage counts the tokens of the sequences that the client gets."""

    def __init__(self, *args: Any, length_penalty: float, **options: Any) -> None:
        super().__init__(*args, **options)
        engine = self._state.engine
        check_beams(self.params)
        check_mode(engine.logprobs_mode)
        self._rules = [
            BeamRules.of(
                self.params,
                length_penalty=length_penalty,
                max_tokens=choice.request.max_tokens,
                eos_ids=choice.request.eos_ids,
                vocab_size=engine.vocab_size,
            )
            for choice in self._choices[:: self.params.n]
        ]
        # Whole searches side by side, as many as the engine has rows for.
        self._turns = asyncio.Semaphore(max(1, engine.scheduler.max_num_seqs // self.params.n))

    async def events(self, *, interval: int = 1) -> AsyncGenerator[ChoiceEvent, None]:
        """One event per choice, when its prompt's search is over. `interval` has nothing to gather."""
        logs, admission = self._state.logs, self._state.admission
        for choice in self._choices:
            logs.open(choice.record)
        admission.num_searches += 1
        tasks = [asyncio.create_task(self._search(p)) for p in range(len(self.prompts))]
        try:
            for done in asyncio.as_completed(tasks):
                prompt, deltas = await done
                for i, delta in enumerate(deltas):
                    choice = self._choices[prompt * self.params.n + i]
                    event = choice.pipeline.feed(delta)
                    self._note(choice, event, has_tokens=bool(delta.token_ids))
                    yield event
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            admission.num_searches -= 1
            for choice in self._choices:
                logs.on_served(choice.record)
                logs.on_end(choice.record.id, None)

    async def _search(self, prompt: int) -> tuple[int, list[TokenDelta]]:
        """(prompt, what each of its choices has to say, best first)."""
        async with self._turns:
            search, first = BeamSearch(self._rules[prompt]), TokenDelta(id="")
            try:
                while not search.is_over:
                    rows = await self._round(prompt, search.open(), first)
                    search.advance(rows)
            except _Ended as ended:
                if ended.error is not None:
                    gone = ended.is_gone
                    return prompt, [
                        TokenDelta(id="", finish=FinishReason.ERROR, error=ended.error, is_gone=gone)
                    ]
            found = search.best() if search.is_over else search.so_far()
        deltas = [hypothesis.delta() for hypothesis in found]
        for delta in deltas:
            delta.prompt_logprobs, delta.num_cached = first.prompt_logprobs, first.num_cached
        return prompt, deltas

    async def _round(self, prompt: int, sequences: list[list[int]], first: TokenDelta) -> list[TokenLogprobs]:
        """What may follow each sequence. `first` takes what the first request of a search says of the prompt."""
        is_first = not sequences[0]
        scores = self.params.prompt_logprobs if is_first else None
        rules, ids = self._rules[prompt], self.prompts[prompt].ids
        tasks = [
            asyncio.create_task(
                self._ask(rules.request(uuid.uuid4().hex, ids, tokens, prompt_logprobs=scores))
            )
            for tokens in sequences
        ]
        try:
            deltas = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if is_first:
            first.prompt_logprobs, first.num_cached = deltas[0].prompt_logprobs, deltas[0].num_cached
        return [delta.logprobs[0] for delta in deltas if delta.logprobs]

    async def _ask(self, request: EngineRequest) -> TokenDelta:
        """The one token of a request, as one delta. Raises _Ended when none comes."""
        request = msgspec.structs.replace(
            request, priority=self._priority, salt=self._salt, arrival=time.monotonic()
        )
        got = TokenDelta(id=request.id)
        async with aclosing(self._state.client.submit(request, self._window)) as deltas:
            async for delta in deltas:
                got.logprobs = delta.logprobs or got.logprobs
                got.prompt_logprobs = delta.prompt_logprobs or got.prompt_logprobs
                got.num_cached = delta.num_cached if got.num_cached is None else got.num_cached
                if delta.finish in (FinishReason.ERROR, FinishReason.ABORT):
                    failed = delta.finish == FinishReason.ERROR
                    error = (delta.error or "the engine failed at this request") if failed else None
                    raise _Ended(error, is_gone=delta.is_gone)
        if not got.logprobs:
            raise _Ended("the engine gave no log-probabilities")
        return got
