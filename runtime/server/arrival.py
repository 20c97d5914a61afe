"""Connections on which no request arrives, or not in time, are closed: so that nobody holds them open for nothing, and
with a refusal in the shape of every other.

Knows when a request's first and last bytes come, nothing of what is in them. Who reads a body watches its deadline
itself, so that a late one is refused, logged and counted like any other request.
"""

from __future__ import annotations

import asyncio
import sys
from http import HTTPStatus
from typing import ClassVar, Literal

import httptools
import msgspec
from starlette.requests import Request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ...errors import ArrivedLate, BosquetError, HeadTooLarge, RequestRejected
from .errors import answer_for, error_body

MAX_HEAD_BYTES = 1 << 16
"""What a request's line and headers may take, besides the first piece of them that comes."""

LINGERS_S, LINGERS_BYTES = 1.0, 1 << 20
"""For how long a connection that was refused is still read from, and how much: closing it on bytes that come would
take the refusal back (the peer's system drops what it has not read yet)."""

_DEADLINE = "arrival_deadline"


class PunctualProtocol(HttpToolsProtocol):
    """uvicorn's protocol with one timer, which runs while a request is expected or arrives, and not while one is
    answered: from the opening of the connection, anew from a request's first byte, and anew from the end of the answer
    before it, if it came early. Between requests uvicorn's keep-alive limit holds."""

    limit_s: ClassVar[float]

    _timer: asyncio.TimerHandle | None = None
    _arriving: Literal["head", "body"] | None = None
    _head_bytes = 0
    _unanswered = 0  # requests whose head has arrived and whose answer is not complete
    _refusal = b""  # what is still to be sent, when the answers to the requests before are
    _over = False  # all has been said; what still comes is dropped
    _dropped = 0  # bytes

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._over:
            self._dropped += len(data)
            if self._dropped > LINGERS_BYTES:
                self.transport.close()
            return
        if self._arriving == "head" and self._head_bytes + len(data) > MAX_HEAD_BYTES:
            self._refuse(HeadTooLarge(f"the request's head is over the limit of {MAX_HEAD_BYTES} bytes"))
            return
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if self._arriving == "head" else 0
        if self._timer is None and not self._unanswered:  # blank lines, which have ended the keep-alive limit
            self._start_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._arriving = "head"
        self.scope["state"][_DEADLINE] = self.loop.time() + self.limit_s
        self._start_timer()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._arriving = "body"
        self._unanswered += 1

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._arriving = None
        self._stop_timer()

    def on_response_complete(self) -> None:
        self._unanswered -= 1
        if self.pipeline:  # it was not read on while it waited for its turn
            self.pipeline[-1][0].scope["state"][_DEADLINE] = self.loop.time() + self.limit_s
        super().on_response_complete()
        self._give_refusal()
        if self._arriving is not None and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._start_timer()

    def _start_timer(self) -> None:
        if self._over:
            return
        self._stop_timer()
        self._timer = self.loop.call_later(self.limit_s, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self._unanswered or self.transport.is_closing():
            return  # the answer under way is not cut; if this is the one to the late request, it will be a 408
        if self._arriving == "head":
            self._refuse(ArrivedLate(f"the request's head did not arrive within {self.limit_s:g} s"))
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn does with bytes that are no HTTP; called while its parser's error is handled."""
        fault = sys.exc_info()[1]
        told = isinstance(fault, httptools.HttpParserError) and not isinstance(fault, httptools.HttpParserCallbackError)
        self._refuse(RequestRejected(f"this is not valid HTTP: {fault if told else 'the target cannot be read'}"))

    def _refuse(self, error: BosquetError) -> None:
        self._refusal = _refusal(error)
        self.flow.pause_reading()
        self._give_refusal()

    def _give_refusal(self) -> None:
        """Once it is its turn, and unless the request's own answer has begun already. It ends the connection."""
        own = self._arriving == "body"
        if not self._refusal or self._unanswered > own or self.transport.is_closing() or self._over:
            return
        if not (own and self.cycle.response_started):
            self.transport.write(self._refusal)
        self._over = True
        self.transport.write_eof()
        self.flow.resume_reading()
        self._stop_timer()
        self._timer = self.loop.call_later(LINGERS_S, self.transport.close)


def arriving_within(limit_s: float) -> type[PunctualProtocol]:
    """The protocol with a limit, in seconds."""

    class Limited(PunctualProtocol):
        pass

    Limited.limit_s = limit_s
    return Limited


def deadline_of(request: Request) -> float | None:
    """When the request must have arrived whole, on the loop's clock; None: it did not come over a socket."""
    deadline: float | None = getattr(request.state, _DEADLINE, None)
    return deadline


def _refusal(error: BosquetError) -> bytes:
    content = msgspec.json.encode(error_body(error))
    status = HTTPStatus(answer_for(error).status)
    lines = (
        f"HTTP/1.1 {status.value} {status.phrase}",
        "content-type: application/json",
        f"content-length: {len(content)}",
        "connection: close",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content
