"""What surrounds every request: its id, the count of those in flight, refusal while draining, metrics, the access log,
and the last resort for our own bugs. Knows nothing of the routes."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from types import SimpleNamespace
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import BosquetError, Unavailable
from ..heap import give_back
from .errors import CLIENT_GONE, error_response
from .metrics import Metrics
from .record import Record, attach
from .services import Lifecycle
from .spans import Spans
from .trace_context import TraceContext, context_in

access = logging.getLogger("bosquet.access")

POLLED = {
    *("/health", "/metrics", "/v1/requests", "/v1/ledger", "/v1/cache/tree", "/v1/cache/reuse"),
    *("/dashboard", "/dashboard/{name:path}"),
}
"""Routes that machines and open pages ask every few seconds; their lines would bury the others."""
log = logging.getLogger("bosquet.server")

LARGE_BODY = 500_000
"""Bytes of a request from which on memory is given back after it. Smaller ones leave little behind."""

REQUEST_ID = "x-request-id"
ALWAYS_OPEN = ("/health", "/metrics", "/version")
ENDS = "/v1/runs/"
"""Where clients say that a run is over, which frees something and asks for nothing."""
DRAINING = SimpleNamespace(path="draining")
"""Stands for the route of a request that was refused before its route was looked up."""


class Envelope:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, metrics: Metrics, lifecycle: Lifecycle, spans: Spans | None = None) -> None:
        self._app = app
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = Record(_request_id(scope), time.perf_counter(), _context(scope))
        attach(scope, record)
        reply = _Reply(send, record)
        self._lifecycle.enter()
        try:
            await self._guarded(scope, receive, reply)
        finally:
            self._lifecycle.leave()
            self._note(scope, record, reply.status, time.perf_counter() - record.arrival)
            if record.body_bytes >= LARGE_BODY:
                asyncio.get_running_loop().run_in_executor(None, give_back)

    async def _guarded(self, scope: Scope, receive: Receive, reply: _Reply) -> None:
        if self._lifecycle.draining and not _always_open(scope):
            scope["route"] = DRAINING
            refusal = error_response(Unavailable("the server is shutting down"))
            await refusal(scope, receive, reply)
            return
        try:
            await self._app(scope, receive, reply)
        except Exception:
            log.exception("request %s failed through a fault of ours", reply.request_id)
            if reply.status:  # too late for a status; the closed connection says that the answer is not whole
                raise
            await error_response(BosquetError("internal error"))(scope, receive, reply)

    def _note(self, scope: Scope, record: Record, status: int, seconds: float) -> None:
        status = CLIENT_GONE if record.gone or not status else status
        if record.gone:
            self._metrics.disconnects.inc()
        route = getattr(scope.get("route"), "path", "unmatched")
        self._metrics.http.labels(route, _method(scope), str(status)).inc()
        if self._spans is not None and record.prompt_tokens:  # it has asked the model
            record.route = route
            self._spans.http(record, scope["method"], status, time.time() - seconds, seconds)
        level = logging.DEBUG if route in POLLED else logging.INFO
        if access.isEnabledFor(level):
            facts: dict[str, Any] = {
                "id": record.id,
                "tenant": record.tenant,
                "method": scope["method"],
                "route": route,
                "status": status,
                "prompt_tokens": record.prompt_tokens,
                "cached_tokens": record.cached_tokens,
                "completion_tokens": record.completion_tokens,
                "ms": round(seconds * 1000, 1),
            }
            text = " ".join(f"{name}={value}" for name, value in facts.items())
            access.log(level, text, extra={"facts": facts})


class _Reply:
    """The way back: remembers the status, adds the request's id and its place in the client's trace."""

    def __init__(self, send: Send, record: Record) -> None:
        self._send = send
        self.request_id = record.id
        self._context = record.context
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers[REQUEST_ID] = self.request_id
            headers["traceparent"] = self._context.traceparent
            if self._context.state:
                headers["tracestate"] = self._context.state
        await self._send(message)


def _always_open(scope: Scope) -> bool:
    """Whether it is answered while the server drains."""
    path: str = scope["path"]
    return path in ALWAYS_OPEN or (scope["method"] == "DELETE" and path.startswith(ENDS))


def _request_id(scope: Scope) -> str:
    """The client's own if it is short and plain, else a new one."""
    given = Headers(scope=scope).get(REQUEST_ID, "")
    if 0 < len(given) <= 128 and given.isascii() and given.isprintable() and " " not in given:
        return given
    return f"req-{uuid.uuid4().hex}"


def _context(scope: Scope) -> TraceContext:
    headers = Headers(scope=scope)
    return context_in(headers.getlist("traceparent"), headers.getlist("tracestate"))


def _method(scope: Scope) -> str:
    """Metrics must not grow with whatever methods a client makes up."""
    method: str = scope["method"]
    return method if method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH") else "other"
