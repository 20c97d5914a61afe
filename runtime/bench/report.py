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
from .figures import PERCENTILES, Row, StepTimes, rows, step_times
from .machine import facts
from .plot import number, svg
from .session import Session
from .target import Target
from .workloads import SEED

WIDTH = 120
"""Columns where the output is no terminal."""

NOTHING = "–"


def show(session: Session, machine: dict[str, Any], console: Console | None = None) -> None:
    """Print the tables."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=WIDTH)
    found = _rows(session)
    about = f"{machine['cpu']}, {machine['cores']} cores, {' '.join(machine['flags'])}"
    console.print(f"\n{escape(about)}", highlight=False)
    console.print(_results(found, session.rounds, len(session.targets) > 1))
    console.print(_latencies(found))
    if len(session.targets) > 1:
        console.print(_settings(session.targets))
    for row in found:
        for note in row.notes:
            console.print(f"[red]{escape(row.workload)}, {escape(row.server)}:[/red] {escape(note)}", highlight=False)
    shares = [p.client_cpu_s / p.seconds for p in session.passes if p.seconds]
    if shares:
        console.print(f"[dim]bosquet bench itself took at most {max(shares):.1%} of one core[/dim]", highlight=False)
    if session.profile:
        _show_profile(session, console)


def _rows(session: Session) -> list[Row]:
    return rows(session.workloads, [target.name for target in session.targets], session.passes, session.left_out)


def _table(title: str, caption: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    style = {"title_justify": "left", "caption_justify": "left", "title_style": "bold"}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, caption=caption, **style)  # type: ignore[arg-type]
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _results(found: Sequence[Row], rounds: int, compared: bool) -> Table:
    numbers = ["median", "min … max"] if rounds > 1 else ["result"]
    numbers += ["first is"] if compared else []
    caption = "From passes that do not stream." + (
        " 'first is': how many times faster the first server was, median of the rounds." if compared else ""
    )
    title = "Results" if rounds == 1 else f"Results of {rounds} rounds"
    table = _table(title, caption, ("workload", "unit", "server"), (*numbers, "out tok/s", "cached", "failed"))
    last = ""
    for row in found:
        cells = [*(("", "") if row.workload == last else (row.workload, row.unit)), escape(row.server)]
        cells.append(_number(row.figure))
        if rounds > 1:
            cells.append(NOTHING if row.low is None else f"{_number(row.low)} … {_number(row.high)}")
        if compared:
            cells.append(NOTHING if row.lead is None else f"{row.lead:.2f}×")
        cells += [_number(row.tokens_per_s), NOTHING if row.cached_share is None else f"{row.cached_share:.0%}"]
        table.add_row(*cells, f"[red]{row.failed}[/red]" if row.failed else "0")
        last = row.workload
    return table


def _latencies(found: Sequence[Row]) -> Table:
    columns = [f"{what} p{percent}" for what in ("TTFT", "TPOT") for percent in PERCENTILES]
    caption = "From passes that stream the same workloads with fresh prompts; for prefill the time of the whole answer."
    table = _table("Latency in ms", caption, ("workload", "server"), columns)
    last = ""
    for row in found:
        values = [*(row.ttft or (None,) * 3), *(row.tpot or (None,) * 3)]
        cells = [_number(None if value is None else 1000 * value) for value in values]
        table.add_row("" if row.workload == last else row.workload, escape(row.server), *cells)
        last = row.workload
    return table


def _settings(targets: Sequence[Target]) -> Table:
    table = _table("Settings", "", ("server", "version"), ())
    table.add_column("started as", overflow="fold")
    table.add_column("for", overflow="fold")
    for target in targets:
        first = (escape(target.name), escape(target.version or NOTHING))
        for about, names in target.settings.items():
            table.add_row(*first, escape(about), ", ".join(dict.fromkeys(names)))
            first = ("", "")
    return table


def _number(value: float | None) -> str:
    return NOTHING if value is None else number(value)


def _show_profile(session: Session, console: Console) -> None:
    found = step_times(session.workloads, session.passes)
    if not found:
        console.print("no server told where its steps' time goes: /metrics has no counters of a Bosquet engine")
        return
    caption = "Python's share: all but the forward pass and sampling. Other: commit, outputs, the uncounted."
    parts = ("steps", "tokens", "total", "forward", "sample", "schedule", "masks", "other", "Python's share")
    table = _table("Mean step in ms", caption, ("workload", "server"), parts)
    for t in found:
        times = (t.total, t.forward, t.sample, t.schedule, t.masks, t.other, t.python)
        table.add_row(
            t.workload, escape(t.server), f"{t.steps:,}", f"{t.tokens:.1f}", *(f"{value:.3f}" for value in times)
        )
    console.print(table)
    for t in found:
        if t.stages:
            console.print(_stages(t))


def _stages(t: StepTimes) -> Table:
    """The stages of the forward pass, the longest first, down to 3 % of the step."""
    table = _table(
        f"The forward pass of {escape(t.workload)} on {escape(t.server)}", "", ("stage",), ("ms a step", "share")
    )
    for stage, ms in sorted(t.stages.items(), key=lambda entry: -entry[1]):
        if ms >= 0.03 * t.total:
            table.add_row(escape(stage), f"{ms:.3f}", f"{ms / t.total:.0%}")
    return table


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
        "servers": [
            {"name": t.name, "url": t.url, "model": t.model, "version": t.version, "settings": t.settings}
            for t in session.targets
        ],
        "summary": [dataclasses.asdict(row) for row in _rows(session)],
        "steps": [_step(t) for t in step_times(session.workloads, session.passes)],
        "readings": [dataclasses.asdict(reading) for reading in session.passes],
    }


def _step(times: StepTimes) -> dict[str, Any]:
    return {**dataclasses.asdict(times), "other": times.other, "python": times.python}


def write(session: Session, machine: dict[str, Any], path: Path) -> None:
    """Write `document` to a file, and where servers are compared a plot beside it."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document(session, machine)), indent=1) + b"\n")
    if len(session.targets) > 1:
        about = f"{machine['cpu']}, {machine['cores']} cores"
        path.with_suffix(".svg").write_text(svg(_rows(session), session.targets[0].name, about))


__all__ = ["document", "facts", "show", "write"]
