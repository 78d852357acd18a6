"""Offline use: `LLM(model).generate(prompts, params)` on the same engine, in this process.

Owns the queue of one call and the order of its outputs. Text is made by the same pipeline as over
HTTP, so both give the same text.
"""

from __future__ import annotations

import asyncio
import operator
import random
import weakref
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.config.load import from_keywords
from octavo.errors import ConfigError, EngineDead, InvalidRequest
from octavo.wire.messages import EngineRequest, RequestRecord, TokenDelta, TokenLogprobs
from octavo.wire.sampling import SamplingParams

if TYPE_CHECKING:
    from octavo.api.beam import BeamSearch, BeamSearchParams
    from octavo.api.prompt import Prompt, PromptMaker
    from octavo.api.template_pool import TemplatePool
    from octavo.api.text.pipeline import ChoicePipeline
    from octavo.api.text.token_pipeline import TokenPipeline
    from octavo.launch.build import Built

PromptInput = str | Sequence[int] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of a token at a position. `rank`: 1 = best."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One choice. `logprobs[i]`: {token id: Logprob} of output position i; the chosen token comes first."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestOutput:
    """A prompt and its choices. `prompt` is None for a prompt of token ids."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    finished: bool = False
    num_cached_tokens: int | None = None
    record: RequestRecord | None = None  # of the first choice


@dataclass(slots=True)
class _Choice:
    pipeline: ChoicePipeline | TokenPipeline
    output: CompletionOutput
    owner: RequestOutput
    are_best: bool = (
        True  # the tokens beside a drawn one; else those of logprob_token_ids, which have no rank
    )


class LLM:
    """A model in this process. Keywords are the flags of `octavo serve`, with underscores.

    Raises ConfigError, WeightError or CapacityError before anything is loaded. Use from one thread.
    """

    def __init__(self, model: str | None = None, **asked: Any) -> None:
        from octavo.api.limits import Limits
        from octavo.api.prompt import ChatTemplate, PromptMaker
        from octavo.api.sampling import SamplingDefaults
        from octavo.api.template_pool import TemplatePool
        from octavo.grammar.vocabulary import of_tokenizer
        from octavo.launch.build import build_engine
        from octavo.launch.plan import make_plan
        from octavo.launch.text import chat_template, generation_config, load_codec

        given = from_keywords(model, asked)
        if given.parallel.api_server_count != 1:
            raise ConfigError(
                f"api_server_count is {given.parallel.api_server_count}: an LLM has no API process",
                fix="leave it out, or use `octavo serve`",
            )
        planned = make_plan(given)
        plan = planned.resolved.engine
        self.plan = plan
        self._codec = load_codec(planned.source, given)
        self._defaults = SamplingDefaults.read(generation_config(planned.source, given))
        self._vocabulary = cache(lambda: of_tokenizer(self._codec, plan.vocab_size))
        self._built = build_engine(planned.source, plan, lambda phase: None, self._vocabulary)
        self._engine = self._built.engine
        self.table = self._built.table  # rows [topic, choice, reason]: what runs and why
        self._pool = TemplatePool(Limits(template_workers=1))
        template = ChatTemplate(chat_template(planned.source, given), self._codec, self._pool)
        self._prompts: PromptMaker = PromptMaker(
            self._codec,
            template,
            max_model_len=plan.scheduler.max_model_len,
            model_max_len=plan.scheduler.model_max_len,
            vocab_size=plan.vocab_size,
        )
        self._loop = _Loop()
        # also when the object is dropped, or the interpreter ends
        self._finalize = weakref.finalize(self, _release, self._pool, self._loop, self._built)
        self._random = random.Random(plan.seed)
        self._num_requests = 0

    # ---- use ------------------------------------------------------------------------------------

    def default_sampling_params(self) -> SamplingParams:
        """What applies when `generate` gets no parameters: the model's own defaults."""
        values = {
            name: getattr(self._defaults, name)
            for name in self._defaults.__struct_fields__
            if name in SamplingParams.__struct_fields__
        }
        return SamplingParams(**values, max_tokens=self._defaults.max_new_tokens or 16)

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Completes texts, lists of token ids, or {"prompt": ...} / {"prompt_token_ids": ...}.

        Outputs come in the order of the prompts. Raises InvalidRequest before anything runs. An answer ends at the
        end of the context too (finish_reason "length"), whatever `max_tokens`: prompts of one call differ in length.
        """
        made = self._made(prompts)
        return self._run(made, sampling_params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation, or each of several."""
        from octavo.api.schema.chat import ChatFields
        from octavo.api.schema.normalise import normalise

        self._check_open()
        given_messages: object = messages
        if isinstance(given_messages, str):
            raise InvalidRequest(
                "messages is a string; it must be a list of messages, or a list of such lists",
                param="messages",
                fix="give messages, or use generate",
            )
        is_one = bool(messages) and isinstance(messages[0], Mapping)
        several: Sequence[Any] = [messages] if is_one else messages
        made = []
        for conversation in several:
            given = {
                "messages": list(conversation),
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
                "continue_final_message": continue_final_message,
                "chat_template_kwargs": dict(chat_template_kwargs or {}),
            }
            fields, _ = normalise(ChatFields, given, strict=True)
            made.append(self._loop.run(self._prompts.from_chat(fields)))
        return self._run(made, sampling_params, use_tqdm)

    def beam_search(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: BeamSearchParams,
        *,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """The `beam_width` best answers to each prompt, best first (see api.beam for the rule)."""
        from tqdm import tqdm

        from octavo.api.beam import BeamRules, BeamSearch, BeamSearchParams, check_mode, search_together
        from octavo.api.sampling import eos_ids

        if not isinstance(params, BeamSearchParams):
            raise InvalidRequest(
                f"params is of the type {type(params).__name__}",
                fix="give a BeamSearchParams",
                param="params",
            )
        made = self._made(prompts)
        check_mode(self.plan.logprobs_mode)
        sampling = params.sampling()
        self._params_for(1, sampling)  # its ranges
        ends = eos_ids(self._codec, self._defaults, sampling)
        searches = []
        for prompt in made:
            rules = BeamRules.of(
                sampling,
                length_penalty=params.length_penalty,
                max_tokens=self._room(prompt, sampling.max_tokens),
                eos_ids=ends,
                vocab_size=self.plan.vocab_size,
            )
            searches.append((BeamSearch(rules), rules, prompt.ids))
        with tqdm(total=len(made), disable=not use_tqdm, unit="prompt", dynamic_ncols=True) as bar:
            firsts = search_together(searches, self._answers, bar.update)
        return [
            self._searched(prompt, sampling, search, first.num_cached)
            for prompt, (search, _, _), first in zip(made, searches, firsts, strict=True)
        ]

    def reset_prefix_cache(self) -> bool:
        """Forgets cached prefixes. False while a request runs."""
        return self._engine.reset_prefix_cache()

    def close(self) -> None:
        """Gives weights, KV memory, threads and helper processes back."""
        self._finalize()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- requests in ----------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._finalize.alive:
            raise EngineDead("this LLM has been closed: make a new one")

    def _made(self, prompts: PromptInput | Sequence[PromptInput]) -> list[Prompt]:
        self._check_open()
        return [self._loop.run(self._prompt(item)) for item in _listed(prompts)]

    async def _prompt(self, item: PromptInput) -> Prompt:
        if isinstance(item, Mapping):
            unknown = set(item) - {"prompt", "prompt_token_ids"}
            if unknown or len(item) != 1:
                raise InvalidRequest(
                    f"a prompt has the keys {sorted(item)}",
                    fix='give {"prompt": text} or {"prompt_token_ids": ids}',
                )
        given: Any = next(iter(item.values())) if isinstance(item, Mapping) else item
        if isinstance(given, str):
            return await self._prompts.from_text(given, add_special_tokens=True)
        try:
            ids = [operator.index(token_id) for token_id in given]
        except TypeError:
            raise _not_a_prompt(given) from None
        return self._prompts.from_ids(ids)

    def _run(
        self,
        prompts: list[Prompt],
        given: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        params = self._params_for(len(prompts), given)
        requests: list[EngineRequest] = []
        choices: dict[str, _Choice] = {}
        outputs = [
            self._add(prompt, one, requests, choices) for prompt, one in zip(prompts, params, strict=True)
        ]
        for request in requests:
            self._engine.add(request)
        with self._all_or_none(list(choices)):
            self._pump(choices, len(outputs), use_tqdm)
        return outputs

    @contextmanager
    def _all_or_none(self, ids: list[str]) -> Iterator[None]:
        """What does not end well ends all of its requests: Ctrl-C leaves a usable engine."""
        try:
            yield
        except BaseException:
            self._engine.abort(ids)
            while self._engine.has_work():
                self._engine.pump(None)
            raise

    def _room(self, prompt: Prompt, default: int | None) -> int:
        from octavo.api.prompt import room

        limits = self.plan.scheduler
        return room(len(prompt.ids), None, default, limits.max_model_len, limits.model_max_len)

    def _params_for(
        self, count: int, given: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        from octavo.api.sampling import from_caller

        if given is None:
            given = self.default_sampling_params()
        listed = [given] * count if isinstance(given, SamplingParams) else _params_list(given)
        if len(listed) != count:
            raise InvalidRequest(
                f"{count} prompts came with {len(listed)} sampling parameters", fix="give one each, or one"
            )
        size, most = self.plan.vocab_size, self.plan.max_logprobs
        settled = [from_caller(p, self._codec, vocab_size=size, max_logprobs=most) for p in listed]
        return [self._constrained(params) for params in settled]

    def _constrained(self, params: SamplingParams) -> SamplingParams:
        """With the grammar that they ask for, compiled: a bad one is refused before anything runs."""
        from octavo.grammar.base import GrammarError
        from octavo.grammar.request import from_structured_outputs

        spec, given = params.structured, params.structured_outputs
        if given is not None:
            fields = {name: getattr(given, name) for name in given.__struct_fields__}
            spec = from_structured_outputs(fields, self.plan.structured)
            params = msgspec.structs.replace(params, structured=spec, structured_outputs=None)
        if spec is None:
            return params
        if params.ignore_eos:
            raise InvalidRequest(
                "ignore_eos is true with structured_outputs: an answer ends where its grammar does",
                param="ignore_eos",
                fix="leave one of them out",
            )
        try:
            self._built.grammars.matcher(spec)
        except GrammarError as error:
            raise InvalidRequest(error.message, param=error.pointer or "structured_outputs") from None
        return params

    def _add(
        self,
        prompt: Prompt,
        params: SamplingParams,
        requests: list[EngineRequest],
        choices: dict[str, _Choice],
    ) -> RequestOutput:
        """Makes one request for each choice, and the output that they fill."""
        from octavo.api.sampling import check_min_tokens, choice_seeds, eos_ids
        from octavo.api.text.pipeline import ChoicePipeline
        from octavo.api.text.token_pipeline import TokenPipeline

        self._prompts.truncate(prompt, params.truncate_prompt_tokens, side="left")
        max_tokens = self._room(prompt, params.max_tokens)
        check_min_tokens(params, max_tokens)
        self._num_requests += 1
        owner = RequestOutput(str(self._num_requests - 1), prompt.text, prompt.ids, [])
        seed = params.seed if params.seed is not None else self._random.getrandbits(62)
        for index, choice_seed in enumerate(choice_seeds(seed, params.n)):
            request_id = f"{owner.request_id}.{index}"
            requests.append(
                EngineRequest(
                    id=request_id,
                    prompt=prompt.ids,
                    params=params,
                    max_tokens=max_tokens,
                    seed=choice_seed,
                    eos_ids=eos_ids(self._codec, self._defaults, params),
                    skip_reading_prefix_cache=params.skips_prefix_cache,
                )
            )
            output = CompletionOutput(index)
            owner.outputs.append(output)
            pipeline: ChoicePipeline | TokenPipeline = TokenPipeline(index=index)
            if params.detokenize:
                pipeline = ChoicePipeline(self._codec, params, index=index, prompt=prompt.ids)
            choices[request_id] = _Choice(pipeline, output, owner, not params.logprob_token_ids)
        return owner

    # ---- beam search ----------------------------------------------------------------------------

    def _answers(self, requests: list[EngineRequest]) -> dict[str, TokenDelta]:
        """What the engine says to one-token requests. Raises EngineDead when one of them fails."""
        found = {}
        with self._all_or_none([r.id for r in requests]):
            for request in requests:
                self._engine.add(request)
            while self._engine.has_work():
                for delta in self._engine.pump(None):
                    if delta.error is not None or not delta.logprobs:
                        raise EngineDead(delta.error or "the engine gave no log-probabilities")
                    found[delta.id] = delta
        return found

    def _searched(
        self, prompt: Prompt, params: SamplingParams, search: BeamSearch, num_cached: int | None
    ) -> RequestOutput:
        from octavo.api.text.pipeline import ChoicePipeline

        self._num_requests += 1
        owner = RequestOutput(str(self._num_requests - 1), prompt.text, prompt.ids, [])
        owner.finished, owner.num_cached_tokens = True, num_cached
        for index, hypothesis in enumerate(search.best()):
            output = CompletionOutput(index)
            owner.outputs.append(output)
            pipeline = ChoicePipeline(self._codec, params, index=index, prompt=prompt.ids)
            self._take(_Choice(pipeline, output, owner), hypothesis.delta())
            output.cumulative_logprob = hypothesis.logprob
        return owner

    # ---- outputs --------------------------------------------------------------------------------

    def _pump(self, choices: dict[str, _Choice], num_prompts: int, use_tqdm: bool) -> None:
        from tqdm import tqdm

        open_choices = {id(c.owner): len(c.owner.outputs) for c in choices.values()}
        num_tokens = 0
        with tqdm(total=num_prompts, disable=not use_tqdm, unit="prompt", dynamic_ncols=True) as bar:
            while self._engine.has_work():
                for delta in self._engine.pump(None):
                    num_tokens += len(delta.token_ids)
                    owner = choices[delta.id].owner
                    if self._take(choices[delta.id], delta):
                        open_choices[id(owner)] -= 1
                        if not open_choices[id(owner)]:
                            owner.finished = True
                            bar.set_postfix_str(
                                f"{num_tokens / max(bar.format_dict['elapsed'], 1e-9):.0f} tokens/s"
                            )
                            bar.update()

    def _take(self, choice: _Choice, delta: TokenDelta) -> bool:
        """Adds a delta to its output. True when the engine has said its last word about the choice."""
        output, owner = choice.output, choice.owner
        was_finished = choice.pipeline.is_finished
        event = choice.pipeline.feed(delta)
        output.text += event.text
        output.token_ids += event.token_ids
        for entry in event.entries:
            row = {entry.token_id: Logprob(entry.logprob, entry.rank, entry.spelling)}
            for rank, other in enumerate(entry.top, 1):
                row.setdefault(
                    other.token_id, Logprob(other.logprob, rank if choice.are_best else None, other.text)
                )
            output.logprobs = [*(output.logprobs or []), row]
            output.cumulative_logprob = (output.cumulative_logprob or 0.0) + entry.logprob
        if event.prompt_logprobs is not None:
            owner.prompt_logprobs = [self._scored(p) for p in event.prompt_logprobs]
        if event.num_cached is not None and output.index == 0:
            owner.num_cached_tokens = event.num_cached
        if event.error is not None:
            raise InvalidRequest(event.error) if event.is_refused else EngineDead(event.error)
        if event.finish is not None:
            output.finish_reason, output.stop_reason = event.finish, event.stop_reason
            if delta.finish is None and not was_finished:  # a stop string: the engine does not know yet
                self._engine.abort([delta.id])
        if delta.finish is not None and output.index == 0:
            owner.record = delta.record
        return delta.finish is not None

    def _scored(self, scored: TokenLogprobs | None) -> dict[int, Logprob] | None:
        if scored is None:
            return None
        row = {scored.token_id: Logprob(scored.logprob, scored.rank, self._decoded(scored.token_id))}
        for rank, (token_id, logprob) in enumerate(zip(scored.top_ids, scored.top_logprobs, strict=True), 1):
            row.setdefault(token_id, Logprob(logprob, rank, self._decoded(token_id)))
        return row

    def _decoded(self, token_id: int) -> str:
        from octavo.api.text.pipeline import spell

        return spell(self._codec.token_bytes(token_id), is_special=self._codec.is_special(token_id))


class _Loop:
    """An event loop in a thread of its own, so that `LLM` works where one runs already (notebooks)."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-llm")

    def run(self, coroutine: Coroutine[Any, Any, Prompt]) -> Prompt:
        return self._thread.submit(self._runner.run, coroutine).result()

    def close(self) -> None:
        try:
            closing = self._thread.submit(self._runner.close)
        except RuntimeError:  # the interpreter ends, and has ended its threads
            self._runner.close()
        else:
            closing.result()
            self._thread.shutdown()


def _release(pool: TemplatePool, loop: _Loop, built: Built) -> None:
    pool.close()
    loop.close()
    built.close()


def _listed(prompts: PromptInput | Sequence[PromptInput]) -> list[PromptInput]:
    """One prompt or several: a list of ints is one."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    try:
        listed: list[Any] = list(prompts)
    except TypeError:
        raise _not_a_prompt(prompts) from None
    return [listed] if listed and isinstance(listed[0], int) else listed


def _not_a_prompt(given: object) -> InvalidRequest:
    return InvalidRequest(
        f"a prompt is of the type {type(given).__name__}; allowed are text and whole numbers (token ids)",
        param="prompt",
        fix='give a text, token ids, {"prompt": text}, {"prompt_token_ids": ids}, or a list of these',
    )


def _params_list(given: object) -> list[SamplingParams]:
    listed: list[Any] = list(given) if isinstance(given, Sequence) else [given]
    for params in listed:
        if not isinstance(params, SamplingParams):
            raise InvalidRequest(
                f"sampling_params is or holds a {type(params).__name__}",
                param="sampling_params",
                fix="give a SamplingParams, or a list with one for each prompt",
            )
    return listed
