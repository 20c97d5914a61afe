"""The engine as seen from another process: `EngineApi` over ZeroMQ, with a keeper that restarts an engine that dies.

Runs on one asyncio loop. Knows nothing of HTTP, and never imports torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import zmq
import zmq.asyncio

from ..errors import BosquetError, EngineDied, ModelLoadError, Unavailable, rejection
from ..types import EngineState, ModelInfo, Output, Relaxed, Request, Stats
from . import wire
from .cache_view import Reuse, Tree
from .engine_spawn import EngineProcess
from .settings import EngineConfig
from .trace import Trace

T = TypeVar("T")

log = logging.getLogger("bosquet.client")

FIRST_RETRY_S, LAST_RETRY_S = 0.5, 30.0
"""An engine that dies is started again after this long, twice as long each time until one gets ready."""


class OutputStream:
    """The outputs of one accepted request, see `engine_api.Stream`."""

    def __init__(self, client: EngineClient, request_id: str, choices: int) -> None:
        self._client = client
        self._id = request_id
        self._unfinished = choices
        self._ready: deque[list[Output]] = deque()
        self._news = asyncio.Event()
        self._error: BosquetError | None = None
        self.relaxed: tuple[Relaxed, ...] = ()

    def feed(self, outputs: list[Output]) -> bool:
        """Take in outputs; True once every choice has finished."""
        self._ready.append(outputs)
        self._unfinished -= sum(output.finish is not None for output in outputs)
        self._news.set()
        return self._unfinished <= 0

    def fail(self, error: BosquetError) -> None:
        self._error = error
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[list[Output]]:
        while True:
            while self._ready:
                yield self._ready.popleft()
            if self._unfinished <= 0:
                return
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()

    async def cancel(self) -> None:
        self._unfinished = 0
        self._news.set()
        await self._client.forget(self._id)


class EngineClient:
    """`start` it, use it, `close` it."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._folder = Path(tempfile.mkdtemp(prefix="bosquet-"))
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._state: EngineState = "starting"
        self._info: ModelInfo | None = None
        self._found = asyncio.Event()  # its folder is known, or it has failed
        self._model_folder: str | None = None
        self._ready = asyncio.Event()  # ready or failed
        self._failure: str | None = None
        self._incarnation = 0
        self._accepting: dict[str, asyncio.Future[None]] = {}
        self._streams: dict[str, OutputStream] = {}
        self._asking: dict[int, asyncio.Future[Any]] = {}
        self.on_trace: Callable[[Trace], None] | None = None
        self._asked = 0
        self._keeper: asyncio.Task[None] | None = None
        self._first: EngineProcess | None = None
        self.pid: int | None = None

    def launch(self) -> None:
        """Start the first engine's process now, without a loop and before `start`, to gain time."""
        self._first = EngineProcess(self._config, self._folder, self._incarnation + 1)

    def abandon(self) -> None:
        """End what `launch` began, in case that `start` and `close` were not reached; else nothing happens."""
        if self._first is not None:
            self._first.kill()
            self._first = None
        self._discard()

    def start(self) -> None:
        """Start the engine in the background; returns at once."""
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def folder(self) -> Path:
        """Wait until the engine has found its model, before it loads it. Raises `ModelLoadError` if it never will."""
        await self._found.wait()
        if self._model_folder is None:
            await self.ready()
        assert self._model_folder is not None
        return Path(self._model_folder)

    async def ready(self) -> ModelInfo:
        """Wait until the engine is ready. Raises `ModelLoadError` if it never will be."""
        await self._ready.wait()
        if self._failure is not None:
            raise ModelLoadError(self._failure)
        return self.info

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def incarnation(self) -> int:
        return self._incarnation

    @property
    def info(self) -> ModelInfo:
        if self._info is None:
            raise Unavailable("the engine is not ready yet")
        return self._info

    async def submit(self, request: Request) -> OutputStream:
        if self._state != "ready" or self._socket is None:
            raise Unavailable(f"the engine is {self._state}")
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stream = OutputStream(self, request.id, request.sampling.n)
        self._accepting[request.id] = accepted
        self._streams[request.id] = stream
        try:
            await self._send(wire.Submit(request))
            await accepted
        except asyncio.CancelledError:
            await self.forget(request.id)
            raise
        except BosquetError:
            self._streams.pop(request.id, None)
            raise
        finally:
            self._accepting.pop(request.id, None)
        return stream

    async def forget(self, request_id: str) -> None:
        """Cancel a request that this client has sent; one that is over is left alone."""
        if self._streams.pop(request_id, None) is not None and self._state == "ready":
            await self._send(wire.Cancel(request_id))

    async def end_run(self, tenant: str, run: str) -> None:
        """No request of this run will come any more: what is kept for it may go. Unknown runs are ignored."""
        if self._state == "ready":
            await self._send(wire.EndRun(tenant, run))

    async def stats(self) -> Stats:
        return await self._ask(wire.AskStats, Stats)

    async def tree(self, tenant: str | None = None) -> Tree:
        return await self._ask(lambda token: wire.AskTree(token, tenant), Tree)

    async def reuse(self) -> Reuse:
        return await self._ask(wire.AskReuse, Reuse)

    async def _ask(self, question: Callable[[int], wire.ToEngine], answer: type[T]) -> T:
        """Ask the engine something that it answers between two steps."""
        if self._state != "ready":
            raise Unavailable(f"the engine is {self._state}")
        self._asked += 1
        token = self._asked
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._asking[token] = reply
        try:
            await self._send(question(token))
            found = await reply
            assert isinstance(found, answer)
            return found
        finally:
            self._asking.pop(token, None)

    async def close(self) -> None:
        """End the engine and everything under way."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        self._lose(EngineDied("the engine was closed"))
        self._state = "failed"
        self._discard()

    def _discard(self) -> None:
        self._context.destroy(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)

    # ---- the keeper ------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Run engines, one after another, until closed or until the first cannot start at all."""
        retry = FIRST_RETRY_S
        while True:
            self._incarnation += 1
            code, was_ready = await self._run_engine()
            if self._info is None:  # what fails at the first start fails again
                self._failure = self._failure or f"the engine ended with code {code} before it was ready"
                self._state = "failed"
                self._found.set()
                self._ready.set()
                return
            self._state = "restarting"
            self._lose(EngineDied("the engine process ended while it held this request"))
            retry = FIRST_RETRY_S if was_ready else min(2 * retry, LAST_RETRY_S)
            log.error("engine %d ended with code %d; next start in %.1f s", self._incarnation, code, retry)
            await asyncio.sleep(retry)

    async def _run_engine(self) -> tuple[int, bool]:
        """One engine from start to end; returns its exit code and whether it ever got ready."""
        process, self._first = self._first, None
        if process is None:
            process = EngineProcess(self._config, self._folder, self._incarnation)
        self.pid = process.pid
        socket = self._context.socket(zmq.DEALER)
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            socket.setsockopt(option, 0)
        socket.connect(process.address)
        self._socket = socket
        reader = asyncio.create_task(self._read(socket))
        try:
            await socket.send(wire.encode(wire.Join()))
            code = await process.ended()
            await asyncio.sleep(0.05)  # its last words may still be in the socket
            return code, self._state == "ready"
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
            self._socket = None
            socket.close()
            await process.close()

    async def _read(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            self._handle(wire.decode_from_engine(await socket.recv()))

    def _handle(self, message: wire.FromEngine) -> None:
        match message:
            case wire.Outputs(incarnation, outputs, traces):
                if incarnation == self._incarnation:
                    if self.on_trace is not None:
                        for trace in traces:
                            self.on_trace(trace)
                    self._dispatch(outputs)
            case wire.Accepted(request_id, relaxed):
                if request_id in self._streams:
                    self._streams[request_id].relaxed = relaxed
                _settle(self._accepting.get(request_id), None)
            case wire.Rejected(request_id, code, text, field):
                _fail(self._accepting.get(request_id), rejection(code, text, field))
            case wire.StatsReply(token, found) | wire.TreeReply(token, found) | wire.ReuseReply(token, found):
                _settle(self._asking.get(token), found)
            case wire.Found(folder):
                self._model_folder = folder
                self._found.set()
            case wire.Hello(incarnation, info):
                if incarnation == self._incarnation:
                    self._info = info
                    self._state = "ready"
                    self._model_folder = info.folder
                    self._found.set()
                    self._ready.set()
            case wire.Failed(text):
                self._failure = text

    def _dispatch(self, outputs: list[Output]) -> None:
        news: dict[str, list[Output]] = {}
        for output in outputs:
            news.setdefault(output.request, []).append(output)
        for request_id, theirs in news.items():
            stream = self._streams.get(request_id)
            if stream is not None and stream.feed(theirs):
                del self._streams[request_id]

    def _lose(self, error: BosquetError) -> None:
        """Tell everyone who waits for this engine that it is gone."""
        for stream in self._streams.values():
            stream.fail(error)
        for accepted in self._accepting.values():
            _fail(accepted, error)
        for reply in self._asking.values():
            _fail(reply, error)
        self._streams.clear()

    async def _send(self, message: wire.ToEngine) -> None:
        if self._socket is None:
            raise Unavailable(f"the engine is {self._state}")
        await self._socket.send(wire.encode(message))


def _settle(future: asyncio.Future[T] | None, value: T) -> None:
    if future is not None and not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T] | None, error: BosquetError) -> None:
    if future is not None and not future.done():
        future.set_exception(error)
