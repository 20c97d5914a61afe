"""`bench structured`: tables for people and JSON for programs, made of the figures."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ... import __version__
from .maskbench import Outcome, Summary, summarise
from .report import NOTHING, WIDTH
from .structured_compile import Timing
from .structured_streams import FREE, HELD, RECORDS, Served

_KEYWORD = re.compile(r"#[^`]*: `([$\w]+)` ")


@dataclass(slots=True)
class Findings:
    """All that was measured so far; `data` names the file of the schemas, or the built-in set."""

    data: str
    model: str
    machine: dict[str, Any]
    strict: list[Outcome] = field(default_factory=list)
    relaxed: list[Outcome] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    served: Served | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A figure beside what it should be. `value` is None where it was not measured."""

    what: str
    value: float | None
    bound: float
    at_least: bool
    shown: str

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def targets(found: Findings) -> list[Target]:
    """The project's own targets; those of schemas are meant for the whole MaskBench sample."""
    rows: list[Target] = []
    for mode, outcomes, share in (("strict", found.strict, 0.90), ("relaxed", found.relaxed, 0.95)):
        if not outcomes:
            continue
        total = summarise(outcomes)[-1]
        wrong = total.accepts if mode == "strict" else total.silent
        what = "wrongly accepted" if mode == "strict" else "wrongly accepted in silence"
        rows.append(Target(f"{mode}: schemas that pass", total.passed / total.schemas, share, True, "{:.1%}"))
        rows.append(Target(f"{mode}: {what}", wrong, 0, False, "{:.0f}"))
        p50, p99 = total.mask_us or (None, None)
        rows.append(Target(f"{mode}: mask p50, µs", p50, 25, False, "{:.1f}"))
        rows.append(Target(f"{mode}: mask p99, µs", p99, 1000, False, "{:.0f}"))
    for timing in found.timings:
        tools = "tools" in timing.what
        value, bound = (timing.compile.p50, 1000) if tools else (timing.first_mask.p50, 20)
        what = f"{'strict' if timing.strict else 'relaxed'}: {timing.what}, ms"
        rows.append(Target(what, value, bound, False, "{:.0f}" if tools else "{:.1f}"))
    if found.served is not None:
        rows.append(Target("held streams by free ones, tok/s", found.served.ratio, 0.95, True, "{:.3f}"))
    return rows


