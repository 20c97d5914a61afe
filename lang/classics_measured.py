"""The programs of `classics` on a server, with every token that was asked for, and what the language itself costs."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx

from ..types import Call, Chunk, Message, Origin, Segment, ToolSpec
from .backend import TOKEN_CAPABILITIES
from .backends.http import BosquetServer
from .classics import PROGRAMS
from .learnt import learnt, set_learning


@dataclass(slots=True)
class Asked:
    """One call: its prompt, the tokens that were generated, and how many of the prompt's the server had."""

    prompt: Sequence[int]
    generated: list[int] = field(default_factory=list)
    cached: int = 0


class Recorded(BosquetServer):
    """Keeps all calls, in the order in which they were sent."""

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        super().__init__(url, transport=transport)
        self.calls: list[Asked] = []

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        asked = Asked(call.ids)
        self.calls.append(asked)
        async with aclosing(super().generate(call)) as chunks:
            async for chunk in chunks:
                asked.generated += chunk.ids
                asked.cached = chunk.cached_tokens if chunk.cached_tokens is not None else asked.cached
                yield chunk


class OnServer:
    """Runs programs on the server at `url`."""

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._backend = Recorded(url, transport)

    @property
    def calls(self) -> Sequence[Asked]:
        """All calls so far."""
        return self._backend.calls

    async def run(self, name: str, arguments: Mapping[str, Any]) -> None:
        """One run of the program of this name. Raises what it raises."""
        result = await PROGRAMS[name].arun(**arguments, backend=self._backend)
        if result.error is not None:
            raise result.error


class Overhead(NamedTuple):
    """Seconds a call: to compile a program, and to run it, with so many calls, where answers take no time."""

    calls: int
    compile_s: float
    dispatch_s: float


def overhead(name: str, arguments: Mapping[str, Any], rounds: int) -> Overhead:
    """The best of the rounds, all on one backend. What runs show is not learnt from meanwhile."""
    chosen, backend, learning = PROGRAMS[name], Null(), learnt() is not None
    set_learning(False)
    try:
        compile_s = min(_seconds(lambda: chosen.compile(**arguments)) for _ in range(rounds))
        dispatch_s = min(_seconds(lambda: chosen.run(**arguments, backend=backend)) for _ in range(rounds))
        compiled, calls = len(chosen.compile(**arguments).steps), chosen.run(**arguments, backend=backend).usage.calls
    finally:
        set_learning(learning)
    return Overhead(calls, compile_s / compiled, dispatch_s / calls)


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Null:
    """A backend that answers at once: a token for each byte of a text, and as many as were asked for."""

    capabilities = TOKEN_CAPABILITIES

    async def encode(self, segments: Sequence[Segment]) -> list[int]:
        return list("".join(segment.text for segment in segments).encode())

    async def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")

    async def text_start(self) -> list[int]:
        return []

    async def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool, tools: Sequence[ToolSpec] = ()
    ) -> list[Segment]:
        parts: list[Segment] = []
        for message in messages:
            parts += (Segment(f"<{message['role']}>", True), Segment(message["content"], False), Segment("\n", True))
        return [*parts, Segment("<assistant>", True)] if add_generation_prompt else parts

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        text = "a" * call.sampling.max_tokens
        yield Chunk(text, list(text.encode()), "length", None, len(call.ids), len(text), 0)

    async def end(self, run: str) -> None:
        """Nothing is kept for runs here."""

    async def score(self, ids: Sequence[int], choices: Sequence[Sequence[int]], origin: Origin) -> list[list[float]]:
        return [[0.0] * len(choice) for choice in choices]
