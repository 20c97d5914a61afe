"""The part of `bench structured` that asks a server: how fast streams are that are held to a schema, beside free ones.

Free and held streams take turns on the same server, with fresh prompts of the same length, and both run to the same
number of tokens: what differs is the schema. Knows nothing of how figures are shown.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from .figures import figure
from .passes import Pass, converse, run_pass
from .record_schema import SCHEMA
from .target import Target
from .words import text
from .workloads import GROUPS, Script, Workload

STREAMS = 16
TOKENS = 128


def _prompts(random: Random) -> list[Script]:
    return [Script(f"{text(random, 32)}. Records about this, as JSON:") for _ in range(STREAMS)]


FREE = Workload(
    name="free",
    about=f"{STREAMS} requests at once, 32-word prompt, {TOKENS} tokens out",
    scripts=_prompts,
    in_flight=STREAMS,
    max_tokens=TOKENS,
    metric="output tok/s",
)
HELD = Workload(
    name="held",
    about=f"the same, held to a list of records that is longer than {TOKENS} tokens",
    scripts=_prompts,
    in_flight=STREAMS,
    max_tokens=TOKENS,
    metric="output tok/s",
    schema={"type": "array", "items": SCHEMA, "minItems": 16},
)
(RECORDS,) = GROUPS["json"]


@dataclass(frozen=True, slots=True)
class Side:
    """One round of one side. `mask_ms` is what a mean step spent on masks, None where the server does not tell."""

    tokens_per_s: float | None
    mask_ms: float | None


@dataclass(slots=True)
class Served:
    """What the server did. `free` and `held` have one entry a round, `valid_per_s` is that of the JSON workload, None
    when nothing came back. `notes` say what makes figures doubtful."""

    server: str = ""
    model: str = ""
    version: str | None = None
    free: list[Side] = field(default_factory=list)
    held: list[Side] = field(default_factory=list)
    valid_per_s: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        """Held by free: the median over the rounds that have both."""
        pairs = [(a.tokens_per_s, b.tokens_per_s) for a, b in zip(self.free, self.held, strict=False)]
        ratios = [held / free for free, held in pairs if free and held is not None]
        return statistics.median(ratios) if ratios else None


async def measure_server(
    target: Target, rounds: int, *, records: bool = True, on_pass: Callable[[], None] = lambda: None
) -> Served:
    """All passes in turn; without `records` the JSON workload is left out. `on_pass` is called `passes` times. Raises
    `ConfigError` when there is no such server."""
    served = Served()
    try:
        await target.look()
        served.server, served.model, served.version = target.url, target.model, target.version
        for workload in (FREE, HELD):
            await _warm_up(target, workload)
        for round in range(rounds):
            turns = [(FREE, served.free), (HELD, served.held)]
            for workload, sides in reversed(turns) if round % 2 else turns:  # whoever is second may find it quieter
                reading = await run_pass(target, workload, round, False, profile=True)
                sides.append(Side(figure(workload, reading), _mask_ms(reading)))
                served.notes += _notes(workload, reading)
                on_pass()
        if records:
            await _warm_up(target, RECORDS)
            reading = await run_pass(target, RECORDS, 0, False)
            served.valid_per_s = figure(RECORDS, reading)
            served.notes += _failures(RECORDS, reading)
            on_pass()
    finally:
        target.client.close()
        await asyncio.sleep(0)  # connections are closed by the loop's next turn
    return served


def passes(rounds: int, *, records: bool = True) -> int:
    return 2 * rounds + records


async def _warm_up(target: Target, workload: Workload) -> None:
    async for _ in converse(target, workload, workload.draw(-1, False)[0], False, 0.0):
        return


def _mask_ms(reading: Pass) -> float | None:
    steps = reading.steps
    return 1e3 * steps["mask"] / steps["steps"] if steps and steps["steps"] > 0 else None


def _notes(workload: Workload, reading: Pass) -> list[str]:
    short = sum(answer.completion_tokens != workload.max_tokens for answer in reading.good)
    found = [f"{workload.name}: {short} of {len(reading.good)} answers do not have {TOKENS} tokens"] if short else []
    return _failures(workload, reading) + found


def _failures(workload: Workload, reading: Pass) -> list[str]:
    return [f"{workload.name}: {len(reading.errors)} failed: {reading.errors[0]}"] if reading.errors else []
