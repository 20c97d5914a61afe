"""An OpenAI-compatible server without a model, in a thread of its own: for clients of such servers.

It answers with `word` so many times as tokens were asked for, keeps every body it was sent, and can be slow, fail, or
hold its answers back until a number of requests is in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
RECORD = {
    "name": "a", "subject": "b", "count": 3, "address": {"street": "c", "postcode": "12345"}, "labels": ["food"],
    "priority": "low",
}  # fmt: skip


@dataclass
class FakeOpenAI:
    """`fails(n)` says with what status the n-th POST (from 0) fails, None for well. `gate` is how many requests must be
    in flight before one is answered; the first `ungated` do not wait. `on_post(n)` is called when the n-th has
    arrived."""

    owner: str = "fake"
    word: str = " w"
    first_s: float = 0.0
    token_s: float = 0.0
    gate: int = 1
    ungated: int = 0
    cached: int | None = None
    metrics: Callable[[], str] | None = None
    fails: Callable[[int], int | None] = lambda n: None
    on_post: Callable[[int], None] = lambda n: None
    record: Json = field(default_factory=lambda: RECORD)
    url: str = ""
    bodies: list[tuple[str, Json]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    connections: int = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[FakeOpenAI]:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()

        def call(coroutine: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result(10)

        server = call(asyncio.start_server(self._connection, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            call(self._end(server))
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
            loop.close()

    async def _end(self, server: asyncio.Server) -> None:
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, path, _ = head.decode().split(" ", 2)
                lengths = [line for line in head.decode().lower().split("\r\n") if line.startswith("content-length:")]
                body = await reader.readexactly(int(lengths[0].split(":")[1])) if lengths else b""
                if method == "GET":
                    self._get(path, writer)
                else:
                    await self._post(path, json.loads(body), writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        finally:
            writer.close()

    def _get(self, path: str, writer: asyncio.StreamWriter) -> None:
        if path == "/v1/models":
            _whole(writer, {"data": [{"id": "fake-model", "owned_by": self.owner}]})
        elif path == "/version":
            _whole(writer, {"version": "1.2.3"})
        elif path == "/metrics" and self.metrics is not None:
            text = self.metrics().encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        else:
            _whole(writer, {"detail": "Not Found"}, 404)

    async def _post(self, path: str, body: Json, writer: asyncio.StreamWriter) -> None:
        number = len(self.bodies)
        self.bodies.append((path, body))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.on_post(number)
        try:
            patience = 1500
            while number >= self.ungated and self.most_in_flight < self.gate and patience:
                patience -= 1
                await asyncio.sleep(0.02)
            status = self.fails(number)
            if status is not None:
                _whole(writer, {"error": {"message": "planted", "code": "x"}}, status)
            elif body["stream"]:
                await self._stream(path, body, writer)
            else:
                _whole(writer, self._answer(path, body))
        finally:
            self.in_flight -= 1

    def _pieces(self, body: Json) -> list[str]:
        if "response_format" in body:
            return [json.dumps(self.record)]
        return [self.word] * body["max_tokens"]

    def _usage(self, body: Json) -> Json:
        said = body["prompt"] if "prompt" in body else " ".join(m["content"] for m in body["messages"])
        prompt, completion = len(said.split()), len(self._pieces(body))
        usage: Json = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        if self.cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached}
        return usage

    def _answer(self, path: str, body: Json) -> Json:
        text = "".join(self._pieces(body))
        choice = {"text": text} if path == "/v1/completions" else {"message": {"role": "assistant", "content": text}}
        return {"choices": [{"index": 0, "finish_reason": "length", **choice}], "usage": self._usage(body)}

    async def _stream(self, path: str, body: Json, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        chat = path == "/v1/chat/completions"
        if chat:
            _event(writer, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for number, piece in enumerate(self._pieces(body)):
            await writer.drain()
            if delay := self.token_s if number else self.first_s:
                await asyncio.sleep(delay)
            _event(writer, {"choices": [{"index": 0, **({"delta": {"content": piece}} if chat else {"text": piece})}]})
        end = {"delta": {}} if chat else {"text": ""}
        _event(writer, {"choices": [{"index": 0, "finish_reason": "length", **end}]})
        _event(writer, {"choices": [], "usage": self._usage(body)})
        _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")


def _whole(writer: asyncio.StreamWriter, body: Json, status: int = 200) -> None:
    text = json.dumps(body).encode()
    writer.write(
        b"HTTP/1.1 %d Status\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(text))
        + text
    )


def _event(writer: asyncio.StreamWriter, body: Json) -> None:
    _chunk(writer, b"data: " + json.dumps(body).encode() + b"\n\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n" % len(data) + data + b"\r\n")
