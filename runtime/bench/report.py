"""Tables for people and JSON for programs, made of the figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ... import __version__
from .figures import Row, StepTimes, rows, step_times
from .machine import facts
from .session import Session
from .workloads import SEED

WIDTH = 132
"""Columns where the output is no terminal."""

NOTHING = "–"


def show(session: Session, machine: dict[str, Any], console: Console | None = None) -> None:
    """Print the tables."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=WIDTH)
    found = _rows(session)
    console.print(
        f"\n{escape(machine['cpu'])}, {machine['cores']} cores, {' '.join(machine['flags'])}", highlight=False
    )
    console.print(_table(found, session.rounds, len(session.targets) > 1))
    for row in found:
        for note in row.notes:
            console.print(f"[red]{escape(row.workload)}, {escape(row.server)}:[/red] {escape(note)}", highlight=False)
    shares = [p.client_cpu_s / p.seconds for p in session.passes if p.seconds]
    if shares:
        console.print(f"[dim]bosquet bench itself took at most {max(shares):.1%} of one core[/dim]", highlight=False)
    if session.profile:
        _show_profile(session, console)


def _rows(session: Session) -> list[Row]:
    return rows(session.workloads, [target.name for target in session.targets], session.passes)


def _table(found: Sequence[Row], rounds: int, compared: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=_caption(found, rounds), caption_justify="left")
    for name in ("workload", "server"):
        table.add_column(name, no_wrap=True)
    headers = ["median", "min … max"] if rounds > 1 else ["result"]
    headers += ["first is"] if compared else []
    for name in (*headers, "out tok/s", "TTFT ms\np50 / 90 / 99", "TPOT ms\np50 / 90 / 99", "cached"):
        table.add_column(name, justify="right", no_wrap=True)
    last = ""
    for row in found:
        if last and row.workload != last and compared:
            table.add_section()
        cells = [row.workload if row.workload != last else "", escape(row.server), _figure(row)]
        if rounds > 1:
            cells.append(NOTHING if row.low is None else f"{_number(row.low)} … {_number(row.high)}")
        if compared:
            cells.append(NOTHING if row.lead is None else f"{row.lead:.2f}×")
        cells += [_number(row.tokens_per_s), _milliseconds(row.ttft), _milliseconds(row.tpot)]
        table.add_row(*cells, NOTHING if row.cached_share is None else f"{row.cached_share:.0%}")
        last = row.workload
    return table


def _caption(found: Sequence[Row], rounds: int) -> str:
    times = "1 round" if rounds == 1 else f"{rounds} rounds"
    return (
        f"{times}. Results from passes that do not stream; TTFT and TPOT from a pass that streams the same workload "
        "with fresh prompts (prefill: time of the whole answer). 'first is': how many times faster the first server "
        "was, median of the rounds' ratios."
    )


def _figure(row: Row) -> str:
    value = f"{_number(row.figure)} {row.unit}" if row.figure is not None else "none"
    return f"[red]{value}, {row.failed} failed[/red]" if row.failed else value


def _number(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _milliseconds(values: tuple[float, ...] | None) -> str:
    return NOTHING if values is None else " / ".join(_number(1000 * value) for value in values)


def _show_profile(session: Session, console: Console) -> None:
    found = step_times(session.workloads, session.passes)
    if not found:
        console.print("no server told where its steps' time goes: /metrics has no counters of a Bosquet engine")
        return
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title="Mean step, in ms",
        title_justify="left",
        caption="Python's share: all but the forward pass and sampling. Other: commit, outputs, the uncounted.",
        caption_justify="left",
    )
    for name in ("workload", "server"):
        table.add_column(name, no_wrap=True)
    for name in ("steps", "tokens", "total", "forward", "sample", "schedule", "masks", "other", "Python's share"):
        table.add_column(name, justify="right", no_wrap=True)
    for t in found:
        parts = (t.total, t.forward, t.sample, t.schedule, t.masks, t.other, t.python)
        table.add_row(
            t.workload, escape(t.server), f"{t.steps:,}", f"{t.tokens:.1f}", *(f"{value:.3f}" for value in parts)
        )
    console.print(table)


def document(session: Session, machine: dict[str, Any]) -> dict[str, Any]:
    """Everything that is known, ready for JSON: settings, every single reading and what was made of them."""
    return {
        "format": 1,
        "bosquet": __version__,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "settings": {
            "seed": SEED,
            "rounds": session.rounds,
            "workloads": [
                {
                    "name": w.name,
                    "about": w.about,
                    "in_flight": w.in_flight,
                    "max_tokens": w.max_tokens,
                    "metric": w.metric,
                    "schema": w.schema,
                }
                for w in session.workloads
            ],
        },
        "servers": [{"name": t.name, "url": t.url, "model": t.model, "version": t.version} for t in session.targets],
        "summary": [dataclasses.asdict(row) for row in _rows(session)],
        "steps": [_step(t) for t in step_times(session.workloads, session.passes)],
        "readings": [dataclasses.asdict(reading) for reading in session.passes],
    }


def _step(times: StepTimes) -> dict[str, Any]:
    return {**dataclasses.asdict(times), "other": times.other, "python": times.python}


def write(session: Session, machine: dict[str, Any], path: Path) -> None:
    """Write `document` to a file."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document(session, machine)), indent=1) + b"\n")


__all__ = ["document", "facts", "show", "write"]
