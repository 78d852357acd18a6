"""One HTTP request at the engine: n choices of one or more prompts, as one stream of events.

Owns internal ids, seeds, merging of choices, counting. Streamed or not, a request goes through
`Generation.events`; closing that generator aborts what still runs. Knows no dialect.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from octavo.api.prompt import Prompt, room
from octavo.api.records import RequestLog, Siblings, counted
from octavo.api.sampling import check_min_tokens, choice_seeds, eos_ids
from octavo.api.state import ApiState
from octavo.api.text.parsers.machine import OutputParser
from octavo.api.text.pipeline import ChoiceEvent, ChoicePipeline
from octavo.api.text.token_pipeline import TokenPipeline
from octavo.errors import InvalidRequest
from octavo.wire.messages import EngineRequest
from octavo.wire.sampling import SamplingParams

log = logging.getLogger("octavo.request")


@dataclass(slots=True)
class Usage:
    """Tokens of a request. Prompts count once, however many choices were made of them."""

    prompt: int
    cached: int
    completion: int
    reasoning: int = 0  # of the completion


@dataclass(slots=True)
class _Choice:
    request: EngineRequest
    pipeline: ChoicePipeline | TokenPipeline
    record: RequestLog
    prompt_index: int


class Generation:
    """`asked_tokens` must fit the context; `default_tokens` is cut to what is left (None = all of it)."""

    def __init__(
        self,
        state: ApiState,
        prompts: list[Prompt],
        params: SamplingParams,
        *,
        client_id: str,
        asked_tokens: int | None,
        default_tokens: int | None,
        salt: str | None = None,
        priority: int = 0,
        arrival: float | None = None,
        hides_output: bool = False,
        new_parser: Callable[[], OutputParser] | None = None,
    ) -> None:
        self._state = state
        self.prompts = prompts
        self.params = params
        self.hides_output = hides_output  # echo with max_tokens 0: one token is made and dropped
        self._new_parser = new_parser
        self._client_id = client_id
        self._salt = salt
        self._priority = priority
        self._arrival = time.monotonic() if arrival is None else arrival
        limits = state.engine.scheduler
        lengths = [
            room(len(p.ids), asked_tokens, default_tokens, limits.max_model_len, limits.model_max_len)
            for p in prompts
        ]
        if state.defaults.max_tokens_cap is not None:
            lengths = [min(length, state.defaults.max_tokens_cap) for length in lengths]
        check_min_tokens(params, min(lengths))
        self._check_volume()
        self._choices = self._make_choices(lengths)
        # Not all choices of a large request at once: they would fill the engine's line and its memory.
        most = state.engine.scheduler.max_num_seqs
        most += max(1, most // 8)
        self._window = asyncio.Semaphore(most) if len(self._choices) > most else None
        self._cached = [0] * len(prompts)
        state.metrics.on_request(params.n)
        if state.server.log_requests:
            log.info(
                "request %s comes: %s, %s", client_id, counted(self.usage.prompt, "prompt token"), params
            )

    @property
    def num_choices(self) -> int:
        return len(self._choices)

    def prompt_of(self, index: int) -> Prompt:
        return self.prompts[self._choices[index].prompt_index]

    @property
    def usage(self) -> Usage:
        """Exact at every moment: what was handed out so far."""
        completion = 0 if self.hides_output else sum(c.pipeline.num_tokens for c in self._choices)
        reasoning = sum(c.pipeline.num_reasoning for c in self._choices)
        return Usage(sum(len(p.ids) for p in self.prompts), sum(self._cached), completion, reasoning)

    def _check_volume(self) -> None:
        """What every choice carries, and what every prompt token brings back, within bounds of memory."""
        p, limits, count = self.params, self._state.limits, len(self.prompts) * self.params.n
        listed = len(p.logit_bias or ()) + len(p.allowed_token_ids or ()) + len(p.stop_token_ids)
        listed += sum(map(len, p.bad_words_ids)) + len(p.logprob_token_ids or ())
        if count > 1 and count * listed > limits.max_listed_ids:
            raise InvalidRequest(
                f"{count} choices with {listed:,} ids in logit_bias, allowed_token_ids, stop_token_ids, bad_words "
                f"and logprob_token_ids are {count * listed:,}; allowed are {limits.max_listed_ids:,}",
                param="n",
                fix="ask for fewer choices in one request",
            )
        if p.prompt_logprobs is None:
            return
        most = self._state.engine.vocab_size if p.prompt_logprobs == -1 else p.prompt_logprobs
        scores = sum(len(x.ids) for x in self.prompts) * p.n * (1 + most)
        if len(self.prompts) * p.n > 1 and scores > limits.max_prompt_scores:
            raise InvalidRequest(
                f"prompt_logprobs of all prompts would be {scores:,} numbers; allowed are "
                f"{limits.max_prompt_scores:,}",
                param="prompt_logprobs",
                fix="send fewer prompts in one request, or ask for fewer logprobs",
            )

    def _make_choices(self, lengths: list[int]) -> list[_Choice]:
        params, n = self.params, self.params.n
        ends = eos_ids(self._state.codec, self._state.defaults, params)
        seed = self._state.seeds.getrandbits(63) if params.seed is None else params.seed
        seeds = choice_seeds(seed, n)
        one = msgspec.structs.replace(params, n=1)
        choices = []
        for p, (prompt, max_tokens) in enumerate(zip(self.prompts, lengths, strict=True)):
            siblings = Siblings(n)
            for i in range(n):
                index = p * n + i
                request = EngineRequest(
                    id=uuid.uuid4().hex,
                    prompt=prompt.ids,
                    params=one,
                    max_tokens=max_tokens,
                    seed=seeds[i],
                    eos_ids=ends,
                    priority=self._priority,
                    salt=self._salt,
                    skip_reading_prefix_cache=params.skips_prefix_cache,
                    arrival=self._arrival,
                )
                record = RequestLog(
                    id=request.id,
                    client_id=self._client_id,
                    index=index,
                    num_choices=n * len(lengths),
                    num_prompt=len(prompt.ids),
                    max_tokens=max_tokens,
                    arrival=self._arrival,
                    siblings=siblings,
                )
                pipeline: ChoicePipeline | TokenPipeline = TokenPipeline(index=index)
                if params.detokenize:
                    parser = None if self._new_parser is None else self._new_parser()
                    pipeline = ChoicePipeline(
                        self._state.codec, params, index=index, prompt=prompt.ids, parser=parser
                    )
                choices.append(_Choice(request, pipeline, record, p))
        return choices

    # ---- events ---------------------------------------------------------------------------------

    def events(self, *, interval: int = 1) -> AsyncGenerator[ChoiceEvent, None]:
        """Events of all choices as they come; one last event per choice.

        `interval`: after the first, events of a choice are gathered until they hold that many tokens.
        """
        if len(self._choices) == 1:
            return self._events_of(self._choices[0], interval)
        return self._merged(interval)

    async def _merged(self, interval: int) -> AsyncGenerator[ChoiceEvent, None]:
        queue: asyncio.Queue[ChoiceEvent | BaseException] = asyncio.Queue()

        async def drain(choice: _Choice) -> None:
            try:
                async with aclosing(self._events_of(choice, interval)) as events:
                    async for event in events:
                        queue.put_nowait(event)
            except Exception as error:
                queue.put_nowait(error)

        tasks = [asyncio.create_task(drain(c)) for c in self._choices]
        left = len(tasks)
        try:
            while left:
                item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                left -= item.is_last
                yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _events_of(self, choice: _Choice, interval: int) -> AsyncGenerator[ChoiceEvent, None]:
        logs, record, pipeline = self._state.logs, choice.record, choice.pipeline
        logs.open(record)
        check = self._state.grammars.watch(choice.request)
        held: ChoiceEvent | None = None
        is_first = True
        try:
            async with aclosing(self._state.client.submit(choice.request, self._window)) as deltas:
                async for delta in deltas:
                    event = pipeline.feed(delta)
                    if check is not None:
                        await check.see(event)
                    self._note(choice, event, has_tokens=bool(delta.token_ids))
                    if held is not None:
                        event = _joined(held, event)
                        held = None
                    if event.is_empty:
                        continue
                    if event.is_last or is_first or len(event.token_ids) >= interval:
                        is_first = False
                        yield event
                        if event.is_last:
                            return
                    else:
                        held = event
        finally:
            logs.on_served(record)
            if not self._state.client.owns(record.id):  # it never got that far, or has ended
                logs.on_end(record.id, None)

    def _note(self, choice: _Choice, event: ChoiceEvent, *, has_tokens: bool) -> None:
        record = choice.record
        if has_tokens:
            record.on_tokens()
        record.num_tokens = choice.pipeline.num_tokens
        if event.num_cached is not None:
            record.num_cached = event.num_cached
            if choice.request.id == self._choices[choice.prompt_index * self.params.n].request.id:
                self._cached[choice.prompt_index] = event.num_cached
        if event.is_last:
            record.reason = event.finish or "error"


def _joined(first: ChoiceEvent, second: ChoiceEvent) -> ChoiceEvent:
    """Two events of a choice as one."""
    second.text = first.text + second.text
    if first.parts is not None or second.parts is not None:
        second.parts = first.ordered + second.ordered
    second.token_ids = first.token_ids + second.token_ids
    second.entries = first.entries + second.entries
    if first.prompt_logprobs is not None:
        second.prompt_logprobs = first.prompt_logprobs
    return second


def salt_of(api_key: str | None, cache_salt: str | None, *, shared: bool) -> str | None:
    """The key space of the prefix cache: one per API key unless shared, divided by what the client gives.

    The two parts are tagged, so that no salt of a client can name another's key space.
    """
    if cache_salt is not None and (
        not cache_salt or len(cache_salt) > 128 or any(c in cache_salt for c in "@/\\\0")
    ):
        raise InvalidRequest(
            "cache_salt must have 1 to 128 characters and none of '@', '/', '\\' and NUL", param="cache_salt"
        )
    parts = []
    if api_key is not None and not shared:
        parts.append("key:" + hashlib.sha256(api_key.encode()).hexdigest()[:32])
    if cache_salt is not None:
        parts.append("salt:" + cache_salt)
    return "|".join(parts) or None


async def first_event(events: AsyncIterator[ChoiceEvent]) -> ChoiceEvent:
    """The first event. Raises InvalidRequest (500) when it is an error: nothing was sent, so HTTP can say so."""
    event = await anext(events)
    if event.error is not None and not event.text:
        raise engine_error(event)
    return event


def engine_error(event: ChoiceEvent) -> InvalidRequest:
    """A 400 where what the request asks for cannot be done, a 503 where no engine is left, otherwise a 500."""
    if event.is_refused:
        return InvalidRequest(f"the request cannot be answered: {event.error}")
    if event.is_gone:
        kind = "ServiceUnavailableError"
        return InvalidRequest(f"the request was cut off: {event.error}", status=503, kind=kind)
    return InvalidRequest(f"the request failed: {event.error}", status=500, kind="InternalServerError")
