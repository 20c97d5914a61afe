"""The HTTP side of the servers that we give to peers without one: our own client is answered what the engine said."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from by_path import module_at
from hypothesis import given
from hypothesis import strategies as st

from bosquet.runtime.bench.answers import Answer, read
from bosquet.runtime.bench.passes import Pass, run_pass
from bosquet.runtime.bench.target import Target
from bosquet.runtime.bench.workloads import GROUPS

ALL = {workload.name: workload for group in GROUPS.values() for workload in group}
TEXT = "a ä€𝄞 b".encode()


http = module_at(Path(__file__).parents[2] / "benchmarks" / "peers" / "openai_http.py")


class Bytes:
    """Its tokens are the bytes of TEXT, over and over."""

    name, version = "bytes", "1.0"

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def answer(self, request: Any, streamed: bool) -> Iterator[Any]:
        self.asked.append(request)
        if request.schema is not None:
            raise ValueError("no schemas here")
        tokens: Any = queue.SimpleQueue()
        if request.said == "fail":
            tokens.put([65])
            tokens.put(RuntimeError("out of memory"))
        for number in range(request.max_tokens):
            tokens.put([TEXT[number % len(TEXT)]])
        tokens.put(None)
        pieces: Iterator[Any] = http.pieces(tokens, decoded, len(str(request.said)), request.max_tokens, streamed)
        return pieces


def decoded(ids: list[int]) -> str:
    return bytes(ids).decode(errors="replace")


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Bytes]]:
    engine = Bytes()
    server = http.Server(("127.0.0.1", 0), type("Handler", (http.Handler,), {"engine": engine}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", engine
    server.shutdown()
    thread.join()
    server.server_close()


def run(url: str, name: str, streamed: bool) -> tuple[Target, Pass]:
    async def go() -> tuple[Target, Pass]:
        target = Target(url)
        await target.look()
        reading = await run_pass(target, ALL[name], 0, streamed)
        target.client.close()
        await asyncio.sleep(0)
        return target, reading

    return asyncio.run(go())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", ["single", "prefill 512", "streams", "agents"])
def test_answers_are_what_the_engine_said(served: tuple[str, Bytes], name: str, streamed: bool) -> None:
    url, engine = served
    engine.asked.clear()
    target, reading = run(url, name, streamed)
    workload = ALL[name]
    assert (target.name, target.version, target.model) == ("bytes", "1.0", "smollm2")
    assert reading.errors == []
    assert {(request.max_tokens, request.ignore_eos) for request in engine.asked} == {(workload.max_tokens, True)}
    for answer in reading.answers:
        assert answer.text == (TEXT * 20)[: workload.max_tokens].decode(errors="replace")
        assert answer.completion_tokens == workload.max_tokens
    prompts = sorted(len(str(request.said)) for request in engine.asked)
    assert sorted(answer.prompt_tokens for answer in reading.answers) == prompts


@pytest.mark.parametrize("streamed", [False, True])
def test_what_the_engine_refuses_is_an_error(served: tuple[str, Bytes], streamed: bool) -> None:
    _, reading = run(served[0], "few-shot", streamed)
    assert set(reading.errors) == {"400: ValueError: no schemas here"}


def test_other_paths_and_other_bodies(served: tuple[str, Bytes]) -> None:
    async def go() -> list[int]:
        client = Target(served[0]).client
        replies = [await client.get("/health"), await client.get("/metrics"), await client.post("/v1/x", b"{}")]
        replies.append(await client.post("/v1/completions", b'{"prompt":"a","max_tokens":1}'))
        replies.append(await client.post("/v1/completions", b'{"temperature":0}'))
        client.close()
        await asyncio.sleep(0)
        return [reply.status for reply in replies]

    assert asyncio.run(go()) == [200, 404, 404, 400, 400]


def test_a_failure_within_a_stream_is_its_last_event(served: tuple[str, Bytes]) -> None:
    async def go() -> Answer:
        target = Target(served[0])
        await target.look()
        answer = read(await target.ask(ALL["single"], "fail", True, 9), 0.0, True)
        target.client.close()
        await asyncio.sleep(0)
        return answer

    assert asyncio.run(go()).error == "out of memory"


@given(st.text(max_size=12), st.lists(st.integers(1, 3), max_size=40))
def test_streamed_or_not_the_text_is_the_same(text: str, sizes: list[int]) -> None:
    """For every way in which tokens split the bytes."""
    data = text.encode()
    tokens: Any = queue.SimpleQueue()
    at = 0
    for size in [*sizes, len(data)]:
        tokens.put(list(data[at : at + size]))
        at += size
    tokens.put(None)
    found = list(http.pieces(tokens, decoded, 7, len(data), True))
    assert "".join(piece.text for piece in found) == text
    assert [piece.finish_reason for piece in found] == [None] * (len(found) - 1) + ["length"]
    assert (found[-1].prompt_tokens, found[-1].completion_tokens) == (7, len(data))


def test_a_failure_of_the_engine_is_told() -> None:
    tokens: Any = queue.SimpleQueue()
    tokens.put([65])
    tokens.put(RuntimeError("out of memory"))
    with pytest.raises(ValueError, match="out of memory"):
        list(http.pieces(tokens, decoded, 1, 9, False))
