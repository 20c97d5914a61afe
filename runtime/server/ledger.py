"""What programs and runs have cost and saved, from the records of their requests. Pure sums; knows no store.

A run is a list of calls with a begin and an end. While none is under way, it waits for a tool (or for a person). The
critical path is the chain of calls, each begun after the one before had ended, that leads to the call that ended last:
what is beside it ran at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from .errors import CLIENT_GONE
from .trace_ring import Call

By = Literal["program", "run"]

TOUCHES_S = 0.001
"""A call that begins so much before another's end still comes after it: clocks are read on both sides of a socket."""


class LedgerLine(Struct, kw_only=True):
    """The sums of a program or of a run. Times are seconds, moments Unix time.

    `computed_tokens` went through the model for the prompts; `saved_seconds` is what the cached ones would have taken
    at the pace of long prompts at that time. `busy_seconds` have at least one call under way. Of several runs, all are
    sums.
    """

    program: str
    run: str | None = None
    runs: int
    calls: int
    failed: int
    cancelled: int
    forks: int
    tool_waits: int
    tool_wait_seconds: float
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    completion_tokens: int
    compute_seconds: float
    saved_seconds: float
    busy_seconds: float
    span_seconds: float
    critical_calls: int
    critical_seconds: float
    first: float
    last: float


class Waits(NamedTuple):
    """The times at which a run has no call under way, between its first and its last."""

    times: int
    seconds: float
    busy: float
    span: float


def ledger(calls: Iterable[Call], by: By) -> list[LedgerLine]:
    """A line for each program or run, the latest first. A request without a run is a run of its own."""
    groups: dict[tuple[str, ...], dict[tuple[str, str], list[Call]]] = defaultdict(lambda: defaultdict(list))
    alone = 0
    for call in calls:
        alone += not call.run
        run = (call.program, call.run or f" {alone}")
        groups[(call.program,) if by == "program" else (call.program, call.run)][run].append(call)
    lines = [_line(key, list(runs.values())) for key, runs in groups.items()]
    return sorted(lines, key=lambda line: line.last, reverse=True)


def waits(calls: Sequence[Call]) -> Waits:
    """Of one run."""
    ordered = sorted(calls, key=lambda call: call.arrival)
    began = until = ordered[0].arrival
    count, idle = 0, 0.0
    for call in ordered:
        if call.arrival > until:
            count += 1
            idle += call.arrival - until
        until = max(until, call.arrival + call.seconds)
    return Waits(count, idle, until - began - idle, until - began)


def critical_path(calls: Sequence[Call]) -> list[Call]:
    """The calls on it, in order."""
    left = sorted(calls, key=lambda call: call.arrival + call.seconds)
    path = [left.pop()]
    while left:
        last = left.pop()
        if last.arrival + last.seconds <= path[-1].arrival + TOUCHES_S and last.arrival < path[-1].arrival:
            path.append(last)
    path.reverse()
    return path


def _line(key: tuple[str, ...], runs: Sequence[Sequence[Call]]) -> LedgerLine:
    calls = [call for run in runs for call in run]
    idle = [waits(run) for run in runs]
    paths = [critical_path(run) for run in runs]
    return LedgerLine(
        program=key[0],
        run=key[1] if len(key) > 1 else None,
        runs=len(runs),
        calls=len(calls),
        failed=sum(call.status >= 400 and call.status != CLIENT_GONE for call in calls),
        cancelled=sum(call.status == CLIENT_GONE for call in calls),
        forks=sum(len({call.branch for call in run}) - 1 for run in runs),
        tool_waits=sum(wait.times for wait in idle),
        tool_wait_seconds=sum(wait.seconds for wait in idle),
        prompt_tokens=sum(call.prompt for call in calls),
        cached_tokens=sum(call.cached for call in calls),
        computed_tokens=sum(call.computed for call in calls),
        completion_tokens=sum(call.generated for call in calls),
        compute_seconds=sum(call.cost for call in calls),
        saved_seconds=sum(call.saved for call in calls),
        busy_seconds=sum(wait.busy for wait in idle),
        span_seconds=sum(wait.span for wait in idle),
        critical_calls=sum(map(len, paths)),
        critical_seconds=sum(call.seconds for path in paths for call in path),
        first=min(call.arrival for call in calls),
        last=max(call.arrival + call.seconds for call in calls),
    )