def show(found: Findings, console: Console | None = None) -> None:
    """Print the tables."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=WIDTH)
    machine = found.machine
    about = f"{machine['cpu']}, {machine['cores']} cores, {' '.join(machine['flags'])}"
    console.print(f"\n{escape(about)}\nvocabulary of {escape(found.model)}; {escape(found.data)}", highlight=False)
    for title, outcomes in (("Strict", found.strict), ("Relaxed", found.relaxed)):
        if outcomes:
            console.print(_schemas(title, summarise(outcomes)))
            for line in _keywords(title, outcomes):
                console.print(line, highlight=False)
    if found.timings:
        console.print(_times(found.timings))
    if found.served is not None:
        _show_served(found.served, console)
    console.print(targets_table(targets(found)))


def plain_table(title: str, caption: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        pad_edge=False,
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
    )
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _schemas(title: str, rows: Sequence[Summary]) -> Table:
    caption = (
        "pass: compiled, and right on every instance. rejects: a valid instance cannot be written. accepts: an invalid "
        "one can, covered by a keyword that was reported as relaxed, or in silence."
    )
    numbers = ("\nschemas", "\npass", "\nrefused", "\nrejects", "accepts:\ncovered", "\nsilent")
    pairs = ("mask\nµs p50", "\np99", "compile\nms p50", "\np99", "1st mask\nms p50")
    table = plain_table(title, caption, ("\nsubset",), (*numbers, *pairs))
    for row in rows:
        if row.subset == "all":
            table.add_section()
        counts = (row.schemas, row.passed, row.refused, row.rejects, row.accepts - row.silent, row.silent)
        times = (*_pair(row.mask_us), *_pair(row.compile_ms), _pair(row.first_mask_ms)[0])
        table.add_row(escape(row.subset), *(str(count) for count in counts), *times)
    return table


def _pair(pair: tuple[float, float] | None) -> tuple[str, str]:
    return (NOTHING, NOTHING) if pair is None else (f"{pair[0]:.1f}", f"{pair[1]:.0f}")


def keywords(outcomes: Sequence[Outcome]) -> tuple[Counter[str], Counter[str]]:
    """In how many schemas each keyword is why they were refused, or was relaxed."""
    refused: Counter[str] = Counter()
    relaxed: Counter[str] = Counter()
    for outcome in outcomes:
        if outcome.refusal:
            refused[next(iter(_KEYWORD.findall(outcome.refusal)), "no value fits")] += 1
        relaxed.update({item.keyword for item in outcome.relaxed})
    return refused, relaxed


def _keywords(title: str, outcomes: Sequence[Outcome]) -> list[str]:
    lines = []
    for what, counted in zip(("refused for", "relaxed, or not known"), keywords(outcomes), strict=True):
        if counted:
            listed = ", ".join(f"{keyword} {count}" for keyword, count in counted.most_common())
            lines.append(f"[dim]{title}, {what}:[/dim] {escape(listed)}")
    return lines


def _times(timings: Sequence[Timing]) -> Table:
    numbers = ("\nbytes", "\ntimes", "compile\nms p50", "\np99", "1st mask\nms p50", "\np99")
    caption = "Nothing is taken from the compiler's cache. 1st mask: from the text of the schema to the first mask."
    table = plain_table("Compiling", caption, ("\nwhat", "\nmode"), numbers)
    for row in timings:
        times = (row.compile.p50, row.compile.p99, row.first_mask.p50, row.first_mask.p99)
        mode = "strict" if row.strict else "relaxed"
        table.add_row(row.what, mode, f"{row.bytes:,}", str(row.compile.readings), *(f"{value:.1f}" for value in times))
    return table


def _show_served(served: Served, console: Console) -> None:
    console.print(f"\n{escape(served.model)} at {escape(served.server)}", highlight=False)
    caption = f"free: {FREE.about}. held: {HELD.about}. masks: what a mean step spends on them."
    columns = ("free tok/s", "held tok/s", "held / free", "masks ms a step")
    table = plain_table("Streams that are held to a schema, beside free ones", caption, ("round",), columns)
    for at, (free, held) in enumerate(zip(served.free, served.held, strict=False), 1):
        both = free.tokens_per_s and held.tokens_per_s
        ratio = f"{held.tokens_per_s / free.tokens_per_s:.3f}" if both else NOTHING  # type: ignore[operator]
        cells = (_number(free.tokens_per_s, 1), _number(held.tokens_per_s, 1), ratio, _number(held.mask_ms, 3))
        table.add_row(str(at), *cells)
    console.print(table)
    if served.valid_per_s is not None:
        console.print(f"{RECORDS.about}: {served.valid_per_s:.2f} valid records/s", highlight=False)
    for note in served.notes:
        console.print(f"[red]{escape(note)}[/red]", highlight=False)


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def targets_table(rows: Sequence[Target]) -> Table:
    table = plain_table("Against the targets", "", ("what",), ("measured", "target", "met"))
    for row in rows:
        value = NOTHING if row.value is None else row.shown.format(row.value)
        bound = f"{'≥' if row.at_least else '≤'} {row.shown.format(row.bound)}"
        table.add_row(row.what, value, bound, {None: NOTHING, True: "yes", False: "[red]no[/red]"}[row.met])
    return table


def document(found: Findings, settings: dict[str, Any]) -> dict[str, Any]:
    """Everything that is known, ready for JSON: settings, summaries, and what became of each schema."""
    modes = (("strict", found.strict), ("relaxed", found.relaxed))
    served = found.served
    return {
        "format": 1,
        "bosquet": __version__,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": found.machine,
        "settings": {**settings, "data": found.data, "model": found.model},
        "targets": [{**dataclasses.asdict(row), "met": row.met} for row in targets(found)],
        "summary": {mode: [row._asdict() for row in summarise(outcomes)] for mode, outcomes in modes if outcomes},
        "keywords": {
            mode: dict(zip(("refused", "relaxed"), keywords(outcomes), strict=True)) for mode, outcomes in modes
        },
        "timings": [
            {**dataclasses.asdict(row), "compile": row.compile._asdict(), "first_mask": row.first_mask._asdict()}
            for row in found.timings
        ],
        "served": None if served is None else {**dataclasses.asdict(served), "ratio": served.ratio},
        "schemas": {mode: [_outcome(outcome) for outcome in outcomes] for mode, outcomes in modes},
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    """Without the single mask times, of which there are thousands."""
    shown = {name: value for name, value in dataclasses.asdict(outcome).items() if name != "mask_us"}
    relaxed = [{"path": item.path, "keyword": item.keyword, "reason": item.reason} for item in outcome.relaxed]
    return {**shown, "relaxed": relaxed, "masks": len(outcome.mask_us)}


def write(found: Findings, settings: dict[str, Any], path: Path) -> None:
    """Write `document` to a file."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document(found, settings)), indent=1) + b"\n")
