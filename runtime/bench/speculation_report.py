"""`bench speculation`: tables for people, JSON for programs and plots, made of the readings."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ... import __version__
from .curves import Curve, Panel, curves
from .figures import Row
from .plot import svg
from .report import NOTHING, WIDTH
from .speculation_bed import Pair, Reading
from .speculation_cases import Case
from .speculation_identity import Verdict
from .structured_report import plain_table

ON, OFF = "with drafts", "without"
PAPER = 1.6
"""More throughput by jump-forward decoding, in SGLang's paper (Zheng et al., 2024, section 6.3), with another model."""


@dataclass(frozen=True, slots=True)
class Result:
    """A case and its rounds. `forced` is the share of tokens that a grammar left no choice about, `line` what a pass
    cost: a + b · tokens seconds."""

    case: Case
    pairs: Sequence[Pair]
    forced: float | None
    line: tuple[float, float]

    def median(self, value: Callable[[Pair], float]) -> float:
        return statistics.median(value(pair) for pair in self.pairs)

    @property
    def ratio(self) -> float:
        return self.median(lambda pair: pair.ratio)

    @property
    def on_tokens_per_s(self) -> float:
        return self.median(lambda pair: pair.on.tokens_per_s)

    @property
    def off_tokens_per_s(self) -> float:
        return self.median(lambda pair: pair.off.tokens_per_s)

    @property
    def modelled(self) -> float:
        """The ratio that follows from the passes of both sides and what a pass costs."""
        a, b = self.line

        def seconds(reading: Reading) -> float:
            return a * reading.passes + b * reading.computed

        return self.median(lambda pair: seconds(pair.off) / seconds(pair.on))

    @property
    def per_pass(self) -> float:
        """Tokens of one stream that a pass with drafts gives."""
        return self.median(lambda pair: pair.off.passes / pair.on.passes)

    @property
    def differing(self) -> int:
        """Answers that are not the same on both sides."""
        return sum(a != b for pair in self.pairs for a, b in zip(pair.off.answers, pair.on.answers, strict=True))

    @property
    def uneven(self) -> bool:
        """The sides did not find the same in the cache."""
        return any(pair.off.cached != pair.on.cached for pair in self.pairs)

    @property
    def met(self) -> bool | None:
        bound = self.case.bound
        applies = bound is not None and (self.forced or 0.0) >= self.case.from_forced
        return self.ratio >= bound if applies and bound is not None else None


@dataclass(slots=True)
class Findings:
    """All that was measured so far. `pass_seconds` are of passes of one row, by their tokens; `line` is what passes
    cost in the end."""

    model: str
    machine: dict[str, Any]
    pass_seconds: Mapping[int, float]
    line: tuple[float, float] = (0.0, 0.0)
    results: list[Result] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def differing(self) -> int:
        compared = sum(verdict.prompts - verdict.same for verdict in self.verdicts)
        return compared + sum(result.differing for result in self.results)


