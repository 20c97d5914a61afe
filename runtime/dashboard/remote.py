"""The page for a server elsewhere: gives the page's files here, and passes on what the page asks.

It listens on loopback and answers to no other host's name, so that no page of another site can use the key it holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import httpx
from fastapi import FastAPI, Request
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response

from .files import dashboard_router

ASKED = (
    *("/v1/requests", "/v1/requests/{id}", "/v1/requests/{id}/cache", "/v1/ledger"),
    *("/v1/cache/tree", "/v1/cache/reuse", "/health", "/metrics"),
)
"""All that the page reads; it also posts two prompts to `/v1/explain`."""

PATIENCE_S = 60.0


def remote_app(url: str, key: str = "", transport: httpx.AsyncBaseTransport | None = None) -> FastAPI:
    """The page, in front of the server at `url`. `key` is sent where the browser sends none."""
    client = httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, transport=transport)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with client:
            yield

    async def passed_on(request: Request) -> Response:
        raw = request.scope["raw_path"].decode("ascii")
        query = request.scope["query_string"].decode("ascii")
        headers = {"Accept": "*/*"}
        for name in ("authorization", "content-type"):
            if name in request.headers:
                headers[name] = request.headers[name]
        if key:
            headers.setdefault("authorization", f"Bearer {key}")
        body = await request.body()
        try:
            answer = await client.request(request.method, f"{raw}?{query}", headers=headers, content=body)
        except httpx.HTTPError as error:
            said = {"error": {"message": f"{url} does not answer: {error}", "type": "unavailable"}}
            return Response(httpx.Response(502, json=said).content, 502, media_type="application/json")
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    app.include_router(dashboard_router())
    for path in ASKED:
        app.add_api_route(path, passed_on, methods=["GET"])
    app.add_api_route("/v1/explain", passed_on, methods=["POST"])
    return app
