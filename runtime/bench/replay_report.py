"""Replays of traces: tables for people and JSON for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...types import PAGE
from .replay import LIVE, SEED, Cell, Played, baseline_of, closed
from .replay_policies import BASELINE, POLICIES
from .replay_simulation import DECODE_S, PREFILL_S, STEP_S
from .report import NOTHING
from .structured_report import Target, plain_table

MODEL = (
    f"A fake model: a pass takes {1000 * STEP_S:g} ms, {1000 * DECODE_S:g} ms a row that decodes and "
    f"{1000 * PREFILL_S:g} ms a token of a prefill. {LIVE} runs live at once."
)

UNDER_PRESSURE = (0.10, 0.25)
"""Pools, as shares of the working set, for which there are targets."""


def show(found: Sequence[Played], cells: Sequence[Cell], console: Console) -> None:
    """Print the tables; what is not known yet is left out."""
    console.print(f"\n{MODEL}", highlight=False)
    for policy in POLICIES:
        console.print(f"[dim]{escape(policy.name)}:[/dim] {escape(policy.about)}", highlight=False)
    for one in found:
        here = [cell for cell in cells if (cell.trace, cell.load) == (one.trace, one.load)]
        if here:
            console.print(_table(one, here))


def _table(one: Played, cells: Sequence[Cell]) -> Table:
    runs = f"{one.runs:,} runs{', inferred' if one.inferred else ''}, {one.requests:,} requests"
    title = (
        f"{escape(one.trace)}, load {one.load:g}: {runs}, lengths divided by {one.scale}, pauses by "
        f"{1 / one.pace.stretch if one.pace.stretch else 0:.3g}, working set {one.pace.working_set:,} pages"
    )
    caption = (
        "optimum: Belady on pages, over the order in which the policy admitted. closed: how much of the baseline's gap "
        "to the higher optimum. Times in seconds: of runs, pauses included, and of requests."
    )
    numbers = (
        "\nreuse", "opti-\nmum", "\nclosed", "run:\nmean", "\np50", "\np99", "request:\nmean", "\np50", "\np99",
        "longest\nwait", "pre-\nempted", "evicted\nk pages", "computed\nM tokens",
    )  # fmt: skip
    shown = plain_table(title, caption, ("\npool", "\npolicy"), numbers)
    for pool in sorted({cell.pool for cell in cells}):
        here = [cell for cell in cells if cell.pool == pool]
        for policy in POLICIES:
            for cell in here:
                if cell.policy == policy.name:
                    shown.add_row(f"{pool:.3g}" if policy is BASELINE else "", escape(policy.name), *_cells(cell, here))
        shown.add_section()
    return shown


def _cells(cell: Cell, cells: Sequence[Cell]) -> list[str]:
    baseline = baseline_of(cell, cells)
    share = closed(cell, baseline) if baseline is not None else None
    times = (*cell.run_s[:3], *cell.request_s[:3], cell.longest_wait_s)
    return [
        f"{cell.reuse:.1%}",
        f"{cell.optimum:.1%}",
        NOTHING if share is None else f"{share:.0%}",
        *(f"{time:.1f}" if time < 100 else f"{time:.0f}" for time in times),
        f"{cell.preemptions:,}",
        f"{cell.evicted_pages / 1e3:.1f}",
        f"{cell.computed_tokens / 1e6:.2f}",
    ]


def targets(cells: Sequence[Cell]) -> list[Target]:
    """The project's own targets, for the pools under pressure."""
    rows = []
    for cell in sorted(cells, key=lambda cell: (cell.trace, cell.load, cell.pool, cell.policy)):
        baseline = baseline_of(cell, cells)
        if baseline is None or baseline is cell or cell.pool not in UNDER_PRESSURE:
            continue
        what = f"{cell.trace}, load {cell.load:g}, pool {cell.pool:.0%}, {cell.policy}"
        sooner, last = baseline.run_s.mean / cell.run_s.mean, cell.run_s.p99 / baseline.run_s.p99
        rows.append(Target(f"{what}: gap closed", closed(cell, baseline), 0.5, True, "{:.0%}"))
        rows.append(Target(f"{what}: mean completion sooner, ×", sooner, 1.5, True, "{:.2f}"))
        rows.append(Target(f"{what}: its p99, of the baseline's", last, 1, False, "{:.2f}"))
    return rows


def document(found: Sequence[Played], cells: Sequence[Cell]) -> dict[str, Any]:
    """Everything that is known, ready for JSON."""
    return {
        "settings": {
            "live": LIVE,
            "seed": SEED,
            "page": PAGE,
            "step_s": STEP_S,
            "decode_s": DECODE_S,
            "prefill_s": PREFILL_S,
            "policies": [dataclasses.asdict(policy) for policy in POLICIES],
        },
        "traces": [{**dataclasses.asdict(one), "pace": dataclasses.asdict(one.pace)} for one in found],
        "cells": [_cell(cell, cells) for cell in cells],
    }


def _cell(cell: Cell, cells: Sequence[Cell]) -> dict[str, Any]:
    baseline = baseline_of(cell, cells)
    times = {"run_s": cell.run_s._asdict(), "request_s": cell.request_s._asdict()}
    return {**dataclasses.asdict(cell), **times, "closed": closed(cell, baseline) if baseline is not None else None}
