"""Work that ends when the client leaves.

Knows nothing of the engine: whoever gives the work sees to it that being cancelled frees what it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from .errors import CLIENT_GONE
from .record import record_of

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


async def disconnected(receive: Receive) -> None:
    """Returns when the client has left. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled, and waited for, if the client leaves first: then raises ClientGone."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(disconnected(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        await _end(task, watch)


async def answer_unless_gone(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The answer that `work` makes; a mere note for the log when nobody waits for it any more."""
    try:
        return await until_disconnect(request.receive, work)
    except ClientGone:
        record_of(request.scope).gone = True
        return Response(status_code=CLIENT_GONE)


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel and wait, so that clean-up inside has run."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
