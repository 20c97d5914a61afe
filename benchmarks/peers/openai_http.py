"""The OpenAI protocol, as much of it as `bosquet bench` speaks, for engines that have no server of their own.

A module for the peers' Pythons: standard library only. Each connection has a thread; what an answer costs here is small
beside a step of a model.
"""

from __future__ import annotations

import itertools
import json
import queue
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

Json = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """`said` is a prompt, or messages. With `ignore_eos` the answer has exactly `max_tokens` tokens."""

    said: str | list[Json]
    max_tokens: int
    ignore_eos: bool
    schema: Json | None


@dataclass(frozen=True)
class Piece:
    """What was generated since the last piece. The last one of an answer has a `finish_reason`."""

    text: str
    prompt_tokens: int
    completion_tokens: int  # so far
    finish_reason: str | None = None


class Engine(Protocol):
    name: str
    version: str

    def answer(self, request: Request, streamed: bool) -> Iterator[Piece]:
        """Called in many threads at once. Not streamed, one piece will do. Raises `ValueError` for what cannot be."""


def parse(path: str, body: Json) -> Request:
    """Raises `ValueError` for a body that asks for something else."""
    schema = None
    if "response_format" in body:
        if body["response_format"]["type"] != "json_schema":
            raise ValueError("response_format: only json_schema")
        schema = body["response_format"]["json_schema"]["schema"]
    if body.get("temperature") != 0:
        raise ValueError("temperature: only 0")
    said = body["messages"] if path == "/v1/chat/completions" else body["prompt"]
    return Request(said, body["max_tokens"], bool(body.get("ignore_eos")), schema)


Tokens = queue.SimpleQueue[list[int] | RuntimeError | None]
"""Ids as they are generated; None after the last."""


def pieces(
    tokens: Tokens, decode: Callable[[list[int]], str], prompt_tokens: int, max_tokens: int, streamed: bool
) -> Iterator[Piece]:
    """What an engine's thread puts into `tokens`, as text. Raises `ValueError` with what it fails with."""
    ids: list[int] = []
    shown = ""
    while (new := tokens.get()) is not None:
        if isinstance(new, RuntimeError):
            raise ValueError(str(new))
        ids += new
        text = decode(ids) if streamed else ""
        if text and not text.endswith("\ufffd"):  # else a character is not whole yet
            yield Piece(text[len(shown) :], prompt_tokens, len(ids))
            shown = text
    reason = "length" if len(ids) >= max_tokens else "stop"
    yield Piece(decode(ids)[len(shown) :], prompt_tokens, len(ids), reason)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet
    disable_nagle_algorithm = True
    engine: Engine

    def do_GET(self) -> None:
        if self.path == "/health":
            self._send(200, {})
        elif self.path == "/version":
            self._send(200, {"version": self.engine.version})
        elif self.path == "/v1/models":
            self._send(200, {"object": "list", "data": [{"id": "smollm2", "owned_by": self.engine.name}]})
        else:
            self._send(404, {"error": {"message": "no such path"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            if self.path not in ("/v1/completions", "/v1/chat/completions"):
                self._send(404, {"error": {"message": "no such path"}})
                return
            pieces = self.engine.answer(parse(self.path, body), bool(body.get("stream")))
            if body.get("stream"):
                self._stream(pieces)
            else:
                self._whole(list(pieces))
        except (KeyError, TypeError, ValueError) as error:
            self._send(400, {"error": {"message": f"{type(error).__name__}: {error}"}})

    def _whole(self, pieces: list[Piece]) -> None:
        text = "".join(piece.text for piece in pieces)
        said = {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        choice = {"index": 0, "finish_reason": pieces[-1].finish_reason, **said}
        self._send(200, {"choices": [choice], "usage": _usage(pieces[-1])})

    def _stream(self, pieces: Iterator[Piece]) -> None:
        first = next(pieces)  # what is wrong with a request is known by then
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for piece in itertools.chain([first], pieces):
                said = {"delta": {"content": piece.text}} if self._is_chat else {"text": piece.text}
                self._event(json.dumps({"choices": [{"index": 0, "finish_reason": piece.finish_reason, **said}]}))
            self._event(json.dumps({"choices": [], "usage": _usage(piece)}))
        except ValueError as error:
            self._event(json.dumps({"error": {"message": str(error)}}))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.flush()

    def _send(self, status: int, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    @property
    def _is_chat(self) -> bool:
        return self.path == "/v1/chat/completions"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing for each request."""


def _usage(piece: Piece) -> Json:
    counts = {"prompt_tokens": piece.prompt_tokens, "completion_tokens": piece.completion_tokens}
    return {**counts, "total_tokens": sum(counts.values())}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def serve(engine: Engine, port: int) -> None:
    """Serve on this machine until the process is ended."""
    handler = type("EngineHandler", (Handler,), {"engine": engine})
    with Server(("127.0.0.1", port), handler) as server:
        print(f"serving {engine.name} {engine.version} on port {port}", file=sys.stderr, flush=True)
        server.serve_forever()
