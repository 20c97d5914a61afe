"""Requests that do not arrive: each connection is given up in time, and nothing else is."""

import json
import socket
import time

import httpx
import pytest
from fakes_engine import FakeEngine
from live_server import Live, live, raw_post, wait_for

from bosquet.runtime.server.config import ServerConfig

TEXT = "/v1/completions"
LIMIT = 0.4
CONFIG = ServerConfig(port=0, arrival_timeout_s=LIMIT)
LATEST = 4.0
"""Far more than a busy machine needs; far less than uvicorn's keep-alive limit, which must not be what closes."""
SHORT = {"prompt": "a", "max_tokens": 2}
LONG = {"prompt": "a", "max_tokens": 30}
WHOLE = raw_post(TEXT, SHORT)
HEAD = WHOLE[: WHOLE.index(b"\r\n\r\n") + 4]
BODY = WHOLE[len(HEAD) :]
CHUNKED = HEAD.replace(b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked") + b"5\r\n" + BODY[:5]


def read_all(sock: socket.socket) -> bytes:
    """What comes until the server closes."""
    sock.settimeout(LATEST)
    got = b""
    while part := sock.recv(65536):
        got += part
    return got


def answer(sock: socket.socket) -> tuple[bytes, bytes]:
    """Head and body of one answer with a length."""
    sock.settimeout(LATEST)
    got = b""
    while b"\r\n\r\n" not in got:
        got += sock.recv(1)
    length = int(got.lower().partition(b"content-length:")[2].split()[0])
    body = b""
    while len(body) < length:
        body += sock.recv(length - len(body))
    return got, body


def check_refusal(got: bytes) -> None:
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"connection: close" in head.lower()
    error = json.loads(body)["error"]
    assert (error["type"], error["code"], error["param"]) == ("timeout_error", "request_timeout", None)


def trickle(sock: socket.socket, data: bytes) -> None:
    for byte in data:
        sock.sendall(bytes([byte]))
        time.sleep(0.05)


def counted(server: Live, status: str) -> int:
    text = httpx.get(f"{server.url}/metrics").text
    lines = [
        line
        for line in text.splitlines()
        if line.startswith("bosquet_http_requests_total{") and TEXT in line and f'status="{status}"' in line
    ]
    return sum(int(float(line.split()[-1])) for line in lines)


@pytest.mark.parametrize(
    "part",
    [b"P", HEAD[:-4], HEAD[:-1], HEAD, WHOLE[:-1], CHUNKED],
    ids=["a letter", "half a head", "a byte short", "no body", "half a body", "a chunk"],
)
@pytest.mark.parametrize("before", [False, True], ids=["first", "later"])
def test_a_request_that_stops_half_way_is_given_up(part: bytes, before: bool):
    engine = FakeEngine()
    with live(engine, CONFIG) as server, server.connect() as sock:
        if before:
            sock.sendall(WHOLE)
            assert b" 200 " in answer(sock)[0]
        began = time.monotonic()
        sock.sendall(part)
        check_refusal(read_all(sock))
        assert LIMIT * 0.9 < time.monotonic() - began < LATEST
        assert len(engine.requests) == before
        wait_for(lambda: server.server._lifecycle.in_flight == 0)
        body_began = len(part) >= len(HEAD)
        assert counted(server, "408") == body_began  # the application never hears of half a head


@pytest.mark.parametrize("what", [b"", b"\r\n"], ids=["nothing", "a blank line"])
def test_a_connection_on_which_no_request_begins_is_closed_without_a_word(what: bytes):
    with live(FakeEngine(), CONFIG) as server, server.connect() as sock:
        began = time.monotonic()
        sock.sendall(what)
        assert read_all(sock) == b""
        assert LIMIT * 0.9 < time.monotonic() - began < LATEST


def test_blank_lines_after_an_answer_do_not_hold_the_connection():
    with live(FakeEngine(), CONFIG) as server, server.connect() as sock:
        sock.sendall(WHOLE)
        assert b" 200 " in answer(sock)[0]
        sock.sendall(b"\r\n")
        assert read_all(sock) == b""


@pytest.mark.parametrize("at_once", [0, len(HEAD)], ids=["head", "body"])
def test_a_trickle_does_not_extend_the_time(at_once: int):
    with live(FakeEngine(), CONFIG) as server, server.connect() as sock:
        sock.sendall(WHOLE[:at_once])
        began = time.monotonic()
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            trickle(sock, WHOLE[at_once:-1] * 3)
        assert LIMIT * 0.9 < time.monotonic() - began < LATEST


def test_a_request_in_pieces_that_arrives_in_time_is_served():
    with live(FakeEngine(), CONFIG) as server, server.connect() as sock:
        for at in range(0, len(WHOLE), 40):
            sock.sendall(WHOLE[at : at + 40])
            time.sleep(0.01)
        assert b" 200 " in answer(sock)[0]


def test_long_answers_and_idle_kept_connections_are_left_alone():
    engine = FakeEngine(delay=LIMIT / 10)
    with live(engine, CONFIG) as server, server.connect() as sock:
        for _ in range(2):
            sock.sendall(raw_post(TEXT, LONG))  # three times the limit
            assert b" 200 " in answer(sock)[0]
            time.sleep(2 * LIMIT)


def test_a_slow_reader_gets_the_whole_stream():
    engine = FakeEngine(pieces=(5,))
    with live(engine, CONFIG) as server, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(LATEST)
        sock.connect(server.address)
        sock.sendall(raw_post(TEXT, SHORT | {"max_tokens": 400, "n": 20, "stream": True}))
        began = time.monotonic()
        got = b""
        while b"[DONE]" not in got:
            got += sock.recv(10_000)
            time.sleep(LIMIT / 40)
        assert time.monotonic() - began > 2 * LIMIT
        assert got.count(b'"finish_reason":"length"') == 20


@pytest.mark.parametrize("part", [WHOLE[:20], HEAD, WHOLE[:-1]], ids=["head", "no body", "body"])
def test_half_a_second_request_does_not_cut_the_answer_to_the_first(part: bytes):
    engine = FakeEngine(delay=LIMIT / 10)
    with live(engine, CONFIG) as server, server.connect() as sock:
        sock.sendall(raw_post(TEXT, LONG) + part)
        assert b" 200 " in answer(sock)[0]
        began = time.monotonic()
        check_refusal(read_all(sock))
        assert LIMIT * 0.9 < time.monotonic() - began < LATEST
        assert len(engine.requests) == 1


def test_a_second_request_that_waits_for_its_turn_is_not_late():
    """The server does not read on while it answers the first; its time begins with its turn."""
    engine = FakeEngine(delay=LIMIT / 10)
    second = raw_post(TEXT, SHORT | {"user": "x" * 3_000_000})
    with live(engine, CONFIG) as server, server.connect() as sock:
        sock.sendall(raw_post(TEXT, LONG) + second[:1000])
        sock.settimeout(LATEST)
        sock.sendall(second[1000:])
        assert b" 200 " in answer(sock)[0]
        assert b" 200 " in answer(sock)[0]
        assert len(engine.requests) == 2


def test_the_rest_of_a_body_that_was_refused_early_is_not_waited_for():
    """The refusal of a body that is too large goes out before the body has arrived."""
    config = ServerConfig(port=0, arrival_timeout_s=LIMIT, max_body_bytes=1000)
    with live(FakeEngine(), config) as server, server.connect() as sock:
        sock.sendall(HEAD.replace(b"Content-Length: %d" % len(BODY), b"Content-Length: 1001"))
        got = read_all(sock)
        assert got.count(b"HTTP/1.1 ") == 1
        assert b" 413 " in got


def test_a_client_that_waits_for_leave_to_send_gets_it_and_then_has_its_time():
    with live(FakeEngine(), CONFIG) as server, server.connect() as sock:
        sock.sendall(HEAD.replace(b"Host:", b"Expect: 100-continue\r\nHost:"))
        first, _, rest = read_all(sock).partition(b"\r\n\r\n")
        assert first == b"HTTP/1.1 100 Continue"
        check_refusal(rest)


@pytest.mark.parametrize("part", [b"x" * 1000, b"\r\nX-A: " + b"y" * 90])
def test_a_head_without_end_is_refused_and_its_memory_let_go(part: bytes) -> None:
    with live(FakeEngine(), ServerConfig(port=0)) as server, socket.create_connection(server.address) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nX-Long: ")
        sent = 0
        try:
            while sent < 50_000_000:
                sock.sendall(part * 20)
                sent += 20 * len(part)
        except OSError:
            pass
        assert sent < 20_000_000
        try:
            got = read_all(sock)
        except ConnectionError:
            got = b""  # it was reset: what we had still sent came too late
        assert not got or got.startswith(b"HTTP/1.1 431 ")
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_long_head_in_pieces_gets_431() -> None:
    with live(FakeEngine(), ServerConfig(port=0)) as server, socket.create_connection(server.address) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nX-Long: ")
        time.sleep(0.1)
        sock.sendall(b"z" * 70_000)
        head, _, body = read_all(sock).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 431 ")
        assert json.loads(body)["error"]["code"] == "head_too_large"


GET = b"GET /health HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
NO_HTTP = {
    "words": b"hello there\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a null byte": b"\0",
    "a version that is none": b"GET /health HTTP/x\r\n\r\n",
    "no target": b"GET  HTTP/1.1\r\n\r\n",
    "a target that is no ASCII": b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target without end": b"GET http://[::1 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a header without a colon": GET + b"nonsense\r\n\r\n",
    "a header with a null byte": GET + b"X-A: \0\r\n\r\n",
    "a length that is a word": POST + b"Content-Length: many\r\n\r\n",
    "a negative length": POST + b"Content-Length: -1\r\n\r\n",
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a length beyond all": POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n",
    "a length and chunks": POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a chunk without a size": POST + b"Transfer-Encoding: chunked\r\n\r\nhello\r\n",
    "a second chunk without a size": POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nzz\r\n",
    "a chunk of another size": POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}}}\r\n0\r\n\r\n",
}


