"""The engine process: one engine behind one ZeroMQ socket.

Receives requests, checks them, compiles their grammars in threads, runs the engine's loop and sends one message a step
and client. Sleeps when there is nothing to do. Ends when its parent closes the lifeline, or dies.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from ..errors import BosquetError, ConfigError, GrammarInvalid, ModelLoadError, Overloaded, RequestRejected
from ..grammar.base import Compiled
from ..types import ModelInfo, Output, Request
from . import wire
from .compile_threads import CompileThreads, Job
from .heap import give_back, limit_heaps
from .settings import EngineConfig
from .trace import Trace

if TYPE_CHECKING:
    from ..grammar.compiler import GrammarCompiler
    from .engine import Engine


class Launch(msgspec.Struct):
    """What the parent tells on the command line, as JSON."""

    address: str
    incarnation: int
    lifeline: int  # read end of a pipe that the parent holds open as long as it lives
    config: dict[str, Any]


@dataclass(slots=True)
class Compiling:
    """A request that waits for its grammar."""

    client: bytes
    request: Request
    job: Job[Any]
    deadline: float


TIDIES_EVERY_S = 10.0
"""How often freed memory goes back to the system, which takes some milliseconds."""

LOOKS_AGAIN_MS = 5
"""How often requests that wait for other runs are looked at."""

JOINS_WITHIN_S = 30.0
"""What a loaded machine may need for the parent's imports."""


