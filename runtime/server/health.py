"""`/health` and `/metrics`: how the server and its engine are. Both answer at once, whatever the engine does."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from ...errors import BosquetError
from ...types import EngineState, Stats
from .auth import operator
from .errors import json_response
from .keys import Caller
from .services import Services

PATIENCE_S = 2.0
"""How long the engine may take to say how it is."""


class Health(Struct):
    """`status` is "ready" when requests are served; "unresponsive" when an engine that should be ready says nothing.
    `incarnation` counts the engine's starts; null when it cannot be asked."""

    status: EngineState | Literal["unresponsive"]
    model: str | None
    incarnation: int | None
    requests_running: int | None
    requests_waiting: int | None


def health_router(services: Services) -> APIRouter:
    """The routes of this file."""
    router = APIRouter(tags=["server"])

    @router.get("/health", response_model=None)
    async def health() -> Response:
        """200 when requests are served, else 503; the body says why."""
        stats = await _stats(services)
        body = Health(
            status=_status(services, stats),
            model=services.model_name(services.text.get()) if services.text.ready else None,
            incarnation=None if stats is None else stats.incarnation,
            requests_running=None if stats is None else stats.running,
            requests_waiting=None if stats is None else stats.waiting,
        )
        if body.status == "ready":
            return json_response(body)
        return json_response(body, 503, {"Retry-After": "2"})

    @router.get("/metrics", response_model=None)
    async def metrics(caller: Annotated[Caller, Depends(operator)]) -> Response:
        """Counters and histograms in the Prometheus format. Needs the role 'operator' where keys are set."""
        stats = await _stats(services)
        return Response(services.metrics.render(services.engine.state, stats), media_type=CONTENT_TYPE_LATEST)

    return router


async def _stats(services: Services) -> Stats | None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await services.engine.stats()
    except (BosquetError, TimeoutError):
        return None


def _status(services: Services, stats: Stats | None) -> EngineState | Literal["unresponsive"]:
    state = services.engine.state
    if state != "ready":
        return state
    if services.lifecycle.draining:
        return "draining"
    if stats is None:
        return "unresponsive"
    return "ready" if services.text.ready else "starting"
