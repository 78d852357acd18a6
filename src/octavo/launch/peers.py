"""What API processes of one server tell each other: the numbers that a scrape of any of them must add up.

Each listens on a socket of its own in the server's private folder and answers a connection with one message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import TYPE_CHECKING

import msgspec

from octavo.api.series import PeerReport

if TYPE_CHECKING:
    from octavo.api.state import ApiState

log = logging.getLogger("octavo.launch")

ANSWER_TIMEOUT_S = 1.0


class Peers:
    """`index` of `count` processes. One that is being restarted is left out: what it had counted is gone with it."""

    def __init__(self, folder: str, index: int, count: int) -> None:
        self._folder = folder
        self._index = index
        self._count = count
        self._server: asyncio.Server | None = None

    def _path(self, index: int) -> str:
        return os.path.join(self._folder, f"api{index}.sock")

    async def open(self, state: ApiState) -> None:
        """Answers others from now on; does nothing in a server of one process."""
        if self._count == 1:
            return
        path = self._path(self._index)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of a process that was killed

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                writer.write(msgspec.msgpack.encode(state.report()))
                await writer.drain()
            writer.close()

        self._server = await asyncio.start_unix_server(answer, path)

    async def ask(self) -> list[PeerReport]:
        """What every other process says of itself."""
        others = [i for i in range(self._count) if i != self._index]
        found = await asyncio.gather(*(self._ask_one(i) for i in others))
        return [report for report in found if report is not None]

    async def _ask_one(self, index: int) -> PeerReport | None:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(self._path(index))
                try:
                    return msgspec.msgpack.decode(await reader.read(), type=PeerReport)
                finally:
                    writer.close()
        except (OSError, TimeoutError, msgspec.DecodeError) as error:
            log.warning(
                "API process %d does not say what it counted: %s", index, error or type(error).__name__
            )
            return None

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
