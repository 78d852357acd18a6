"""Structured output on the HTTP side: fields to a spec, a trial of its grammar, a last look at the answer.

Owns the processes that try grammars (through octavo.grammar.checker) and what may not be combined.
The grammar itself acts in the engine.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import msgspec

from octavo.api.schema.common import GenerationBody
from octavo.api.text.codec import TextCodec
from octavo.api.text.pipeline import ChoiceEvent
from octavo.config.plan import EnginePlan
from octavo.errors import InvalidRequest
from octavo.grammar.base import GrammarError
from octavo.grammar.checker import GrammarChecker
from octavo.grammar.request import from_response_format, from_structured_outputs
from octavo.grammar.vocabulary import of_tokenizer
from octavo.wire.messages import EngineRequest
from octavo.wire.sampling import SamplingParams, StructuredSpec


def spec_of(body: GenerationBody, engine: EnginePlan) -> StructuredSpec | None:
    """What the body asks the answer to follow. Raises InvalidRequest naming the field."""
    formatted = outputs = None
    if body.response_format is not None:
        formatted = from_response_format(body.response_format, engine.structured)
    if body.structured_outputs is not None:
        outputs = from_structured_outputs(body.structured_outputs, engine.structured)
    if formatted is not None and outputs is not None:
        raise InvalidRequest(
            "response_format and structured_outputs both say what the answer must follow",
            param="structured_outputs",
            fix="leave one of them out",
        )
    return formatted or outputs


def param_of(body: GenerationBody) -> str:
    """The field that the spec came from, for errors."""
    return "structured_outputs" if body.structured_outputs else "response_format"


def check_combination(body: GenerationBody) -> None:
    """What contradicts a grammar."""
    if body.ignore_eos:
        raise InvalidRequest(
            f"ignore_eos is true with {param_of(body)}: an answer ends where its grammar does",
            param="ignore_eos",
            fix="leave one of them out",
        )
    if body.use_beam_search:
        raise InvalidRequest(
            f"use_beam_search is true with {param_of(body)}: beams follow no grammar",
            param="use_beam_search",
            fix="leave one of them out; n draws several answers",
        )


class Grammars:
    """Tries grammars and looks over answers, off the event loop. `close` ends its processes."""

    def __init__(self, codec: TextCodec, engine: EnginePlan, checker: GrammarChecker | None = None) -> None:
        self._engine = engine
        self._checker = checker or GrammarChecker(lambda: of_tokenizer(codec, engine.vocab_size))
        self._threads = ThreadPoolExecutor(
            self._checker.limits.workers, thread_name_prefix="octavo-grammar-check"
        )

    async def constrain(self, body: GenerationBody, params: SamplingParams) -> SamplingParams:
        """`params` with the grammar that they, or else the body, ask for; it is known to compile.

        Raises InvalidRequest naming the field, and for a schema the keyword and its pointer.
        """
        spec = params.structured or spec_of(body, self._engine)
        if spec is None:
            return params
        check_combination(body)
        await self.check(spec, param_of(body))
        return msgspec.structs.replace(params, structured=spec)

    async def check(self, spec: StructuredSpec, param: str) -> None:
        try:
            if self._checker.known(spec) is not None:
                self._checker.check(spec)
            else:
                await asyncio.get_running_loop().run_in_executor(self._threads, self._checker.check, spec)
        except GrammarError as error:
            raise InvalidRequest(f"{param}: {error.message}", param=error.pointer or param) from None

    def watch(self, request: EngineRequest) -> AnswerCheck | None:
        """Who looks over the answer to a request, if that follows a grammar."""
        spec = request.params.structured
        return None if spec is None else AnswerCheck(self, request, spec)

    async def verify(self, spec: StructuredSpec, ids: list[int], text: str | None) -> str | None:
        run = asyncio.get_running_loop().run_in_executor
        return await run(self._threads, self._checker.verify, spec, ids, text)

    def close(self) -> None:
        self._checker.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


class AnswerCheck:
    """Gathers an answer; one that says it is complete is parsed and validated before its last event goes out.

    An answer that was cut (length, a stop string, an abort) says so by its finish reason and is left as it is.
    """

    def __init__(self, grammars: Grammars, request: EngineRequest, spec: StructuredSpec) -> None:
        self._grammars = grammars
        self._spec = spec
        self._ends = {*request.eos_ids, *request.params.stop_token_ids}
        # With the text of the end token in it, or without any, only the tokens can be looked at.
        self._has_text = request.params.detokenize and not request.params.include_stop_str_in_output
        self._ids: list[int] = []
        self._text: list[str] = []

    async def see(self, event: ChoiceEvent) -> None:
        """A fault makes the event one of error: an answer is never called complete when it is not."""
        self._ids += event.token_ids
        self._text.append(event.text)
        if event.finish != "stop" or isinstance(event.stop_reason, str):
            return
        if self._ids and self._ids[-1] in self._ends:
            self._ids.pop()
        text = "".join(self._text) if self._has_text else None
        fault = await self._grammars.verify(self._spec, self._ids, text)
        if fault is not None:
            event.finish, event.error = None, f"the answer breaks its own grammar: {fault}"
