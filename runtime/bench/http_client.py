"""HTTP/1.1 to one server, with as little work as can be while answers come in: the client shares the machine with the
server that it measures.

Body bytes are kept with the time of their arrival and read afterwards. Knows nothing of what they say.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

from ...errors import ConfigError, Unavailable

PATIENCE_S = 900.0
"""Longest wait for one answer."""


@dataclass(slots=True)
class Reply:
    """An answer as it came. Times are those of `time.perf_counter`."""

    sent: float
    status: int = 0
    parts: list[tuple[float, bytes]] = field(default_factory=list)
    done: float = 0.0

    @property
    def body(self) -> bytes:
        return b"".join(part for _, part in self.parts)


class Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reply: Reply | None = None
        self._waiting: asyncio.Future[Reply] | None = None
        self._now = 0.0

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def send(self, request: bytes) -> Reply:
        """Raises `ConnectionError` when the connection ends before a byte of the answer, `Unavailable` when it ends
        later or the answer is not HTTP."""
        assert self._transport is not None
        assert self._waiting is None
        self._waiting = asyncio.get_running_loop().create_future()
        self._reply = Reply(time.perf_counter())
        self._transport.write(request)
        try:
            return await self._waiting
        finally:
            if self._reply is not None:  # given up: what is still to come belongs to no one
                self.close()
            self._waiting = self._reply = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # ---- called by the event loop ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(Unavailable(f"the answer is not HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        begun = self._reply is not None and self._now > self._reply.sent
        self._fail(
            Unavailable("the connection was closed in the middle of the answer") if begun else ConnectionResetError()
        )

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    # ---- called by the parser --------------------------------------------------------------------------------------

    def on_body(self, body: bytes) -> None:
        if self._reply is not None:
            self._reply.parts.append((self._now, body))

    def on_message_complete(self) -> None:
        reply, self._reply = self._reply, None
        if reply is None or self._waiting is None or self._waiting.done():
            return
        reply.status = self._parser.get_status_code()
        reply.done = self._now
        if not self._parser.should_keep_alive():
            self.close()
        self._waiting.set_result(reply)


class HttpClient:
    """Requests to the server at `url`, which may end in /v1. Connections are kept and used again, the last first."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{url}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url} is not the address of a server, such as http://127.0.0.1:8000")
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._idle: list[Connection] = []
        self.url = f"{parts.scheme}://{parts.netloc}{self._path}"
        self._common = f"Host: {parts.netloc}\r\nAccept: */*\r\nUser-Agent: bosquet-bench\r\n"

    async def get(self, path: str) -> Reply:
        """Raises `Unavailable` when no answer can be had."""
        return await self._send(f"GET {self._path}{path} HTTP/1.1\r\n{self._common}\r\n".encode())

    async def post(self, path: str, body: bytes) -> Reply:
        """Sends JSON. Raises `Unavailable` when no answer can be had."""
        kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return await self._send(f"POST {self._path}{path} HTTP/1.1\r\n{self._common}{kind}\r\n".encode() + body)

    def close(self) -> None:
        """Close the connections that are idle."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _send(self, request: bytes) -> Reply:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while kept := self._kept():
                    try:
                        return await self._exchange(kept, request)
                    except ConnectionError:  # a server may close a connection that is idle while we write to it
                        continue
                return await self._exchange(await self._connect(), request)
        except TimeoutError:
            raise Unavailable(f"{self.url} did not answer within {PATIENCE_S:.0f} s") from None
        except OSError as error:
            raise Unavailable(f"{self.url}: {error.strerror or str(error) or 'the connection was closed'}") from None

    def _kept(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self._host, self._port, ssl=self._tls)
        return connection

    async def _exchange(self, connection: Connection, request: bytes) -> Reply:
        reply = await connection.send(request)
        if connection.usable:
            self._idle.append(connection)
        return reply
