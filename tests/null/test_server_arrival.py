"""Requests that do not arrive: each connection is given up in time, and nothing else is. The server's clock is put
forward; that a machine is slow makes nothing late."""

import itertools
import json
import select
import socket
import threading
import time

import httpx
import pytest
from fakes_engine import FakeEngine
from live_server import Live, live, raw_post, wait_for

from bosquet.runtime.server import serve
from bosquet.runtime.server.arrival import PunctualProtocol
from bosquet.runtime.server.config import ServerConfig

TEXT = "/v1/completions"
LIMIT = 100.0
CONFIG = ServerConfig(port=0, arrival_timeout_s=LIMIT)
PATIENCE = 30.0
"""Seconds that a machine may stand still before a test fails; less than what `NEARLY` leaves of the limit."""
NEARLY = 0.6 * LIMIT
SHORT = {"prompt": "a", "max_tokens": 2}
LONG = {"prompt": "a", "max_tokens": 30}
WHOLE = raw_post(TEXT, SHORT)
HEAD = WHOLE[: WHOLE.index(b"\r\n\r\n") + 4]
BODY = WHOLE[len(HEAD) :]
CHUNKED = HEAD.replace(b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked") + b"5\r\n" + BODY[:5]


@pytest.fixture(autouse=True)
def keep_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not be what closes."""
    monkeypatch.setattr(serve, "KEEP_ALIVE_S", 1_000_000)


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the server has been given to read."""
    pieces: list[bytes] = []
    received = PunctualProtocol.data_received

    def data_received(self: PunctualProtocol, data: bytes) -> None:
        received(self, data)
        pieces.append(data)

    monkeypatch.setattr(PunctualProtocol, "data_received", data_received)
    return pieces


def read_all(sock: socket.socket) -> bytes:
    """What comes until the server closes."""
    sock.settimeout(PATIENCE)
    got = b""
    while part := sock.recv(65536):
        got += part
    return got


def answer(sock: socket.socket) -> tuple[bytes, bytes]:
    """Head and body of one answer with a length."""
    sock.settimeout(PATIENCE)
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


def silent(sock: socket.socket) -> bool:
    """Whether the server has neither said anything nor closed."""
    return not select.select([sock], [], [], 0)[0]


def later(server: Live, sock: socket.socket) -> bytes:
    """What comes when the limit is over; nothing may come shortly before."""
    server.clock.forward(NEARLY)
    assert silent(sock)
    server.clock.forward(LIMIT - NEARLY)
    return read_all(sock)


def trickle(server: Live, sock: socket.socket, data: bytes, refused: list[float]) -> None:
    """Sends byte by byte, for ever, and notes since when there is an answer."""
    for byte in itertools.cycle(data):
        sock.sendall(bytes([byte]))
        server.clock.forward(LIMIT / 20)
        refused += [] if silent(sock) else [server.clock.ahead]
        time.sleep(0.002 * len(refused))  # a system takes its time to say that nobody listens any more


def while_it_works(server: Live, sock: socket.socket) -> None:
    """Puts the clock forward, step by step, until there is something to read."""
    while silent(sock):
        server.clock.forward(LIMIT / 10)


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
def test_a_request_that_stops_half_way_is_given_up(part: bytes, before: bool, arrived: list[bytes]):
    engine = FakeEngine()
    with live(engine, CONFIG) as server, server.connect() as sock:
        if before:
            sock.sendall(WHOLE)
            assert b" 200 " in answer(sock)[0]
        sock.sendall(part)
        wait_for(lambda: b"".join(arrived) == WHOLE * before + part)
        check_refusal(later(server, sock))
        assert len(engine.requests) == before
        wait_for(lambda: server.server._lifecycle.in_flight == 0)
        body_began = len(part) >= len(HEAD)
        assert counted(server, "408") == body_began  # the application never hears of half a head


@pytest.mark.parametrize("what", [b"", b"\r\n"], ids=["nothing", "a blank line"])
def test_a_connection_on_which_no_request_begins_is_closed_without_a_word(what: bytes, arrived: list[bytes]):
    with live(FakeEngine(), CONFIG) as server, server.connect() as sock:
        sock.sendall(what)
        wait_for(lambda: server.server.server_state.connections)
        wait_for(lambda: b"".join(arrived) == what)
        assert later(server, sock) == b""


def test_blank_lines_after_an_answer_do_not_hold_the_connection(arrived: list[bytes]):
    with live(FakeEngine(), CONFIG) as server, server.connect() as sock:
        sock.sendall(WHOLE)
        assert b" 200 " in answer(sock)[0]
        sock.sendall(b"\r\n")
        wait_for(lambda: arrived[-1] == b"\r\n")
        assert later(server, sock) == b""


@pytest.mark.parametrize("at_once", [0, len(HEAD)], ids=["head", "body"])
def test_a_trickle_does_not_extend_the_time(at_once: int):
    with live(FakeEngine(), CONFIG) as server, server.connect() as sock:
        sock.sendall(WHOLE[:at_once])
        refused: list[float] = []
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            trickle(server, sock, WHOLE[at_once:-1], refused)
        assert NEARLY < refused[0] <= LIMIT * 1.1


def test_a_request_in_pieces_that_arrives_in_time_is_served():
    with live(FakeEngine(), CONFIG) as server, server.connect() as sock:
        for at in range(0, len(WHOLE), 40):
            sock.sendall(WHOLE[at : at + 40])
            server.clock.forward(NEARLY * 40 / len(WHOLE))
        assert b" 200 " in answer(sock)[0]


def test_long_answers_and_idle_kept_connections_are_left_alone():
    engine = FakeEngine(delay=LIMIT / 10)
    with live(engine, CONFIG) as server, server.connect() as sock:
        for _ in range(2):
            began = server.clock.ahead
            sock.sendall(raw_post(TEXT, LONG))
            while_it_works(server, sock)
            assert server.clock.ahead - began > 2 * LIMIT
            assert b" 200 " in answer(sock)[0]
            server.clock.forward(2 * LIMIT)
            assert silent(sock)


def test_a_slow_reader_gets_the_whole_stream():
    engine = FakeEngine(pieces=(5,))
    with live(engine, CONFIG) as server, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(PATIENCE)
        sock.connect(server.address)
        sock.sendall(raw_post(TEXT, SHORT | {"max_tokens": 400, "n": 20, "stream": True}))
        got = b""
        while b"[DONE]" not in got:
            got += sock.recv(10_000)
            server.clock.forward(LIMIT / 20)
        assert server.clock.ahead > 2 * LIMIT
        assert got.count(b'"finish_reason":"length"') == 20


@pytest.mark.parametrize("part", [WHOLE[:20], HEAD, WHOLE[:-1]], ids=["head", "no body", "body"])
def test_half_a_second_request_does_not_cut_the_answer_to_the_first(part: bytes):
    engine = FakeEngine(delay=LIMIT / 10)
    with live(engine, CONFIG) as server, server.connect() as sock:
        sock.sendall(raw_post(TEXT, LONG) + part)
        while_it_works(server, sock)
        assert b" 200 " in answer(sock)[0]
        check_refusal(later(server, sock))
        assert len(engine.requests) == 1


def test_a_second_request_that_waits_for_its_turn_is_not_late():
    """The server does not read on while it answers the first; its time begins with its turn."""
    engine = FakeEngine(delay=LIMIT / 10)
    second = raw_post(TEXT, SHORT | {"user": "x" * 3_000_000})
    with live(engine, CONFIG) as server, server.connect() as sock:
        sock.sendall(raw_post(TEXT, LONG) + second[:1000])
        sending = threading.Thread(target=sock.sendall, args=(second[1000:],))
        sending.start()
        while_it_works(server, sock)
        assert b" 200 " in answer(sock)[0]
        assert server.clock.ahead > 2 * LIMIT
        sending.join()
        wait_for(lambda: len(engine.requests) == 2)
        while_it_works(server, sock)
        assert b" 200 " in answer(sock)[0]


def test_the_rest_of_a_body_that_was_refused_early_is_not_waited_for():
    """The refusal of a body that is too large goes out before the body has arrived."""
    config = ServerConfig(port=0, arrival_timeout_s=LIMIT, max_body_bytes=1000)
    with live(FakeEngine(), config) as server, server.connect() as sock:
        sock.sendall(HEAD.replace(b"Content-Length: %d" % len(BODY), b"Content-Length: 1001"))
        wait_for(lambda: not silent(sock))
        server.clock.forward(LIMIT)
        got = read_all(sock)
        assert got.count(b"HTTP/1.1 ") == 1
        assert b" 413 " in got


def test_a_client_that_waits_for_leave_to_send_gets_it_and_then_has_its_time():
    leave = b"HTTP/1.1 100 Continue\r\n\r\n"
    with live(FakeEngine(), CONFIG) as server, server.connect() as sock:
        sock.sendall(HEAD.replace(b"Host:", b"Expect: 100-continue\r\nHost:"))
        sock.settimeout(PATIENCE)
        assert sock.recv(len(leave), socket.MSG_WAITALL) == leave
        check_refusal(later(server, sock))


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


def test_a_long_head_in_pieces_gets_431(arrived: list[bytes]) -> None:
    with live(FakeEngine(), ServerConfig(port=0)) as server, socket.create_connection(server.address) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nX-Long: ")
        wait_for(lambda: arrived)
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
def test_what_is_no_http_is_refused_in_the_shape_of_every_refusal(quiet, arrived: list[bytes], what: str, pieces: int):
    server, engine = quiet
    data = NO_HTTP[what]
    with server.connect() as sock:
        for part in [data] if pieces == 1 else [data[:20], data[20:]]:
            before = len(arrived)
            sock.sendall(part)
            wait_for(lambda before=before: len(arrived) > before)
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