class Service:
    """Moves messages between the socket and the engine."""

    def __init__(self, socket: zmq.Socket[bytes], lifeline: int, incarnation: int) -> None:
        self._socket = socket
        self._lifeline = lifeline
        self._incarnation = incarnation
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK)
        self._poller = zmq.Poller()
        for source in (socket, lifeline, self._wakeup):
            self._poller.register(source, zmq.POLLIN)
        self._joined: list[bytes] = []
        self._clients: dict[str, bytes] = {}  # request → who asked
        self._compiling: dict[str, Compiling] = {}
        self._threads: CompileThreads[Any] = CompileThreads(lambda: os.eventfd_write(self._wakeup, 1))

    def serve(self, engine: Engine, info: ModelInfo, config: EngineConfig, compiler: Future[GrammarCompiler]) -> None:
        """Answer those who have joined; run until the parent is gone."""
        self._engine = engine
        self._info = info
        self._grammar_timeout = config.grammar_timeout_s
        self._compiler = compiler
        for client in self._joined:
            self._send(client, wire.Hello(self._incarnation, info))
        checked = True
        tidied = time.monotonic()
        while self._receive(self._sleep_ms()):
            self._settle_grammars()
            if time.monotonic() - tidied > TIDIES_EVERY_S:
                give_back()
                tidied = time.monotonic()
            if engine.idle:
                if not checked:
                    engine.check_integrity()
                    checked = True
                continue
            checked = False
            outputs = engine.step()
            if outputs:
                self._send_outputs(outputs, engine.take_traces())

    def in_thread(self, make: Callable[[], Any]) -> Future[Any]:
        return self._threads.submit(make, make).future

    def _sleep_ms(self) -> int | None:
        """How long the engine may sleep: not while it computes; idle, for ever or until a compile runs out of time."""
        if not self._engine.idle:
            return LOOKS_AGAIN_MS if self._engine.waits else 0
        if not self._compiling:
            return None
        soonest = min(c.deadline for c in self._compiling.values())
        return max(1, int(1000 * (soonest - time.monotonic())) + 1)

    def _receive(self, timeout_ms: int | None) -> bool:
        """Take in every message that is there; False once the parent is gone."""
        ready = dict(self._poller.poll(timeout_ms))
        if self._lifeline in ready:
            return False
        if self._wakeup in ready:
            os.eventfd_read(self._wakeup)
        if self._socket in ready:
            while True:
                try:
                    client, body = self._socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                self._handle(client, body)
        return True

    def _handle(self, client: bytes, body: bytes) -> None:
        match wire.decode_to_engine(body):
            case wire.Join():
                self._send(client, wire.Hello(self._incarnation, self._info))
            case wire.Submit(request):
                self._take(client, request)
            case wire.Cancel(request_id):
                if self._compiling.pop(request_id, None) is None:
                    self._engine.cancel(request_id)
                self._send_outputs([], self._engine.take_traces())
                self._clients.pop(request_id, None)
            case wire.EndRun(tenant, run):
                self._engine.end_run(tenant, run)
            case wire.AskStats(token):
                stats = self._engine.stats()
                stats.incarnation = self._incarnation
                self._send(client, wire.StatsReply(token, stats))
            case wire.AskTree(token, tenant):
                self._send(client, wire.TreeReply(token, self._engine.tree(tenant)))
            case wire.AskReuse(token):
                self._send(client, wire.ReuseReply(token, self._engine.reuse()))

    # ---- requests --------------------------------------------------------------------------------------------------

    def _take(self, client: bytes, request: Request) -> None:
        spec = request.grammar
        try:
            self._engine.check(request)
            if request.id in self._compiling:
                raise RequestRejected("a request with this id is waiting", "id")
            found = self._compiler.result().find(spec) if spec is not None and self._compiler.done() else None
        except (RequestRejected, Overloaded) as error:
            self._reject(client, request.id, error)
            return
        if spec is None or found is not None:
            self._accept(client, request, found)
            return
        job = self._threads.submit(spec, lambda: self._compiler.result().compile(spec))
        if job.abandoned:
            self._reject(client, request.id, self._too_slow())
            return
        self._compiling[request.id] = Compiling(client, request, job, time.monotonic() + self._grammar_timeout)

    def _settle_grammars(self) -> None:
        if not self._compiling:
            return
        now = time.monotonic()
        for waiting in list(self._compiling.values()):
            if waiting.job.future.done():
                del self._compiling[waiting.request.id]
                try:
                    self._engine.check(waiting.request)
                    self._accept(waiting.client, waiting.request, waiting.job.future.result())
                except (RequestRejected, Overloaded) as error:
                    self._reject(waiting.client, waiting.request.id, error)
                except Exception as error:  # a fault of a grammar engine is this request's, not that of all others
                    print(f"bosquet: compiling a grammar failed: {error!r}", file=sys.stderr)
                    self._reject(waiting.client, waiting.request.id, BosquetError("the grammar could not be compiled"))
            elif now > waiting.deadline:
                del self._compiling[waiting.request.id]
                self._reject(waiting.client, waiting.request.id, self._late(waiting.job, now))

    def _late(self, job: Job[Any], now: float) -> BosquetError:
        """Why a request has waited in vain: its grammar took too long, or those before it did."""
        if job.began is None or now - job.began < self._grammar_timeout / 2:
            if not any(waiting.job is job for waiting in self._compiling.values()):
                self._threads.abandon(job)
            return Overloaded("other grammars are being compiled", retry_after=1.0)
        self._threads.abandon(job)
        return self._too_slow()

    def _too_slow(self) -> GrammarInvalid:
        return GrammarInvalid(f"compiling took more than {self._grammar_timeout:g} s")

    def _accept(self, client: bytes, request: Request, grammar: Compiled | None) -> None:
        self._engine.add(request, grammar)
        self._clients[request.id] = client
        self._send(client, wire.Accepted(request.id, () if grammar is None else grammar.relaxed))

    def _reject(self, client: bytes, request_id: str, error: BosquetError) -> None:
        field = error.field if isinstance(error, RequestRejected) else None
        self._send(client, wire.Rejected(request_id, error.code, str(error), field))

    # ---- answers ---------------------------------------------------------------------------------------------------

    def _send_outputs(self, outputs: list[Output], traces: list[Trace]) -> None:
        by_client: dict[bytes, wire.Outputs] = {}
        for output in outputs:
            client = self._clients.get(output.request)
            if client is not None:
                if client not in by_client:
                    by_client[client] = wire.Outputs(self._incarnation, [])
                by_client[client].outputs.append(output)
        for trace in traces:
            client = self._clients.get(trace.request)
            if client is not None:
                by_client.setdefault(client, wire.Outputs(self._incarnation, [])).traces.append(trace)
        for client, news in by_client.items():
            self._send(client, news)
        for output in outputs:
            if output.finish is not None and not self._engine.has(output.request):
                self._clients.pop(output.request, None)

    def _send(self, client: bytes, message: wire.FromEngine) -> None:
        self._socket.send_multipart((client, wire.encode(message)))

    # ---- before there is an engine ---------------------------------------------------------------------------------

    def found(self, folder: Path) -> None:
        """Tell those who have joined by now where the model lies."""
        self._await_joins(0)
        for client in self._joined:
            self._send(client, wire.Found(str(folder)))

    def fail(self, message: str) -> bool:
        """Tell those who have joined that there will be no engine. The parent may still be starting, and joins then.
        False: nobody has."""
        deadline = time.monotonic() + JOINS_WITHIN_S
        self._await_joins(0)
        while not self._joined and time.monotonic() < deadline and self._lifeline not in dict(self._poller.poll(100)):
            self._await_joins(0)
        for client in self._joined:
            self._send(client, wire.Failed(message))
        return bool(self._joined)

    def _await_joins(self, timeout_ms: int) -> None:
        """Clients send nothing else before they have had `Hello`."""
        while self._socket.poll(timeout_ms):
            client, _ = self._socket.recv_multipart()
            self._joined.append(client)
            timeout_ms = 0


def main() -> None:
    """Entry of the process; the only argument is a `Launch` in JSON."""
    gc.disable()  # of all that is made while loading nearly nothing is garbage, and looking for it takes an eighth
    launch = msgspec.json.decode(sys.argv[1], type=Launch)
    for number in (signal.SIGINT, signal.SIGTERM):  # they may be sent to the whole group; the parent lets us end
        signal.signal(number, signal.SIG_IGN)
    limit_heaps(large_apart=False)
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 500)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.bind(launch.address)
    service = Service(socket, launch.lifeline, launch.incarnation)
    from .assembly import assemble  # brings torch, whose import takes longest: now clients can join

    try:
        engine, info, config, make_compiler = assemble(EngineConfig(**launch.config), service.found)
    except (ModelLoadError, ConfigError) as error:
        if not service.fail(str(error)):
            print(f"bosquet: {error}", file=sys.stderr)
        sys.exit(2)
    gc.freeze()  # what is loaded stays: later collections need not look at it
    gc.enable()
    service.serve(engine, info, config, service.in_thread(make_compiler))
    engine.close()
    os._exit(0)  # without waiting for a compile that may still run in a thread


if __name__ == "__main__":
    main()
