"""The engine requests behind one HTTP request, seen as one flow of deltas.

Streaming sends the deltas, not streaming folds them: both say the same because they read the same flow. Knows nothing
of the JSON shapes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from ...errors import BosquetError, DeadlineExceeded, GrammarInvalid, PromptTooLong, RequestRejected
from ...grammar.tools.base import Event, TextDelta
from ...types import FinishReason, Output, Relaxed, Request, StopMatch, TokenLogprob
from ..engine_api import EngineApi, Stream
from .account import Account, Counted, Rendered
from .conversations import Joined
from .errors import failure, named
from .inspection import Inspection
from .places import Places
from .reading import Reader, Stopped
from .record import Record
from .scribe import Scribe
from .services import Services
from .wire import CompletionDetails, PromptDetails, Usage

GRACE_S = 5.0
"""The engine ends a request whose time is over. Should it not, the server does, so much later."""


class Delta(NamedTuple):
    """What one step added to one choice. `choice` counts over all prompts: prompt number · n + choice."""

    choice: int
    events: list[Event]
    tokens: list[int]
    logprobs: list[TokenLogprob] | None  # without the end token, which is no part of the text
    finish: FinishReason | None
    stop_reason: str | int | None
    prompt_logprobs: list[TokenLogprob] | None

    @property
    def text(self) -> str:
        """What it adds to the answer's text."""
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))


class FieldNames(NamedTuple):
    """Which fields of the body to name when the engine refuses the prompt or the grammar without naming one."""

    prompt: str
    grammar: Places


class _Choice:
    """One choice under way."""

    __slots__ = ("count", "finished", "first", "last", "reader", "sent")

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.count = 0
        self.sent: int | None = None  # of these, so many have been sent; None: the answer is no stream
        self.first = 0.0
        self.last = 0.0
        self.finished = False


class Generation:
    """Submits one engine request per prompt, yields their deltas, counts usage, and cancels what is left on `close`."""

    def __init__(
        self,
        services: Services,
        requests: Sequence[Request],
        fields: FieldNames,
        record: Record,
        reader: Callable[[], Reader],
        inspection: Inspection | None = None,
        scribe: Scribe | None = None,
        joined: Joined | None = None,
        told: Rendered | None = None,
    ) -> None:
        self.requests = requests
        self.prompt_tokens = sum(len(request.ids) for request in requests)
        self._engine = services.engine
        self._metrics = services.metrics
        self._fields = fields
        self.n = requests[0].sampling.n
        self._choices = [_Choice(reader()) for _ in range(len(requests) * self.n)]
        self.relaxed: tuple[Relaxed, ...] = ()
        self._inspection = inspection
        self.scribe = scribe
        self.joined = joined
        self._cached: dict[int, int] = {}  # by position of the request, once it has said so
        self._streams: list[Stream] = []
        self._arrival = record.arrival
        self._first_token = 0.0
        self._limit = requests[0].timeout_s
        self._account = Account(services, record, requests, told)
        self._failure: BosquetError | None = None

    @property
    def usage(self) -> Usage:
        """Tokens so far, over all prompts and choices; the end token counts as generated. Of a stream that was closed
        before its end, those that had been sent."""
        generated, cached = sum(choice.count for choice in self._choices), sum(self._cached.values())
        thought = [choice.reader.reasoning_tokens for choice in self._choices]
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=generated,
            total_tokens=self.prompt_tokens + generated,
            prompt_tokens_details=PromptDetails(cached, (self.scribe and self.scribe.carried) or UNSET),
            completion_tokens_details=(
                UNSET if None in thought else CompletionDetails(sum(count or 0 for count in thought))
            ),
        )

    async def start(self) -> None:
        """Returns once the engine has accepted all; raises, and leaves none behind, when it refuses one."""
        try:
            async with self.deadline():
                for request in self.requests:
                    self._streams.append(await self._submitted(request))
            # All have the same grammar.
            self.relaxed = self._fields.grammar.reported(self._streams[0].relaxed)
            for entry in self.relaxed:
                self._metrics.count_relaxed(entry.keyword)
            if self._inspection is not None:
                self._inspection.relaxed = self._streams[0].relaxed
        except BaseException as error:
            self._failed(error)
            await self.close()
            if isinstance(error, RequestRejected):
                raise self._named(error) from error
            raise

    async def _submitted(self, request: Request) -> Stream:
        self._account.begin(request)
        try:
            return await _submit(self._engine, request)
        except BosquetError:
            self._account.refused(request)
            raise

    async def deltas(self) -> AsyncGenerator[list[Delta], None]:
        """The deltas of each step. Raises what ended a choice early: DeadlineExceeded, EngineDied, …"""
        try:
            async with aclosing(self._steps()) as flow:
                async for deltas in flow:
                    yield deltas
        except BosquetError as error:
            self._failed(error)
            raise

    async def _steps(self) -> AsyncGenerator[list[Delta], None]:
        async with aclosing(_merged(self._streams)) as flow:
            async for position, outputs in flow:
                deltas = [self._delta(position, output) for output in outputs]
                yield [delta for delta in deltas if delta is not None]
                if all(choice.finished for choice in self._choices):
                    break
        await self._stop_engine()
        for choice in self._choices:
            if choice.count > 1:
                self._metrics.tpot.observe((choice.last - choice.first) / (choice.count - 1))
        self._metrics.e2e.observe(time.perf_counter() - self._arrival)
        self._settle()

    @asynccontextmanager
    async def deadline(self) -> AsyncIterator[None]:
        """Bounds what is inside in time, should the engine fail to. Raises DeadlineExceeded."""
        try:
            async with asyncio.timeout(None if self._limit is None else self._limit + GRACE_S):
                yield
        except TimeoutError:
            late = DeadlineExceeded("the request's time is over, and the engine did not end it")
            self._failed(late)
            raise late from None

    def sent(self) -> None:
        """Events have been sent that tell all that has come so far. Nobody says so of an answer that is no stream."""
        for choice in self._choices:
            choice.sent = choice.count

    async def close(self) -> None:
        """Cancel what has not ended. Safe to call at any time, and more than once."""
        try:
            if not all(choice.finished for choice in self._choices):
                for choice in self._choices:
                    choice.count = choice.count if choice.sent is None else choice.sent
                await self._cancel()
        finally:
            self._settle()

    def _failed(self, error: BaseException) -> None:
        if self._failure is None and isinstance(error, BosquetError):
            self._failure = error

    def _settle(self) -> None:
        """The answer is over, one way or another."""
        counted = []
        for position in range(len(self.requests)):
            cached = self._cached.get(position, 0)
            choices = self._choices[position * self.n : (position + 1) * self.n]
            first = min((choice.first for choice in choices if choice.count), default=None)
            counted.append(Counted(cached, sum(choice.count for choice in choices), first))
        self._account.over(counted, self._failure, whole=all(choice.finished for choice in self._choices))

    async def _stop_engine(self) -> None:
        """Where a reader has stopped a choice, the engine does not know."""
        if any(choice.reader.stopped is not None for choice in self._choices):
            await self._cancel()

    async def _cancel(self) -> None:
        streams, self._streams = self._streams, []
        if streams:
            await asyncio.shield(_cancel_all(streams))

    def _delta(self, position: int, output: Output) -> Delta | None:
        """None for what comes after a choice has been stopped here."""
        choice = self._choices[position * self.n + output.choice]
        if choice.finished:
            return None
        if output.finish in ("error", "abort"):
            error = failure(output)
            raise self._named(error) if isinstance(error, RequestRejected) else error
        index = position * self.n + output.choice
        events = choice.reader.push(output.tokens, output.finish, output.stop)
        if choice.reader.stopped is not None:
            output = _ended(output, choice.reader.stopped)
        # Further choices reuse what the first computed.
        self._cached[position] = min(self._cached.get(position, output.cached_tokens), output.cached_tokens)
        if output.tokens:
            choice.last = time.perf_counter()
            if not choice.count:
                choice.first = choice.last
            if not self._first_token:
                self._first_token = choice.last
                self._metrics.ttft.observe(choice.last - self._arrival)
            choice.count += len(output.tokens)
            self._account.said(index, output.tokens)
        choice.finished = output.finish is not None
        stop = output.stop
        logprobs = output.logprobs
        if logprobs is not None and stop is not None and stop.token is not None:
            logprobs = logprobs[:-1]
        if self._inspection is not None:
            self._inspection.see(index, events, output)
        if self.scribe is not None:
            self.scribe.see(index, events, output)
        if self.joined is not None and self.joined.listener is not None:
            self.joined.listener.see(index, events, output)
        return Delta(
            choice=index,
            events=events,
            tokens=output.tokens,
            logprobs=logprobs,
            finish=output.finish,
            stop_reason=None if stop is None else stop.text if stop.text is not None else stop.token,
            prompt_logprobs=output.prompt_logprobs,
        )

    def _named(self, error: RequestRejected) -> RequestRejected:
        if isinstance(error, PromptTooLong):
            return named(error, self._fields.prompt)
        if isinstance(error, GrammarInvalid) and error.field is None:
            field, message = self._fields.grammar.blame(str(error))
            return GrammarInvalid(message) if field is None else named(GrammarInvalid(message), field)
        return error


