"""Gives the page's files. They hold no data: what is shown the browser asks of the public API, with the caller's key.

The policy in the headers lets the page run its own files alone and talk to its own server alone, so that no text of a
prompt can become code, whatever the page does with it.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

_PAGE = Path(__file__).with_name("page")
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def dashboard_router() -> APIRouter:
    """The route, under `/dashboard`. It asks for no key."""
    router = APIRouter(include_in_schema=False)

    @router.get("/dashboard")
    async def without_slash() -> Response:
        return RedirectResponse("dashboard/", headers=_HEADERS)

    @router.get("/dashboard/{name:path}")
    async def file(name: str, request: Request) -> Response:
        return page_file(name or "index.html", request.headers.get("if-none-match", ""))

    return router


def page_file(name: str, known: str = "") -> Response:
    """404 for what is no file of the page, 304 for what the browser has; `known` is its `If-None-Match`."""
    found = _files().get(name)
    if found is None:
        return Response("there is no such page", 404, _HEADERS, "text/plain")
    body, tag, kind = found
    headers = {**_HEADERS, "ETag": tag}
    if tag in known:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=kind)


@cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """Name → bytes, tag and kind; read when the page is first opened."""
    found = {}
    for path in sorted(_PAGE.rglob("*")):
        if path.suffix in _KINDS:
            body = path.read_bytes()
            tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            found[path.relative_to(_PAGE).as_posix()] = body, tag, _KINDS[path.suffix]
    return found
