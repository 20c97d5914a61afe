"""A client that leaves frees what it holds at once: streaming or not, accepted or not yet, one prompt or many."""

import socket
import struct
import threading
import time
from typing import Any

import pytest
from fakes_engine import FakeEngine, text_services
from live_server import Live, live, raw_post, wait_for

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 400, "ignore_eos": True}


def slow(**options: Any) -> FakeEngine:
    return FakeEngine(delay=0.02, **options)


def leave(sock: socket.socket, how: str) -> None:
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "requests"),
    [
        (CHAT, HI, 1),
        (CHAT, HI | {"n": 3}, 1),
        (TEXT, {"prompt": ["a", "b", "c"], "max_tokens": 400}, 3),
        (TEXT, {"prompt": "a", "max_tokens": 400, "echo": True, "logprobs": 1}, 1),
    ],
)
def test_leaving_cancels(path: str, body: dict, requests: int, stream: bool, how: str):
    engine = slow()
    with live(engine) as server:
        sock = server.connect()
        sock.sendall(raw_post(path, body | {"stream": stream}))
        wait_for(lambda: len(engine.running) == requests)
        if stream:
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
        leave(sock, how)
        wait_for(lambda: len(engine.cancelled) == requests)
        assert not engine.running
        assert not engine.finished
        wait_for(lambda: gone(server) == 1)


def test_leaving_before_the_engine_has_accepted():
    engine = slow()
    engine.accepts = False
    with live(engine) as server:
        sock = server.connect()
        sock.sendall(raw_post(CHAT, HI))
        wait_for(lambda: server.server._lifecycle.in_flight == 1)
        sock.close()
        wait_for(lambda: server.server._lifecycle.in_flight == 0)
        assert not engine.cancelled  # it is not even accepted
        engine.accepts = True
        wait_for(lambda: len(engine.cancelled) == 1)
        assert not engine.running


def test_leaving_in_the_middle_of_the_body():
    engine = slow()
    with live(engine) as server:
        sock = server.connect()
        sock.sendall(raw_post(CHAT, HI)[:-10])
        wait_for(lambda: server.server._lifecycle.in_flight == 1)
        sock.close()
        wait_for(lambda: server.server._lifecycle.in_flight == 0)
        assert not engine.requests


def test_a_client_that_does_not_read_holds_up_nobody():
    """It fills its socket and stays; another is served meanwhile, and leaving frees everything."""
    engine = FakeEngine(lambda request, choice: [97] * 100_000, pieces=[64], context_length=200_000)
    with live(engine, text=text_services(context_length=200_000)) as server:
        stuck = server.connect()
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = {"prompt": "a", "max_tokens": 100_000, "stream": True, "logprobs": 5}
        stuck.sendall(raw_post(TEXT, body))
        wait_for(lambda: engine.running)
        time.sleep(0.3)
        quick = server.connect()
        quick.sendall(raw_post(TEXT, {"prompt": "b", "max_tokens": 4}))
        assert quick.recv(100).startswith(b"HTTP/1.1 200")
        quick.close()
        assert len(engine.running) == 1
        stuck.close()
        wait_for(lambda: not engine.running)
        assert len(engine.cancelled) == 1


def test_the_same_connection_serves_again():
    """Watching for a disconnect must not eat the next request of a kept connection."""
    with live(FakeEngine()) as server, server.connect() as sock:
        for stream in (False, True, False, True):
            sock.sendall(raw_post(CHAT, HI | {"max_tokens": 3, "stream": stream}))
            end = b"0\r\n\r\n" if stream else b"}}}"
            got = b""
            while not got.endswith(end):
                got += sock.recv(4096)
            assert got.startswith(b"HTTP/1.1 200")


def test_64_streams_at_once_with_some_that_leave():
    engine = FakeEngine(delay=0.01)
    texts: dict[int, bytes] = {}
    with live(engine) as server:
        threads = [threading.Thread(target=_client, args=(server, number, texts)) for number in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        wait_for(lambda: not engine.running)
        assert len(engine.cancelled) == 16
        assert len(engine.finished) == 48
        assert len(texts) == 48
        assert all(text.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for text in texts.values())
        assert gone(server) == 16


def _client(server: Live, number: int, texts: dict[int, bytes]) -> None:
    sock = server.connect()
    tokens = 400 if number % 4 == 0 else 30
    sock.sendall(raw_post(TEXT, {"prompt": f"{number}", "max_tokens": tokens, "stream": True}))
    if number % 4 == 0:
        sock.recv(1000)
        sock.close()
        return
    got = b""
    while not got.endswith(b"0\r\n\r\n"):
        got += sock.recv(65536)
    sock.close()
    texts[number] = got


def gone(server: Live) -> float:
    services = server.server.config.app.state.services
    value = services.metrics.registry.get_sample_value("bosquet_client_disconnects_total")
    assert value is not None
    return value
