"""Everything that the routes of one API process share. Made by launch (or a test) with `ApiState.build`."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from msgspec.structs import replace

from octavo.api.admission import Admission
from octavo.api.client import EngineClient
from octavo.api.health import HealthWatch
from octavo.api.limits import Limits
from octavo.api.metrics import Metrics
from octavo.api.prompt import ChatTemplate, ContentFormat, PromptMaker
from octavo.api.records import RequestLogs
from octavo.api.response_store import ResponseStore, store_of
from octavo.api.sampling import SamplingDefaults
from octavo.api.series import PeerReport
from octavo.api.structured import Grammars
from octavo.api.template_pool import TemplatePool
from octavo.api.text.codec import TextCodec
from octavo.api.text.parsers.choose import Parsers, choose
from octavo.config.plan import EnginePlan, PackCachePlan, ServerPlan
from octavo.errors import InvalidRequest


@dataclass(slots=True)
class ApiState:
    client: EngineClient
    codec: TextCodec
    prompts: PromptMaker
    parsers: Parsers
    pool: TemplatePool
    server: ServerPlan
    engine: EnginePlan
    defaults: SamplingDefaults
    limits: Limits
    metrics: Metrics
    logs: RequestLogs
    health: HealthWatch
    admission: Admission
    responses: ResponseStore
    grammars: Grammars
    created: int  # unix time of the start
    fingerprint: str  # changes when what runs changes
    peers: Callable[[], Awaitable[list[PeerReport]]] | None  # None: this is the only API process
    seeds: random.Random  # for requests that bring no seed: a function of --seed and of their order

    @classmethod
    def build(
        cls,
        *,
        client: EngineClient,
        tokenizer: TextCodec,
        server: ServerPlan,
        engine: EnginePlan,
        generation_config: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        pool: TemplatePool | None = None,
        index: int = 0,
        peers: Callable[[], Awaitable[list[PeerReport]]] | None = None,
    ) -> ApiState:
        """`generation_config` is what applies (empty when switched off); `special_tokens` are names for templates.

        `index` and `peers`: which API process of the server this is, and how it asks the others.
        """
        limits = limits or Limits()
        pool = pool or TemplatePool(limits)
        parsers = choose(
            chat_template,
            tokenizer,
            tool=server.tool_call_parser or None,
            reasoning=server.reasoning_parser or None,
        )
        template = ChatTemplate(
            chat_template,
            tokenizer,
            pool,
            content_format=cast(ContentFormat, server.chat_template_content_format),
            trust_request=server.trust_request_chat_template,
            default_kwargs=server.default_chat_template_kwargs,
            special_tokens=special_tokens,
            tool_row=parsers.tool,
        )
        max_len = engine.scheduler.max_model_len
        metrics = Metrics(
            client, model_name=server.served_names[0], max_model_len=max_len, counts_steps=index == 0
        )
        logs = RequestLogs(metrics.on_close)
        client.on_end = logs.on_end
        health = HealthWatch(
            client,
            stall_limit_s=limits.stall_limit_s,
            max_step_tokens=engine.scheduler.max_num_batched_tokens,
        )
        return cls(
            client=client,
            codec=tokenizer,
            prompts=PromptMaker(
                tokenizer,
                template,
                max_model_len=max_len,
                model_max_len=engine.scheduler.model_max_len,
                vocab_size=engine.vocab_size,
            ),
            parsers=parsers,
            pool=pool,
            server=server,
            engine=engine,
            defaults=SamplingDefaults.read(generation_config or {}),
            limits=limits,
            metrics=metrics,
            logs=logs,
            health=health,
            admission=Admission(client, health, metrics, server),
            responses=store_of(server),
            grammars=Grammars(tokenizer, engine),
            created=int(time.time()),
            fingerprint=_fingerprint(engine),
            # Each process draws seeds of its own: two requests must not share one by chance of routing.
            seeds=random.Random(engine.seed if index == 0 else f"{engine.seed}/{index}"),
            peers=peers,
        )

    @property
    def strict(self) -> bool:
        return self.engine.strict

    @property
    def max_model_len(self) -> int:
        return self.engine.scheduler.max_model_len

    @property
    def table(self) -> list[list[str]]:
        """The rows of the table of what runs that the API side knows."""
        return [self.defaults.row, *self.parsers.table]

    def served_name(self, asked: str | None) -> str:
        """The name to answer with. Raises InvalidRequest (404) for a model that is not served."""
        if asked is None or asked == "":
            return self.server.served_names[0]
        if asked in self.server.served_names:
            return asked
        raise InvalidRequest(
            f"the model {asked[:128]!r} is not served; served are {', '.join(self.server.served_names)}",
            param="model",
            status=404,
            kind="NotFoundError",
        )

    async def others(self) -> list[PeerReport]:
        """What the other API processes of this server count."""
        return [] if self.peers is None else await self.peers()

    def report(self) -> PeerReport:
        """What this one counts."""
        return PeerReport(self.metrics.snapshot(), self.logs.num_open)

    def drain(self) -> None:
        """From now on: not ready, no new requests; running ones go on."""
        self.health.is_draining = True


def _fingerprint(engine: EnginePlan) -> str:
    executor = replace(
        engine.executor, pack_cache=PackCachePlan()
    )  # where weights come from changes no answer
    text = repr((engine.model, executor, engine.cache.dtype, engine.seed))
    return "fp_" + hashlib.sha256(text.encode()).hexdigest()[:10]
