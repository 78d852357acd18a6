"""The page at /: static, and nothing of the server in it; what it shows it asks for with its user's key."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from starlette.responses import HTMLResponse, Response

_FILE = Path(__file__).parent / "page.html"
_HEADERS = {  # the page takes an API key: nothing foreign may run in it, get it, or frame it
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}


def page_response(status: int = 200) -> Response:
    """With 401 the page is what a browser shows of the refusal: it has a field for the key."""
    return HTMLResponse(_page(), status, headers=_HEADERS)


@lru_cache
def _page() -> str:
    return _FILE.read_text(encoding="utf-8")