def _ended(output: Output, stopped: Stopped) -> Output:
    """As the engine would have ended it, had it known."""
    tokens, logprobs = output.tokens[: stopped.tokens], output.logprobs and output.logprobs[: stopped.tokens]
    return replace(output, tokens=tokens, logprobs=logprobs, finish="stop", stop=StopMatch(text=stopped.text))


_background: set[asyncio.Task[None]] = set()  # the loop holds tasks weakly


async def _submit(engine: EngineApi, request: Request) -> Stream:
    """As `engine.submit`; if the caller is cancelled meanwhile, the request is cancelled once it has been accepted."""
    task = asyncio.ensure_future(engine.submit(request))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        cleanup = asyncio.create_task(_abandon(task))
        _background.add(cleanup)
        cleanup.add_done_callback(_background.discard)
        raise


async def _abandon(task: asyncio.Task[Stream]) -> None:
    with suppress(BosquetError):  # refused: there is nothing to cancel, and nobody to tell
        stream = await task
        await stream.cancel()


async def _cancel_all(streams: Sequence[Stream]) -> None:
    for stream in streams:
        with suppress(BosquetError):  # an engine that is gone holds nothing any more
            await stream.cancel()


async def _merged(streams: Sequence[Stream]) -> AsyncGenerator[tuple[int, list[Output]], None]:
    """The steps of all streams as they come, each with its stream's position."""
    if len(streams) == 1:  # the usual case needs no queue
        async for outputs in streams[0]:
            yield 0, outputs
        return
    queue: asyncio.Queue[tuple[int, list[Output]] | Exception | None] = asyncio.Queue()

    async def pump(position: int, stream: Stream) -> None:
        try:
            async for outputs in stream:
                queue.put_nowait((position, outputs))
            queue.put_nowait(None)
        except Exception as error:  # whatever it is, it is raised again where the steps are read
            queue.put_nowait(error)

    tasks = [asyncio.create_task(pump(position, stream)) for position, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            item = await queue.get()
            if item is None:
                left -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
