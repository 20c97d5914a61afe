"""An answer sent as server-sent events while the engine works. Knows nothing of what the events say."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...errors import BosquetError
from .disconnect import ClientGone, until_disconnect
from .errors import error_body
from .generation import Generation
from .record import record_of

DONE = b"data: [DONE]\n\n"


def event(body: object) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


class EventStream(Response):
    """Sends events as they come. An error after the headers is sent as an event, and ends the stream without `[DONE]`.
    The generation is closed in any case, also when the client leaves."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], generation: Generation) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await until_disconnect(receive, self._pump(send))
        except ClientGone:
            record.gone = True
        finally:
            try:
                await self._generation.close()
            finally:
                record.count(self._generation.usage)

    async def _pump(self, send: Send) -> None:
        last = DONE
        try:
            async with self._generation.deadline(), aclosing(self._events) as events:
                async for chunk in events:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    self._generation.sent()
        except BosquetError as error:
            last = event(error_body(error))
        await send({"type": "http.response.body", "body": last})
