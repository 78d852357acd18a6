"""uvicorn's HTTP protocol with a bound on what comes before a body: the parser itself has none.

It joins the parts of a header one by one, so an endless header costs quadratic time and all memory, on
the event loop and before any key is asked for.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10  # request line, headers, trailers; a read may go beyond it by its own size


class BoundedHttp(HttpToolsProtocol):
    """Closes a connection that sends more than MAX_HEAD_BYTES without completing its headers or adding to a body."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request line and headers are too long.")

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()
