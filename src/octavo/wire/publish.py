"""Numbered messages to whoever listens: a ZMQ PUB socket, and a ROUTER that gives past messages again.

    PUB      topic, sequence (8 bytes, big-endian, from 0), payload
    replay   request: '', sequence to begin with; answers: '', sequence, payload ...; last: '', -1, ''

Owns the sockets and the thread that they live in. Does not know what the payloads say: `encode` makes
them of what was put, in that thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import zmq

from octavo.config.kv_events import KVEventsPlan
from octavo.errors import ConfigError

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
END = (-1).to_bytes(8, "big", signed=True)
_LINGER_MS = 200
_JOIN_S = 5.0


class Publisher(Generic[Item]):
    """`put` never waits; it belongs to one thread. Raises ConfigError when an address cannot be bound."""

    def __init__(self, plan: KVEventsPlan, encode: Callable[[Item], bytes]) -> None:
        self._encode = encode
        self._topic = plan.topic.encode()
        self._most = plan.max_queue_size
        self._waiting: deque[Item] = deque()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=plan.buffer_steps)  # (sequence, payload)
        self._next = 0
        self._is_closing = False
        self._context = zmq.Context()
        self._replay: zmq.Socket[bytes] | None = None
        try:
            self._pub = self._bound(zmq.PUB, plan.endpoint, plan.hwm)
            if plan.replay_endpoint:
                # Beside a whole replay nothing waits for a client that does not read.
                self._replay = self._bound(zmq.ROUTER, plan.replay_endpoint, plan.buffer_steps + 1)
        except ConfigError:
            self._context.destroy(0)
            raise
        self.endpoint = _address(self._pub)  # what was bound, wildcards resolved
        self.replay_endpoint = "" if self._replay is None else _address(self._replay)
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._run, name="octavo-publish", daemon=True)
        self._thread.start()

    def _bound(self, kind: int, address: str, hwm: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.set_hwm(hwm)
        socket.setsockopt(zmq.LINGER, _LINGER_MS)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"KV events cannot be published at {address}: {error}",
                fix="name a free address with --kv-events-config",
            ) from error
        return socket

    @property
    def has_room(self) -> bool:
        """Do fewer than `max_queue_size` messages wait?"""
        return len(self._waiting) < self._most

    def put(self, item: Item) -> None:
        """Queue a message, whether there is room or not: memory is what `has_room` is asked for."""
        self._waiting.append(item)
        self._wake()

    def close(self) -> None:
        """Sends what waits, then ends the thread and gives the addresses back."""
        if not self._is_closing:
            self._is_closing = True
            self._wake()
            self._thread.join(_JOIN_S)
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe is readable already
            os.write(self._wake_write, b"\0")

    # ---- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake_read, zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, zmq.POLLIN)
        while True:
            poller.poll()
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 65536)
            is_last = self._is_closing
            while self._waiting:
                self._send(self._waiting.popleft())
            if is_last:
                break
            if self._replay is not None:
                self._answer(self._replay)
        self._context.destroy(_LINGER_MS)

    def _send(self, item: Item) -> None:
        try:
            payload = self._encode(item)
        except Exception:  # the thread, and with it the sequence, must not end
            logger.exception("a message could not be encoded; subscribers find its number missing")
            self._next += 1
            return
        number = self._next.to_bytes(8, "big")
        self._next += 1
        self._kept.append((number, payload))
        self._pub.send_multipart((self._topic, number, payload))

    def _answer(self, replay: zmq.Socket[bytes]) -> None:
        """Every request that waits. The numbers are of one width, so bytes compare as they do."""
        while True:
            try:
                frames = replay.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            if len(frames) != 3 or frames[1] or len(frames[2]) != 8:
                logger.warning("a replay request of %d frames is none: '', then 8 bytes", len(frames) - 1)
                continue
            client, _, first = frames
            for number, payload in self._kept:
                if number >= first:
                    replay.send_multipart((client, b"", number, payload))
            replay.send_multipart((client, b"", END, b""))


def _address(socket: zmq.Socket[bytes]) -> str:
    raw = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(raw, bytes)
    return raw.rstrip(b"\0").decode()
