"""Programs on servers, agents, forks and what the language costs: tables for people and JSON for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from . import transcripts
from .programs_agents import ABOUT as AGENTS
from .programs_agents import POOL, Agents, Fork
from .programs_cases import SEED, Case
from .programs_served import LANGUAGE, Reading
from .replay_policies import BASELINE
from .report import NOTHING
from .structured_report import Target, plain_table


class Overhead(Protocol):
    """Seconds a call: to compile a program, and to run it, with so many calls, where answers take no time."""

    @property
    def calls(self) -> int: ...
    @property
    def compile_s(self) -> float: ...
    @property
    def dispatch_s(self) -> float: ...


@dataclass(slots=True)
class Findings:
    """All that was measured so far; `settings` says how servers were started."""

    cases: Sequence[Case] = ()
    settings: dict[str, str] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    agents: list[Agents] = field(default_factory=list)
    fork: Fork | None = None
    overhead: dict[str, Overhead] = field(default_factory=dict)  # program → what the language costs
    transcripts: list[transcripts.Row] = field(default_factory=list)


def show(found: Findings, console: Console) -> None:
    """Print the tables; what was not measured is left out."""
    if found.readings:
        console.print(_served(found))
        for name, setting in found.settings.items():
            console.print(f"[dim]{escape(name)}:[/dim] {escape(setting)}", highlight=False)
    if found.agents:
        console.print(_agents(found.agents))
    if found.overhead:
        console.print(_overhead(found.overhead))
    if found.transcripts:
        console.print(transcripts.table(found.transcripts))


def _served(found: Findings) -> Table:
    caption = (
        "program: in the language, token ids over HTTP; client: the same on chat completions. Medians of the rounds. "
        "run: until a run was over, the mean. optimum: an endless cache. first is: how many times sooner all runs were "
        "over on the first."
    )
    numbers = (
        "\nseconds", "\nrun", "first\nis", "\ncalls", "prompt\ntokens", "\ncached", "com-\nputed", "\nhits",
        "of the\noptimum",
    )  # fmt: skip
    table = plain_table("Programs", caption, ("\nprogram", "\nas", "\nserver"), numbers)
    for case in found.cases:
        sides = _sides(found.readings, case.name)
        first = median(reading.seconds for reading in sides[0]) if sides else 0.0
        for side in sides:
            name = case.name if side is sides[0] else ""
            table.add_row(name, side[0].way, escape(side[0].server), *_cells(side, first))
    return table


def _sides(readings: Sequence[Reading], case: str) -> list[list[Reading]]:
    """The readings of a case, those of the same server and way together."""
    sides: dict[tuple[str, str], list[Reading]] = {}
    for reading in readings:
        if reading.case == case:
            sides.setdefault((reading.way, reading.server), []).append(reading)
    return list(sides.values())


def _cells(side: Sequence[Reading], first: float) -> list[str]:
    seconds = median(reading.seconds for reading in side)
    last = side[-1]
    return [
        f"{seconds:.2f}",
        f"{median(sum(reading.run_s) / len(reading.run_s) for reading in side):.2f}",
        f"{seconds / first:.2f}×",
        f"{last.calls:,}",
        f"{last.prompt:,}",
        NOTHING if last.cached is None else f"{last.cached:,}",
        NOTHING if last.computed is None else f"{last.computed:,}",
        NOTHING if last.hit_rate is None else f"{last.hit_rate:.1%}",
        NOTHING if last.of_optimum is None else f"{last.of_optimum:.1%}",
    ]


def _agents(rows: Sequence[Agents]) -> Table:
    caption = (
        f"{AGENTS}; a cache for {POOL:.0%} of it. prefix: of the tokens that were computed before, those that were "
        "reused. optimum: Belady on pages. Seconds."
    )
    numbers = (
        "\nprefix", "\nreuse", "opti-\nmum", "run:\nmean", "\np99", "request:\nmean", "\np99", "longest\nwait",
        "computed\ntokens",
    )  # fmt: skip
    table = plain_table("Agents with tools on a small cache", caption, ("\npolicy",), numbers)
    for row in rows:
        cell = row.cell
        times = (cell.run_s.mean, cell.run_s.p99, cell.request_s.mean, cell.request_s.p99, cell.longest_wait_s)
        shares = (row.prefix, cell.reuse, cell.optimum)
        cells = (*(f"{share:.1%}" for share in shares), *(f"{time:.1f}" for time in times))
        table.add_row(escape(cell.policy), *cells, f"{cell.computed_tokens:,}")
    return table


def _overhead(found: dict[str, Overhead]) -> Table:
    caption = "Of the language alone: compiling a program, and running it on a back end that answers at once."
    table = plain_table("Overhead in ms a call", caption, ("program",), ("calls", "compile", "dispatch", "both"))
    for name, cost in found.items():
        times = (cost.compile_s, cost.dispatch_s, cost.compile_s + cost.dispatch_s)
        table.add_row(name, str(cost.calls), *(f"{1000 * time:.3f}" for time in times))
    return table


def targets(found: Findings) -> list[Target]:
    """The project's own targets."""
    rows = []
    for case in found.cases:
        shares = [r.of_optimum for r in found.readings if (r.case, r.way) == (case.name, LANGUAGE) and r.of_optimum]
        if shares:
            rows.append(Target(f"{case.name}: hits, of the optimum", median(shares), 0.96, True, "{:.1%}"))
    if found.agents and found.agents[0].cell.policy == BASELINE.name:
        baseline, *others = found.agents
        for row in others:
            sooner = baseline.cell.run_s.mean / row.cell.run_s.mean
            rows.append(Target(f"agents, {row.cell.policy}: mean completion sooner, ×", sooner, 1.5, True, "{:.2f}"))
            rows.append(Target(f"agents, {row.cell.policy}: prefix reused", row.prefix, 0.9, True, "{:.1%}"))
    if found.fork is not None:
        what = f"{found.fork.branches} branches of {found.fork.prefix:,} tokens: pages, of those of one"
        rows.append(Target(what, found.fork.ratio, 1.2, False, "{:.2f}"))
    for name, cost in found.overhead.items():
        rows.append(
            Target(f"{name}: overhead, ms a call", 1000 * (cost.compile_s + cost.dispatch_s), 0.3, False, "{:.3f}")
        )
    kept = {row.habit: row for row in found.transcripts if row.transcripts}  # the last has all that helps
    return rows + [
        Target(f"{row.habit}, {row.history}: prefix hit", row.share, 0.99, True, "{:.1%}") for row in kept.values()
    ]


def document(found: Findings) -> dict[str, Any]:
    """Everything that is known, ready for JSON."""
    return {
        "seed": SEED,
        "cases": [{"name": case.name, "about": case.about, "runs": case.runs} for case in found.cases],
        "servers": found.settings,
        "readings": [
            {**dataclasses.asdict(reading), "hit_rate": reading.hit_rate, "of_optimum": reading.of_optimum}
            for reading in found.readings
        ],
        "agents": [{**_cell(row), "prefix": row.prefix} for row in found.agents],
        "fork": None if found.fork is None else {**found.fork._asdict(), "ratio": found.fork.ratio},
        "overhead": {
            name: {"calls": cost.calls, "compile_s": cost.compile_s, "dispatch_s": cost.dispatch_s}
            for name, cost in found.overhead.items()
        },
        "transcripts": [{**dataclasses.asdict(row), "share": row.share} for row in found.transcripts],
    }


def _cell(row: Agents) -> dict[str, Any]:
    times = {"run_s": row.cell.run_s._asdict(), "request_s": row.cell.request_s._asdict()}
    return {**dataclasses.asdict(row.cell), **times}
