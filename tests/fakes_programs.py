"""Programs over HTTP on the toy model of `fakes_lang`: its tokenizer and templates behind the real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence, Set
from typing import Any

import httpx
from fakes_engine import FakeEngine, info
from fakes_lang import (
    END,
    MERGES,
    SPECIAL,
    TEXT_END,
    Template,
    chatml,
    continuation,
    decode,
    encode_segments,
    token_bytes,
)

from bosquet.runtime.server.app import create_app
from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.server.program_runs import Programs
from bosquet.runtime.server.services import Text, TextServices
from bosquet.runtime.text_stream import TextStream
from bosquet.types import Request, Segment

Json = dict[str, Any]
FACTS: Json = {"vocab_size": 1004, "end_ids": (END, TEXT_END), "context_length": 4096}
_NAMES = {token: name.encode() for name, token in SPECIAL.items()}
_MERGED = 256 + len(MERGES)


class ToyTokenizer:
    """That of `fakes_lang`."""

    size = 1004
    special_ids = control_ids = frozenset(SPECIAL.values())
    token_bytes = tuple(_NAMES.get(token) or (token_bytes(token) if token < _MERGED else b"") for token in range(1004))

    def __init__(self, add_bos: bool = False) -> None:
        self.add_bos = add_bos

    def encode_segments(self, segments: Sequence[Segment], *, bos: bool = False) -> list[int]:
        return [*([SPECIAL["<s>"]] if bos else []), *encode_segments(segments)]

    def split_controls(self, segments: Sequence[Segment]) -> list[Segment]:
        return list(segments)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, at_start: bool = False) -> str:
        return decode(list(ids))

    def bytes_of(self, token: int) -> bytes:
        return self.token_bytes[token]

    def id_of_special(self, text: str) -> int | None:
        return SPECIAL.get(text)


class ToyTemplate:
    def __init__(self, template: Template) -> None:
        self.template = template

    def render(
        self,
        messages: Sequence[Any],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: Sequence[dict[str, Any]] | None,
        extra: dict[str, Any] | None,
    ) -> list[Segment]:
        return self.template(messages, add_generation_prompt)


def toy_text(template: Template = chatml, *, bos: bool = False, **facts: Any) -> TextServices:
    tokenizer = ToyTokenizer(bos)

    def stream(stop: Sequence[bytes], shown: Set[int]) -> TextStream:
        return TextStream(tokenizer, stop, shown=shown)

    return TextServices(Text(tokenizer, ToyTemplate(template), info(**(FACTS | facts)), stream))


def toy_words(request: Request, choice: int) -> list[int]:
    """What the toy model says; the choices of one request differ in what they begin with."""
    return [*([97 + choice] if choice else []), *continuation(request.ids, request.sampling.max_tokens)]


def toy_engine(**options: Any) -> FakeEngine:
    return FakeEngine(toy_words, tokenizer=ToyTokenizer(), **(FACTS | options))


class Place:
    """A server of programs in process. `now` is its clock."""

    def __init__(
        self, engine: FakeEngine, text: TextServices | None = None, config: ServerConfig | None = None
    ) -> None:
        self.engine = engine
        self.now = 0.0
        self.app = create_app(engine, text or toy_text(), config or ServerConfig())
        self.programs: Programs = self.app.state.services.programs
        self.programs._clock = lambda: self.now
        self.transport = httpx.ASGITransport(self.app)
        self.http = httpx.AsyncClient(transport=self.transport, base_url="http://test")

    async def ask(self, method: str, path: str, body: Json | None = None, status: int = 200, **options: Any) -> Any:
        """The answer's JSON."""
        response = await self.http.request(method, path, json=body, **options)
        assert response.status_code == status, response.text
        return response.json() if response.content else None

    async def open(self, name: str = "p", **fields: Any) -> Handle:
        return Handle(self, (await self.ask("POST", "/v1/programs", {"name": name, **fields}))["id"])


class Handle:
    """One run, as a client has it."""

    def __init__(self, place: Place, run: str) -> None:
        self.place = place
        self.id = run

    async def __call__(self, step: str, *, status: int = 200, headers: Any = None, **body: Any) -> Any:
        path = f"/v1/programs/{self.id}/{step}"
        return await self.place.ask("POST", path, body, status, headers=headers)

    async def state(self) -> dict[str, Json]:
        found = await self.place.ask("GET", f"/v1/programs/{self.id}")
        return {branch["branch"]: branch for branch in found["branches"]}

    async def close(self, status: int = 204) -> None:
        await self.place.ask("DELETE", f"/v1/programs/{self.id}", status=status)


def on(engine: FakeEngine, work: Callable[[Place], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    """What `work` returns, given a server with this engine behind it."""

    async def run() -> Any:
        place = Place(engine, **options)
        async with place.http:
            return await work(place)

    return asyncio.run(run())
