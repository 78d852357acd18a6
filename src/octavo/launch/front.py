"""The HTTP side of one API process: its state, its server, its end. The same in the first process and in others."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo.api.client import EngineClient
from octavo.config.asked import Asked
from octavo.config.plan import EnginePlan, ServerPlan
from octavo.launch.peers import Peers
from octavo.weights.source import ModelSource

if TYPE_CHECKING:
    import uvicorn

    from octavo.api.state import ApiState

log = logging.getLogger("octavo.launch")

API_NICENESS = 10


class Front:
    """`index` counts the API processes; `folder` is where they find each other."""

    def __init__(
        self,
        client: EngineClient,
        asked: Asked,
        server: ServerPlan,
        engine: EnginePlan,
        *,
        folder: str,
        index: int = 0,
    ) -> None:
        self.client = client
        self.state: ApiState | None = None
        self._asked = asked
        self._server = server
        self._engine = engine
        self._index = index
        self._peers = Peers(folder, index, server.api_server_count)
        self._http: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._building: asyncio.Task[None] | None = None

    def build(self, source: ModelSource) -> ApiState:
        """Imports the HTTP side and reads tokenizer and template: in a thread, beside the engine's own start."""
        # Looking for plugins reads the metadata of every installed package.
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
        import octavo.api.app
        import octavo.launch.http  # noqa: F401  (imported here, used when serving)
        from octavo.api.state import ApiState
        from octavo.launch.text import (
            chat_template,
            check_defaults,
            check_template,
            generation_config,
            load_codec,
        )

        asked = self._asked
        check_defaults(source, asked, self._engine.vocab_size)
        self.state = ApiState.build(
            client=self.client,
            tokenizer=load_codec(source, asked),
            server=self._server,
            engine=self._engine,
            generation_config=generation_config(source, asked),
            chat_template=chat_template(source, asked),
            index=self._index,
            peers=self._peers.ask if self._server.api_server_count > 1 else None,
        )
        if self.state.prompts.template.source is not None:
            self.state.pool.warm()  # before there is an engine: else the first chat waits for it
        if asked.server.chat_template is not None and self._index == 0:
            check_template(self.state.prompts.template)
        return self.state

    async def open(self, listener: socket.socket) -> asyncio.Task[None]:
        """Serves on the socket. Returns the task that serves, once it does.

        On shared cores an API process lowers its own priority: the engine's threads spin through a step, and
        a burst of HTTP work at equal priority would stretch every step (measured, docs/log.md).
        """
        from octavo.api.app import create_app
        from octavo.launch.http import http_server

        assert self.state is not None, "build comes first"
        self._http = http = http_server(create_app(self.state), self._server)
        if hasattr(os, "nice"):
            os.nice(API_NICENESS)
        gc.collect()
        gc.freeze()
        await self._peers.open(self.state)
        self._building = asyncio.create_task(asyncio.to_thread(_build_schemas))
        self._serving = serving = asyncio.create_task(http.serve(sockets=[listener]))
        while not http.started and not serving.done():
            await asyncio.sleep(0.002)
        return serving

    async def drain(self, timeout_s: float, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Not ready, no new requests; running ones may end within the time for it."""
        assert self.state is not None, "nothing was served"
        self.state.drain()
        client, deadline = self.client, time.monotonic() + timeout_s
        searches = self.state.admission
        while time.monotonic() < deadline and not client.is_closed:
            if is_hurried() or not (client.num_unfinished or searches.num_searches):
                break
            await asyncio.sleep(0.02)
        if cut := client.num_unfinished:
            log.warning("%s cut off", "1 running request is" if cut == 1 else f"{cut} running requests are")
            client.close("the server was shut down before this request had ended")

    async def close(self) -> None:
        """No connection any more, when those that are open have been answered."""
        if self._http is not None and self._serving is not None:
            self._http.should_exit = True
            await self._serving
        with contextlib.suppress(OSError):
            await self._peers.close()


def _build_schemas() -> None:
    """What most clients send first: the checks of a body are built at its first use, which takes a while."""
    from octavo.api.schema.chat import ChatBody
    from octavo.api.schema.completions import CompletionBody

    for body in (ChatBody, CompletionBody):
        body.model_rebuild()
