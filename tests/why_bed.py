"""A whole server without a model: the real scheduler and cache behind the real routes, with `HashRunner` as the model.

Tokens are bytes (`ByteTokenizer`), so that a test can tell by counting characters what must be reused.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx
from fakes import HashRunner
from fakes_engine import VOCABULARY, info, text_services

from bosquet.radix_cache import Ghosts, PagePool, RadixCache
from bosquet.runtime.cache_view import Reuse, Tree
from bosquet.runtime.engine import Bounds, Engine
from bosquet.runtime.limits import Limits, Vocabulary
from bosquet.runtime.server.app import create_app
from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.trace import Trace
from bosquet.types import EngineState, ModelInfo, Output, Relaxed, Request, Stats


class LocalStream:
    """The outputs of one request; whoever reads drives the engine."""

    relaxed: tuple[Relaxed, ...] = ()

    def __init__(self, engine: LocalEngine, request: Request) -> None:
        self._engine = engine
        self._request = request

    async def cancel(self) -> None:
        self._engine.engine.cancel(self._request.id)
        self._engine.tell()

    async def __aiter__(self) -> AsyncIterator[list[Output]]:
        left = self._request.sampling.n
        while left:
            outputs = self._engine.outputs(self._request.id)
            left -= sum(output.finish is not None for output in outputs)
            if outputs:
                yield outputs
            await asyncio.sleep(0)


class LocalEngine:
    """EngineApi over an engine in this process."""

    state: EngineState = "ready"

    def __init__(self, pages: int = 400, *, reuse: bool = True, rows: int = 8, context: int = 4096) -> None:
        self.info: ModelInfo = info(context_length=context, pages=pages)
        self.on_trace: Callable[[Trace], None] | None = None
        self.cache = RadixCache(PagePool(pages), ghosts=Ghosts())
        words = Vocabulary([b""] * VOCABULARY, frozenset(), ())
        bounds = Bounds(VOCABULARY, context, 64)
        self.engine = Engine(HashRunner(pages), self.cache, Limits(4096, rows, 10.0), bounds, words, reuse=reuse)
        self._ready: dict[str, list[Output]] = {}

    async def submit(self, request: Request) -> LocalStream:
        self.engine.check(request)
        self.engine.add(request)
        return LocalStream(self, request)

    def outputs(self, request: str) -> list[Output]:
        """What there is for one request, after a step if there is nothing."""
        if not self._ready.get(request):
            for output in self.engine.step():
                self._ready.setdefault(output.request, []).append(output)
            self.tell()
        return self._ready.pop(request, [])

    def tell(self) -> None:
        for trace in self.engine.take_traces():
            if self.on_trace is not None:
                self.on_trace(trace)

    async def end_run(self, tenant: str, run: str) -> None:
        self.engine.end_run(tenant, run)

    async def stats(self) -> Stats:
        return self.engine.stats()

    async def tree(self, tenant: str | None = None) -> Tree:
        return self.engine.tree(tenant)

    async def reuse(self) -> Reuse:
        return self.engine.reuse()


class Server:
    """Routes over a `LocalEngine`, one call after the other unless told otherwise."""

    def __init__(self, engine: LocalEngine | None = None, **config: Any) -> None:
        self.engine = engine or LocalEngine()
        self._runner = asyncio.Runner()
        context = self.engine.info.context_length
        self.app = create_app(self.engine, text_services(context_length=context), ServerConfig(**config))
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self.client.aclose())
        self._runner.close()
        self.app.state.services.close()

    def call(self, method: str, path: str, body: Any = None, key: str = "", **headers: str) -> httpx.Response:
        return self.calls([(method, path, body, key, headers)])[0]

    def calls(self, wanted: Sequence[tuple[str, str, Any, str, dict[str, str]]]) -> list[httpx.Response]:
        """All at once."""

        async def one(method: str, path: str, body: Any, key: str, headers: dict[str, str]) -> httpx.Response:
            auth = {"authorization": f"Bearer {key}"} if key else {}
            content = None if body is None else json.dumps(body).encode()
            return await self.client.request(method, path, content=content, headers={**auth, **headers})

        async def all_of_them() -> list[httpx.Response]:
            return list(await asyncio.gather(*(one(*each) for each in wanted)))

        return self._runner.run(all_of_them())

    def chat(self, messages: Sequence[dict[str, Any]], key: str = "", **more: Any) -> dict[str, Any]:
        """Ask for two tokens; the answer."""
        body = {"messages": list(messages), "max_tokens": 2, **more}
        answer = self.call("POST", "/v1/chat/completions", body, key)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def complete(self, prompt: str | list[int], key: str = "", **more: Any) -> dict[str, Any]:
        answer = self.call("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 2, **more}, key)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def why(self, request: str, key: str = "") -> dict[str, Any]:
        answer = self.call("GET", f"/v1/requests/{request}/cache", key=key)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def why_chat(self, messages: Sequence[dict[str, Any]], key: str = "", **more: Any) -> dict[str, Any]:
        return self.why(self.chat(messages, key, **more)["id"], key)

    def why_complete(self, prompt: str | list[int], key: str = "", **more: Any) -> dict[str, Any]:
        return self.why(self.complete(prompt, key, **more)["id"], key)


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
