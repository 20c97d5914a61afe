"""The server as tests use it: called in process, or on a loopback port with a fake engine behind it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from fakes_engine import FakeEngine, text_services
from moved_clock import Clock, clocked_loop

from bosquet.runtime.server.app import create_app
from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.server.serve import Server, listen, make_server, url_of
from bosquet.runtime.server.services import TextServices

Call = Callable[[httpx.AsyncClient], Coroutine[Any, Any, Any]]


def in_process(
    engine: FakeEngine, call: Call, config: ServerConfig | None = None, text: TextServices | None = None
) -> Any:
    """What `call` returns, given a client of the application; an exception of ours in a route fails the test."""

    async def work() -> Any:
        app = create_app(engine, text or text_services(), config or ServerConfig())
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await call(client)

    return asyncio.run(work())


class Session:
    """One application and one event loop for many calls: for tests that make hundreds. The engine's script and pieces
    may be changed between calls."""

    def __init__(self, engine: FakeEngine, text: TextServices | None = None) -> None:
        self.engine = engine
        self._runner = asyncio.Runner()
        app = create_app(engine, text or text_services(), ServerConfig())
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")

    def post(self, path: str, body: Any) -> httpx.Response:
        """As the function `post`."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._runner.run(self._client.post(path, content=content))

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


def post(engine: FakeEngine, path: str, body: Any, **options: Any) -> httpx.Response:
    """One POST; `body` is JSON, or bytes as they are."""
    headers = options.pop("headers", {})
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def call(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post(path, content=content, headers={"content-type": "application/json", **headers})

    return in_process(engine, call, **options)


def get(engine: FakeEngine, path: str, **options: Any) -> httpx.Response:
    headers = options.pop("headers", {})

    async def call(client: httpx.AsyncClient) -> httpx.Response:
        return await client.get(path, headers=headers)

    return in_process(engine, call, **options)


def events(response: httpx.Response) -> list[Any]:
    """The JSON of each event; the text must be exactly a run of `data:` events, with `[DONE]` last if at all."""
    assert response.headers["content-type"].startswith("text/event-stream")
    text = response.text
    assert text.endswith("\n\n")
    parts = text[:-2].split("\n\n")
    assert all(part.startswith("data: ") and "\n" not in part for part in parts)
    payloads = [part.removeprefix("data: ") for part in parts]
    assert "[DONE]" not in payloads[:-1]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


class Live:
    """A running server."""

    def __init__(self, server: Server, sock: socket.socket, clock: Clock) -> None:
        self.server = server
        self.clock = clock
        self.url = url_of(sock)
        self.address: tuple[str, int] = sock.getsockname()[:2]

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=30)


@contextmanager
def live(engine: FakeEngine, config: ServerConfig | None = None, text: TextServices | None = None) -> Iterator[Live]:
    """A server on a free loopback port, in a thread. Its clock can be put forward."""
    config = config or ServerConfig(port=0)
    server = make_server(create_app(engine, text or text_services(), config), config)
    with listen(config) as sock:
        loop, clock = clocked_loop()
        thread = threading.Thread(target=_serve, args=(loop, server.serve([sock])))
        thread.start()
        try:
            wait_for(lambda: server.started)
            yield Live(server, sock, clock)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


def _serve(loop: asyncio.AbstractEventLoop, serving: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(serving)


def wait_for(fact: Callable[[], object], seconds: float = 30.0) -> None:
    """Returns once `fact` holds; fails the test when it does not in time."""
    end = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.005)


def raw_post(path: str, body: Any, version: str = "1.1") -> bytes:
    """The bytes of a POST, for tests that hold the socket."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: test\r\nContent-Type: application/json\r\n"
    return head.encode() + f"Content-Length: {len(content)}\r\n\r\n".encode() + content