def check_not_http(got: bytes) -> None:
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n"), got
    assert b"content-type: application/json" in head
    assert b"connection: close" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_request", None)
    assert error["message"].startswith("this is not valid HTTP: ")


@pytest.fixture(scope="module")
def quiet():
    """A server without work, and the engine behind it."""
    engine = FakeEngine()
    with live(engine, ServerConfig(port=0)) as server:
        yield server, engine


PIECES = [(what, 1) for what in NO_HTTP] + [(what, 2) for what in list(NO_HTTP)[7:]]


@pytest.mark.parametrize(("what", "pieces"), PIECES)
def test_what_is_no_http_is_refused_in_the_shape_of_every_refusal(quiet, what: str, pieces: int):
    server, engine = quiet
    data = NO_HTTP[what]
    with server.connect() as sock:
        for part in [data] if pieces == 1 else [data[:20], data[20:]]:
            sock.sendall(part)
            time.sleep(0.01 * (pieces - 1))
        check_not_http(read_all(sock))
    assert engine.requests == []
    wait_for(lambda: server.server._lifecycle.in_flight == 0)
    assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.mark.parametrize("what", ["words", "a length that is a word", "a chunk without a size"])
def test_the_answers_before_it_are_not_cut(what: str):
    engine = FakeEngine(delay=0.01)
    with live(engine, ServerConfig(port=0)) as server, server.connect() as sock:
        sock.sendall(raw_post(TEXT, LONG) + NO_HTTP[what])
        head, body = answer(sock)
        assert b" 200 " in head
        assert json.loads(body)["usage"]["completion_tokens"] == LONG["max_tokens"]
        check_not_http(read_all(sock))
        assert len(engine.requests) == 1
        wait_for(lambda: server.server._lifecycle.in_flight == 0)
