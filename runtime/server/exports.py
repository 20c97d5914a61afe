"""Records as files: JSON lines, and the trace-event format that Perfetto and Chrome open.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event Format). Knows no store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from ..trace import ChoiceTrace, Prefill
from .trace_records import RequestRecord, cause, origins

Records = AsyncIterator[RequestRecord]
Event = dict[str, Any]


class Form(NamedTuple):
    """One kind of file."""

    suffix: str
    media_type: str
    write: Callable[[Records], AsyncIterator[bytes]]


async def json_lines(records: Records) -> AsyncIterator[bytes]:
    """One record a line, as `GET /v1/requests/{id}` has it."""
    async for record in records:
        yield msgspec.json.encode(record) + b"\n"


async def perfetto(records: Records) -> AsyncIterator[bytes]:
    """A process for each run, a thread for each choice of a request; slices for what its time went into."""
    runs: dict[tuple[str, str, str], int] = {}
    threads = 0
    yield b'{"displayTimeUnit":"ms","traceEvents":['
    first = True
    async for record in records:
        key = (record.tenant, record.program, record.run)
        events: list[Event] = []
        if key not in runs:
            runs[key] = len(runs) + 1
            events.append(_named("process_name", runs[key], 0, _run_name(record)))
        for choice in record.engine.choices if record.engine is not None else [None]:
            threads += 1
            events.append(_named("thread_name", runs[key], threads, _thread_name(record, choice)))
            events += _slices(record, choice, runs[key], threads)
        body = b",".join(map(msgspec.json.encode, events))
        yield body if first else b"," + body
        first = False
    yield b"]}\n"


EXPORTS = {
    "jsonl": Form("jsonl", "application/x-ndjson", json_lines),
    "perfetto": Form("json", "application/json", perfetto),
}


def _named(what: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "ts": 0, "args": {"name": name}}


def _run_name(record: RequestRecord) -> str:
    names = [name for name in (record.tenant, record.program, record.run) if name]
    return " · ".join(names) or "requests"


def _thread_name(record: RequestRecord, choice: ChoiceTrace | None) -> str:
    name = " ".join(part for part in (record.step, record.branch) if part) or record.id
    return f"{name} #{choice.choice}" if choice is not None and choice.choice else name


def _slices(record: RequestRecord, choice: ChoiceTrace | None, process: int, thread: int) -> Iterator[Event]:
    """Slices of a thread must lie within or beside each other, or viewers drop them. So the whole is as long as its
    parts on whichever clock, passes are cut where they overlap, and times are whole microseconds."""

    def piece(name: str, start: float, end: float, **args: Any) -> Event:
        return {
            "ph": "X", "cat": "request", "name": name, "pid": process, "tid": thread,
            "ts": _microseconds(start), "dur": max(0, _microseconds(end) - _microseconds(start)), "args": args,
        }  # fmt: skip

    tokens = origins(record)
    begun, over = record.arrival, record.arrival + record.seconds
    if choice is not None and record.engine is not None:
        begun, over = min(begun, record.engine.arrival), max(over, record.engine.arrival + choice.ended)
    yield piece(
        record.route.rpartition("/")[2] or "request",
        begun,
        over,
        id=record.id,
        status=record.status,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        completion_tokens=record.completion_tokens,
        forced=tokens.forced,
        drafted=tokens.drafted,
        sampled=tokens.sampled,
        miss=cause(record),
    )
    if choice is None or record.engine is None:
        return
    base = record.engine.arrival
    admitted = choice.ended if choice.admitted is None else choice.admitted
    first = choice.ended if choice.first_token is None else choice.first_token
    yield piece("prepare", begun, base)
    yield piece("queue", base, base + admitted, match_ms=choice.match_seconds * 1e3)
    if choice.admitted is not None:
        yield piece("prefill", base + admitted, base + first, cached=choice.cached, computed=choice.computed)
        for part, start, end in _passes(choice, admitted, first):
            yield piece("pass", base + start, base + end, tokens=part.tokens)
    if choice.first_token is not None:
        yield piece(
            "decode",
            base + first,
            base + choice.ended,
            tokens=choice.generated,
            passes=choice.decodes,
            mask_ms=choice.mask_seconds * 1e3,
            preemptions=choice.preemptions,
            drafts={source: {"reached": all_, "right": right} for source, (all_, right) in choice.drafts.items()},
        )


def _passes(choice: ChoiceTrace, since: float, until: float) -> Iterator[tuple[Prefill, float, float]]:
    """Those of the prefill, with what each has of the time for itself; the others are those after a preemption."""
    for part in choice.prefills:
        if part.at < until:
            start = max(part.at, since)
            since = max(start, min(part.at + part.seconds, until))
            yield part, start, since


def _microseconds(moment: float) -> int:
    return round(moment * 1e6)
