"""The programs on servers: in the language on ours, and on a client of the OpenAI protocol on ours and on others.

The language is handed in, since this room does not know it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ...types import Message
from .answers import Answer
from .programs_cases import Case
from .programs_client import PROGRAMS, Client
from .progress import Progress
from .replay_optimum import reused
from .target import Target
from .workloads import Workload

LANGUAGE, CLIENT = "program", "client"


class Asked(Protocol):
    """A call that was made."""

    @property
    def prompt(self) -> Sequence[int]: ...
    @property
    def generated(self) -> Sequence[int]: ...
    @property
    def cached(self) -> int: ...


class OnServer(Protocol):
    """The language's programs on one server."""

    @property
    def calls(self) -> Sequence[Asked]:
        """All calls so far, in the order in which they were sent."""

    async def run(self, name: str, arguments: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Reading:
    """One case, once, on one server, as a `program` of the language or on a `client`. `run_s` is how long each run
    took; counts are of tokens. `best` is how many of the prompts' an endless cache would have had, where all are known;
    `cached` is None where the server does not tell."""

    case: str
    server: str
    way: str
    round: int
    seconds: float
    run_s: list[float]
    calls: int
    prompt: int
    cached: int | None
    generated: int
    best: int | None = None

    @property
    def computed(self) -> int | None:
        return None if self.cached is None else self.prompt - self.cached + self.generated

    @property
    def hit_rate(self) -> float | None:
        return None if self.cached is None else self.cached / self.prompt

    @property
    def of_optimum(self) -> float | None:
        return None if self.best is None or self.cached is None else self.cached / max(1, self.best)


@dataclass(slots=True)
class Side:
    """A server, and how it is asked; `program` is None for clients of the OpenAI protocol."""

    target: Target
    program: OnServer | None = None


@dataclass(slots=True)
class Served:
    """`readings` is what is known at any time."""

    sides: Sequence[Side]
    cases: Sequence[Case]
    rounds: int
    progress: Progress
    readings: list[Reading] = field(default_factory=list)

    async def run(self) -> None:
        """Each case, in each round, on all sides in turn. Raises `BosquetError` when a run fails."""
        try:
            for case in self.cases:
                for side in self.sides:
                    await side.target.prepare(_workload(case))
                    with side.target.awake():
                        await Client(side.target).ask([Message(role="user", content="Hello.")], 4)
                for round in range(self.rounds):
                    for side in self.sides:
                        await self._measure(case, round, side)
        finally:
            for side in self.sides:
                side.target.client.close()
            await asyncio.sleep(0)  # connections are closed by the loop's next turn

    async def _measure(self, case: Case, round: int, side: Side) -> None:
        way = CLIENT if side.program is None else LANGUAGE
        what = f"{case.name}, {side.target.name}, {way}, round {round + 1}"
        with side.target.awake(), self.progress.waiting(what):
            measured = on_client(case, round, side.target) if side.program is None else in_language(case, round, side)
            reading = await measured
        self.readings.append(reading)
        hits = "" if reading.hit_rate is None else f", {reading.hit_rate:.1%} of the prompts' tokens cached"
        best = "" if reading.of_optimum is None else f", {reading.of_optimum:.1%} of the optimum"
        self.progress.say(what, f"{reading.seconds:.2f} s{hits}{best}")


async def on_client(case: Case, round: int, target: Target) -> Reading:
    """One reading of a case on a client."""
    client = Client(target)
    seconds, run_s = await _timed(case.draw(round, CLIENT), lambda one: PROGRAMS[case.name](client, **one))
    answers: list[Answer] = client.answers
    told = [answer.cached_tokens for answer in answers if answer.cached_tokens is not None]
    return Reading(
        case.name,
        target.name,
        CLIENT,
        round,
        seconds,
        run_s,
        len(answers),
        sum(answer.prompt_tokens for answer in answers),
        sum(told) if told else None,
        sum(answer.completion_tokens for answer in answers),
    )


async def in_language(case: Case, round: int, side: Side) -> Reading:
    """One reading of a case in the language."""
    program = side.program
    assert program is not None
    before = len(program.calls)
    seconds, run_s = await _timed(case.draw(round, LANGUAGE), lambda one: program.run(case.name, one))
    calls = program.calls[before:]
    everything = ((_ids(call.prompt), _ids(call.generated[:-1])) for call in program.calls)
    return Reading(
        case.name,
        side.target.name,
        LANGUAGE,
        round,
        seconds,
        run_s,
        len(calls),
        sum(len(call.prompt) for call in calls),
        sum(call.cached for call in calls),
        sum(len(call.generated) for call in calls),
        sum(reused(everything, None)[before:]),
    )


def _ids(ids: Sequence[int]) -> Any:
    return np.asarray(ids, np.int32)


async def _timed(
    arguments: Sequence[Mapping[str, Any]], run: Callable[[Mapping[str, Any]], Awaitable[None]]
) -> tuple[float, list[float]]:
    """All runs at once: seconds in all, and of each."""
    began = time.perf_counter()

    async def one(given: Mapping[str, Any]) -> float:
        await run(given)
        return time.perf_counter() - began

    found = await asyncio.gather(*(one(given) for given in arguments), return_exceptions=True)
    seconds, run_s = time.perf_counter() - began, []
    for result in found:
        if isinstance(result, BaseException):
            raise result
        run_s.append(result)
    return seconds, run_s


def _workload(case: Case) -> Workload:
    """What a peer may want to know before it is started."""
    return Workload(
        name=case.name, about=case.about, scripts=lambda random: [], in_flight=case.runs, branches=8, max_tokens=64,
        metric="seconds",
    )  # fmt: skip
