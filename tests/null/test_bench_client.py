"""What the bench's client sends, how it reads what comes back, and what it does when a server misbehaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fakes_openai import FakeOpenAI
from hypothesis import given
from hypothesis import strategies as st

from bosquet.errors import ConfigError, Unavailable
from bosquet.runtime.bench.answers import read
from bosquet.runtime.bench.http_client import HttpClient, Reply
from bosquet.runtime.bench.passes import Pass, run_pass
from bosquet.runtime.bench.target import Target, step_counters
from bosquet.runtime.bench.workloads import GROUPS, Tree, Workload
from bosquet.runtime.server.metrics import Metrics
from bosquet.types import Stats

ALL = {workload.name: workload for group in GROUPS.values() for workload in group}


def run(server: FakeOpenAI, workload: Workload, streamed: bool, **more: Any) -> Pass:
    async def go() -> Pass:
        target = Target(server.url)
        await target.look()
        reading = await run_pass(target, workload, 0, streamed, **more)
        target.client.close()
        return reading

    return asyncio.run(go())


# ---- passes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "streamed", "requests", "in_flight"),
    [
        ("single", False, 3, 1),
        ("prefill 512", False, 6, 1),
        ("streams", False, 64, 32),
        ("streams", True, 64, 32),
        ("agents", False, 96, 16),
        ("agents", True, 96, 16),
        ("json", True, 48, 16),
        ("chat", False, 24, 8),
        ("few-shot", True, 64, 16),
    ],
)
def test_a_pass_sends_all_requests_and_never_too_many_at_once(
    name: str, streamed: bool, requests: int, in_flight: int
) -> None:
    done = []
    with FakeOpenAI(gate=in_flight, cached=1).running() as server:
        reading = run(server, ALL[name], streamed, on_answer=lambda: done.append(1))
    assert reading.errors == []
    assert len(server.bodies) == len(reading.answers) == len(done) == requests
    assert server.most_in_flight == in_flight
    assert server.connections <= in_flight + 1
    assert all(body["stream"] is streamed and body["model"] == "fake-model" for _, body in server.bodies)
    assert all(answer.cached_tokens == 1 for answer in reading.answers)
    assert {answer.asked for answer in reading.answers} == {ALL[name].max_tokens}
    if ALL[name].schema is None:
        assert {answer.completion_tokens for answer in reading.answers} == {ALL[name].max_tokens}


def test_every_server_is_sent_the_same() -> None:
    sent = []
    for _ in range(2):
        with FakeOpenAI().running() as server:
            run(server, ALL["streams"], False)
            sent.append(sorted(json.dumps(body) for body in server.bodies))
    assert sent[0] == sent[1]


def test_an_agent_goes_on_from_what_was_answered() -> None:
    script = ALL["agents"].draw(0, False)[0]
    with FakeOpenAI(word=" yes").running() as server:
        run(server, ALL["agents"], False)
    task = script.opening[1]["content"]  # type: ignore[index]
    talks = [body["messages"] for _, body in server.bodies if body["messages"][1]["content"] == task]
    talks.sort(key=len)
    assert [len(talk) for talk in talks] == [2, 4, 6, 8, 10, 12]
    assert talks[-1][2::2] == [{"role": "assistant", "content": " yes" * 40}] * 5
    assert [message["content"] for message in talks[-1][3::2]] == list(script.replies)
    assert all(talks[-1][: len(talk)] == talk for talk in talks)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tree_grows_from_what_was_answered(streamed: bool) -> None:
    """Every request's path, as the tree draws it: hints follow the kept paths, a score follows each thought."""
    (tree,) = ALL["tree"].draw(0, streamed)
    assert isinstance(tree, Tree)
    with FakeOpenAI(gate=4, word=" so").running() as server:
        server.on_post = lambda n: setattr(server, "gate", 8) if n == 8 else None  # the second level's first
        reading = run(server, ALL["tree"], streamed)
    assert reading.errors == []
    assert server.most_in_flight == 8
    assert [answer.completion_tokens for answer in reading.answers] == [60, 4] * 20
    asked: dict[str, list[str]] = {}  # what was said before each hint
    scored = []
    for _, body in server.bodies:
        said = [message["content"] for message in body["messages"]]
        assert [message["role"] for message in body["messages"][1:]] == (["user", "assistant"] * 9)[: len(said) - 1]
        assert all(text == " so" * 60 for text in said[2::2])
        assert body["max_tokens"] == (4 if said[-1] == tree.score else 60)
        if said[-1] == tree.score:
            scored.append(said[-3])
        else:
            asked[said[-1]] = said[1:-1:2]
    hints = [level.hints for level in tree.levels]
    assert sorted(scored) == sorted(asked) == sorted(hint for level in hints for hint in level)
    first = [hints[0][number] for number in tree.levels[0].kept]
    second = [(first[number // 4], hints[1][number]) for number in tree.levels[1].kept]
    assert [asked[hint] for hint in hints[0]] == [[]] * 4
    assert [asked[hint] for hint in hints[1]] == [[first[0]]] * 4 + [[first[1]]] * 4
    assert [asked[hint] for hint in hints[2]] == [list(second[0])] * 4 + [list(second[1])] * 4


def test_a_tree_ends_with_the_level_that_has_an_error() -> None:
    with FakeOpenAI(fails=lambda n: 500 if n == 2 else None).running() as server:
        reading = run(server, ALL["tree"], False)
    assert reading.errors == ["500: planted"]
    assert len(reading.good) == len(server.bodies) - 1 == 6


def test_planted_delays_are_found() -> None:
    with FakeOpenAI(first_s=0.15, token_s=0.002).running() as server:
        reading = run(server, ALL["single"], True)
    assert reading.errors == []
    for answer in reading.answers:
        assert answer.first is not None
        assert answer.last is not None
        assert answer.tpot is not None
        assert answer.tpot >= 0.002
        assert 0.15 <= answer.first < answer.last <= answer.seconds
        assert answer.tpot * 127 == pytest.approx(answer.last - answer.first)
    assert reading.seconds >= 3 * (0.15 + 127 * 0.002)
    assert 0 < reading.client_cpu_s < reading.seconds


def test_errors_are_kept_and_the_rest_goes_on() -> None:
    with FakeOpenAI(fails=lambda n: 503 if n % 4 == 1 else None).running() as server:
        reading = run(server, ALL["streams"], False)
    assert reading.errors == ["503: planted"] * 16
    assert len(reading.good) == 48


def test_a_conversation_ends_with_its_first_error() -> None:
    with FakeOpenAI(fails=lambda n: 500).running() as server:
        reading = run(server, ALL["agents"], True)
    assert len(server.bodies) == 16
    assert reading.errors == ["500: planted"] * 16


def test_the_engines_counters_are_read_around_a_pass() -> None:
    stats = Stats()

    def scrape() -> str:
        stats.steps += 128
        stats.step_seconds += 2.56
        stats.forward_seconds += 2.0
        stats.mask_seconds += 0.25
        stats.computed_tokens += 1280
        return Metrics().render("ready", stats).decode()

    with FakeOpenAI(metrics=scrape).running() as server:
        steps = run(server, ALL["single"], False, profile=True).steps
        assert run(server, ALL["single"], False).steps is None
    assert steps == pytest.approx(
        {"steps": 128, "tokens": 1280, "step": 2.56, "forward": 2.0, "mask": 0.25, "schedule": 0, "sample": 0}
    )


def test_other_servers_have_no_such_counters() -> None:
    assert step_counters("# HELP x y\nvllm:num_requests_running 1.0\n") is None
    assert step_counters("") is None
    with FakeOpenAI().running() as server:
        assert run(server, ALL["single"], False, profile=True).steps is None


# ---- reading answers -----------------------------------------------------------------------------------------------


def event(body: Any) -> bytes:
    return b"data: " + (body if isinstance(body, bytes) else json.dumps(body).encode()) + b"\n\n"


def delta(text: str | None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {} if text is None else {"content": text}, **more}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


def reply(*parts: tuple[float, bytes], status: int = 200, done: float = 20.0) -> Reply:
    return Reply(10.0, status, list(parts), done)


def test_times_of_a_stream() -> None:
    answer = read(
        reply(
            (11.0, event(delta("", role="x"))),
            (12.0, event(delta("a"))),
            (13.5, event(delta("b")) + event(delta("c"))),
            (16.0, event(delta(None, finish_reason="length"))),
            (17.0, event(USAGE) + event(b"[DONE]")),
        ),
        began=9.0,
        streamed=True,
    )
    assert (answer.sent, answer.seconds, answer.text) == (1.0, 10.0, "abc")
    assert (answer.first, answer.last, answer.tpot) == (2.0, 6.0, 2.0)
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (7, 3, None)


STREAM = b"".join(map(event, [delta("ä€"), delta("𝄞\n"), USAGE, b"[DONE]"]))


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    ends = [*sorted(cuts), len(STREAM)]
    starts = [0, *ends[:-1]]
    parts = [(11.0 + i, STREAM[a:b]) for i, (a, b) in enumerate(zip(starts, ends, strict=True))]
    answer = read(reply(*parts), 10.0, True)
    assert (answer.error, answer.text, answer.completion_tokens) == (None, "ä€𝄞\n", 3)
    first_line_ends = STREAM.index(b"\n") + 1
    assert answer.first == 1.0 + next(i for i, end in enumerate(ends) if end >= first_line_ends)


@pytest.mark.parametrize(
    ("body", "streamed", "status", "error"),
    [
        (event(delta("a")) + event(USAGE), True, 200, "the stream ended without [DONE]"),
        (event(delta("a")) + event(b"[DONE]"), True, 200, "the answer has no usage"),
        (event(delta("a")) + event({"error": {"message": "gone"}}), True, 200, "gone"),
        (event(b"{"), True, 200, "the answer does not follow the protocol"),
        (b"<html>", False, 200, "the answer does not follow the protocol"),
        (b'{"choices": []}', False, 200, "the answer has no choices"),
        (b'{"choices": [{"text": "x"}]}', False, 200, "the answer has no usage"),
        (b'{"error": {"message": "too long"}}', False, 400, "400: too long"),
        (b'{"detail": "Not Found"}', False, 404, '404: "Not Found"'),
        (b"Bad Gateway", True, 502, "502: Bad Gateway"),
    ],
)
def test_what_can_be_wrong(body: bytes, streamed: bool, status: int, error: str) -> None:
    found = read(reply((11.0, body), status=status), 10.0, streamed).error
    assert found is not None
    assert found.startswith(error)


# ---- HTTP ----------------------------------------------------------------------------------------------------------

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def served(handler: Handler, use: Callable[[HttpClient], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        async with server:
            client = HttpClient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/")
            try:
                return await asyncio.wait_for(use(client), 10)
            finally:
                client.close()

    return asyncio.run(go())


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    heads = []

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        await writer.drain()
        writer.close()

    async def thrice(client: HttpClient) -> list[bytes]:
        return [(await client.get("/v1/models")).body for _ in range(3)]

    assert served(once, thrice) == [b"ok"] * 3
    assert [head.split(b"\r\n")[0] for head in heads] == [b"GET /v1/models HTTP/1.1"] * 3


def test_a_connection_is_kept() -> None:
    connections = []

    async def many(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        for _ in range(3):
            await reader.readuntil(b"\r\n\r\n")
            for byte in OK:
                writer.write(bytes([byte]))
                await writer.drain()
        writer.close()

    async def thrice(client: HttpClient) -> list[bytes]:
        return [(await client.get("/")).body for _ in range(3)]

    assert served(many, thrice) == [b"ok"] * 3
    assert len(connections) == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (OK[:-1], "closed in the middle"),
        (b"", "connection was closed"),
        (b"SSH-2.0-x\r\n", "not HTTP"),
    ],
)
def test_broken_answers(answer: bytes, message: str) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    with pytest.raises(Unavailable, match=message):
        served(broken, lambda client: client.get("/"))


def test_the_body_and_its_length_are_sent() -> None:
    seen = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen.append((head, await reader.readexactly(5)))
        writer.write(OK)
        await writer.drain()
        writer.close()

    served(echo, lambda client: client.post("/v1/completions", "€uu".encode()))
    head, body = seen[0]
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"Content-Length: 5\r\n" in head
    assert body == "€uu".encode()


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:y", ""])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError):
        HttpClient(url)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"cannot reach http://127\.0\.0\.1:1: "):
        asyncio.run(Target("http://127.0.0.1:1").look())


def test_a_server_that_is_none_of_these() -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()
        writer.close()

    with pytest.raises(ConfigError, match="does not say which model"):
        served(other, lambda client: Target(client.url).look())
