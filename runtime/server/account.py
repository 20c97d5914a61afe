"""What is kept of the engine requests behind one HTTP request: begun before they are sent, ended with the answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import asdict, replace

from ...errors import BosquetError, EngineDied
from ...grammar.tools import Tool
from ...types import Request, SamplingParams, Segment
from ..trace import Trace
from .errors import CLIENT_GONE, answer_for
from .explain_prompt import Told, told_tools
from .message_parts import message_parts
from .record import Record
from .services import Services, Tokenizer
from .trace_records import Captured, Part, RequestRecord

_PLAIN = SamplingParams()
_TOLD = (
    "temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "seed", "max_tokens", "n", "ignore_eos",
)  # fmt: skip


class Rendered(NamedTuple):
    """A conversation, as templates know it, and what the template made of it."""

    messages: Sequence[Mapping[str, Any]]
    segments: Sequence[Segment]
    tools: Sequence[Tool] = ()


class Counted(NamedTuple):
    """Of one engine request: tokens, as the answer's usage has them, and when the first came."""

    cached: int
    generated: int
    first_token: float | None


class Account:
    """Of one generation."""

    def __init__(self, services: Services, record: Record, requests: Sequence[Request], told: Rendered | None) -> None:
        self._book = services.book
        self._explainer = services.explainer
        self._capture = services.config.capture_text
        self._text = services.text
        self._model = services.model_name(services.text.get())
        self._record = record
        self._requests = requests
        self._told = told
        self._said: list[list[int]] = [[] for request in requests for _ in range(request.sampling.n)]
        self._records: dict[str, RequestRecord] = {}

    def begin(self, request: Request) -> None:
        """It is about to be sent."""
        record, origin = self._record, request.origin
        entry = self._records[request.id] = RequestRecord(
            id=request.id,
            request_id=record.id,
            tenant=origin.tenant,
            program=origin.program,
            run=origin.run,
            step=origin.step,
            branch=origin.branch,
            route=record.route,
            model=self._model,
            stream=record.stream,
            arrival=time.time() - (time.perf_counter() - record.arrival),
            prompt_tokens=len(request.ids),
            params=_params(request.sampling),
            traceparent=record.context.traceparent,
            parent_span=record.context.parent,
        )
        position = self._requests.index(request)

        def complete(found: RequestRecord) -> None:
            self._complete(found, position)

        self._book.begin(entry, complete)
        if self._book.sinks:
            self._explainer.remember(request, _told(self._told))

    def refused(self, request: Request) -> None:
        """The engine did not take it."""
        self._book.refused(request.id)
        self._records.pop(request.id, None)

    def said(self, choice: int, tokens: Sequence[int]) -> None:
        """What a step has added to an answer. `choice` counts over all requests."""
        if self._capture:
            self._said[choice] += tokens

    def over(self, counted: Sequence[Counted], error: BaseException | None, *, whole: bool) -> None:
        """The answer has ended; `whole`: as it should. Said again, it changes nothing."""
        records, self._records = self._records, {}
        for request, count in zip(self._requests, counted, strict=True):
            entry = records.get(request.id)
            if entry is None:
                continue
            entry.status, entry.error = _how(error, whole)
            entry.stream = self._record.stream
            entry.seconds = time.perf_counter() - self._record.arrival
            entry.cached_tokens, entry.completion_tokens = count.cached, count.generated
            if count.first_token is not None:
                entry.first_token = count.first_token - self._record.arrival
            self._book.over(request.id, lost=isinstance(error, EngineDied))

    def _complete(self, entry: RequestRecord, position: int) -> None:
        """In a thread."""
        request, tokenizer = self._requests[position], self._text.get().tokenizer
        entry.parts = _parts(self._told, request.ids, tokenizer)
        if entry.engine is not None:
            engine, told = entry.engine, _told(self._told)
            if not self._capture:
                entry.engine = _without_ids(engine)  # first: they go, whatever comes of the rest
            entry.cache = self._explainer.explain(engine, request.ids, told, tokenizer, capture=self._capture)
        if self._capture:
            first = position * request.sampling.n
            said = self._said[first : first + request.sampling.n]
            entry.text = Captured(
                tokenizer.decode(request.ids, skip_special=False, at_start=True),
                [tokenizer.decode(tokens, skip_special=False) for tokens in said],
            )


def _without_ids(engine: Trace) -> Trace:
    """Ids are text to whoever has the tokenizer."""
    choices = [
        choice if choice.miss is None else replace(choice, miss=replace(choice.miss, ours=(), theirs=()))
        for choice in engine.choices
    ]
    return replace(engine, choices=choices)


def _params(sampling: SamplingParams) -> dict[str, Any]:
    """What is not as it would be anyway."""
    given = asdict(sampling)
    return {name: given[name] for name in _TOLD if given[name] != getattr(_PLAIN, name) or name == "max_tokens"}


def _how(error: BaseException | None, whole: bool) -> tuple[int, str | None]:
    """The status of the answer, and what went wrong."""
    if isinstance(error, BosquetError):
        return answer_for(error).status, error.code
    if whole and error is None:
        return 200, None
    if error is None or isinstance(error, asyncio.CancelledError | GeneratorExit):
        return CLIENT_GONE, "client_gone"
    return 500, "internal_error"


def _told(rendered: Rendered | None) -> Told:
    """The messages and tools that a prompt was made of."""
    if rendered is None:
        return Told()
    return Told(rendered.messages, told_tools(rendered.tools))


def _parts(told: Rendered | None, ids: Sequence[int], tokenizer: Tokenizer) -> list[Part]:
    if told is None:
        return [Part(0, "prompt", 0, len(ids))]
    rendered = "".join(segment.text for segment in told.segments)
    return message_parts(told.messages, rendered, ids, lambda token: len(tokenizer.bytes_of(token)))