def show(found: Findings, console: Console | None = None) -> None:
    """Print the tables."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=WIDTH)
    console.print(f"\n{escape(_about(found))}; {escape(found.model)}", highlight=False)
    if found.results:
        console.print(_results(found.results))
        console.print(_sources(found.results))
    if found.verdicts:
        console.print(_verdicts(found.verdicts))
    for result in found.results:
        for note in _notes(result):
            console.print(f"[red]{escape(result.case.full_name)}:[/red] {escape(note)}", highlight=False)
    for verdict in found.verdicts:
        if verdict.differ:
            shown = ", ".join(map(str, verdict.differ))
            console.print(f"[red]{verdict.group}: answers differ, of prompts {shown}[/red]", highlight=False)


def _about(found: Findings) -> str:
    machine = found.machine
    return f"{machine['cpu']}, {machine['cores']} cores, {' '.join(machine['flags'])}"


def _results(results: Sequence[Result]) -> Table:
    caption = (
        "speed-up: seconds without drafts by seconds with them, median of the rounds. forced: tokens that the grammar "
        "left no choice about. passes: how many times fewer. costs say: the speed-up by what passes cost. city and "
        f"character are SGLang's jump-forward workloads; its paper reports {PAPER} × more throughput there."
    )
    numbers = ("\nforced", "tok/s\nwithout", "tok/s\nwith", "\nspeed-up", "\nmin … max", "\npasses", "costs\nsay")
    table = plain_table("With drafts and without", caption, ("\ncase",), (*numbers, "\nwanted", "\nmet"))
    for result in results:
        ratios = [pair.ratio for pair in result.pairs]
        bound = NOTHING if result.case.bound is None else f"≥ {result.case.bound:.2f}"
        table.add_row(
            escape(result.case.full_name),
            NOTHING if result.forced is None else f"{result.forced:.0%}",
            f"{result.off_tokens_per_s:.0f}",
            f"{result.on_tokens_per_s:.0f}",
            f"{result.ratio:.2f}×",
            f"{min(ratios):.2f} … {max(ratios):.2f}" if len(ratios) > 1 else NOTHING,
            f"{result.per_pass:.2f}×",
            f"{result.modelled:.2f}×",
            bound,
            {None: NOTHING, True: "yes", False: "[red]no[/red]"}[result.met],
        )
    return table


def _sources(results: Sequence[Result]) -> Table:
    """How many draft tokens that were reached were right."""
    names = list(results[0].pairs[0].on.drafted)
    table = plain_table("Draft tokens that were right", "Of those that were reached.", ("case",), names)
    for result in results:
        drafted, right = (_summed(pair.on.drafted for pair in result.pairs), _summed(p.on.right for p in result.pairs))
        table.add_row(escape(result.case.full_name), *(_share(right[name], drafted[name]) for name in names))
    return table


def _summed(counts: Any) -> Counter[str]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return total


def _share(right: int, drafted: int) -> str:
    return f"{right / drafted:.0%} of {drafted}" if drafted else NOTHING


def _verdicts(verdicts: Sequence[Verdict]) -> Table:
    caption = "Each prompt is answered twice. preempted: requests that were pushed out and computed again."
    numbers = ("prompts", "the same", "tokens", "preempted", "drafted", "right")
    table = plain_table("Answers with drafts and without", caption, ("prompts that are",), numbers)
    for row in verdicts:
        counts = (row.tokens, row.preempted, sum(row.drafted.values()), sum(row.right.values()))
        same = f"{row.same}" if row.same == row.prompts else f"[red]{row.same}[/red]"
        table.add_row(row.group, str(row.prompts), same, *(f"{count:,}" for count in counts))
    table.add_section()
    totals = (sum(row.prompts for row in verdicts), sum(row.same for row in verdicts))
    table.add_row("all", *map(str, totals), *("" for _ in range(4)))
    return table


def _notes(result: Result) -> list[str]:
    notes = []
    if result.differing:
        notes.append(f"{result.differing} answers differ")
    if result.uneven:
        notes.append("the sides did not find the same in the cache: the ratio flatters one")
    if result.case.from_forced and (result.forced or 0.0) < result.case.from_forced:
        notes.append(f"less than {result.case.from_forced:.0%} of the tokens are forced")
    return notes


# ---- plots -----------------------------------------------------------------------------------------------------------


def bars(found: Findings) -> str:
    """An SVG with a pair of bars for each case."""
    rows = []
    for result in found.results:
        for server, rates in (
            (ON, [p.on.tokens_per_s for p in result.pairs]),
            (OFF, [p.off.tokens_per_s for p in result.pairs]),
        ):
            figure = statistics.median(rates)
            lead = 1.0 if server == ON else result.ratio
            rows.append(
                Row(result.case.full_name, server, "output tok/s", figure, low=min(rates), high=max(rates), lead=lead)
            )
    return svg(rows, ON, _about(found))


def lines(found: Findings) -> str:
    """An SVG with what passes cost, from which chance on a draft token pays, and the speed-up by streams."""
    a, b = found.line
    measured = Curve("measured", [(tokens, 1000 * s) for tokens, s in found.pass_seconds.items()])
    fitted = Curve("a + b·tokens", [(tokens, 1000 * (a + b * tokens)) for tokens in found.pass_seconds])
    rows = (1, 2, 4, 8, 16, 32)
    chances = Curve("one token more", [(n, min(1.0, b * n / (a + b * n)) if b else 0.0) for n in rows])
    panels = [
        Panel("What a pass takes, ms", "tokens in the pass", [measured, fitted]),
        Panel("Chance from which a draft token pays", "streams", [chances]),
    ]
    streams: dict[str, list[tuple[float, float]]] = {}
    for result in found.results:
        streams.setdefault(result.case.name, []).append((result.case.at_once, result.ratio))
    speeds = [Curve(name, points) for name, points in streams.items() if len(points) > 1]
    if speeds:
        panels.append(Panel("Speed-up", "streams", speeds))
    return curves(panels)


# ---- files -----------------------------------------------------------------------------------------------------------


def document(found: Findings, settings: dict[str, Any]) -> dict[str, Any]:
    """Everything that is known, ready for JSON; of answers only how many tokens they have."""
    return {
        "format": 1,
        "bosquet": __version__,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": found.machine,
        "settings": {**settings, "model": found.model},
        "pass_seconds": {str(tokens): seconds for tokens, seconds in found.pass_seconds.items()},
        "pass_line": found.line,
        "paper_jump_forward": PAPER,
        "cases": [_case(result) for result in found.results],
        "answers": [dataclasses.asdict(verdict) for verdict in found.verdicts],
    }


def _case(result: Result) -> dict[str, Any]:
    case = result.case
    return {
        "case": case.name,
        "about": case.about,
        "streams": case.at_once,
        "forced_share": result.forced,
        "tokens_per_s": {"off": result.off_tokens_per_s, "on": result.on_tokens_per_s},
        "ratio": result.ratio,
        "ratio_by_costs": result.modelled,
        "pass_line": result.line,
        "bound": case.bound,
        "met": result.met,
        "differing": result.differing,
        "rounds": [{"off": _reading(pair.off), "on": _reading(pair.on)} for pair in result.pairs],
    }


def _reading(reading: Reading) -> dict[str, Any]:
    shown = {name: value for name, value in dataclasses.asdict(reading).items() if name != "answers"}
    return {**shown, "tokens": reading.tokens}


def write(found: Findings, settings: dict[str, Any], path: Path) -> None:
    """Write `document` to a file, and both plots beside it."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document(found, settings)), indent=1) + b"\n")
    path.with_suffix(".svg").write_text(bars(found))
    path.with_name(f"{path.stem}_curves.svg").write_text(lines(found))
