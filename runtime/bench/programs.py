"""`bosquet bench programs` as a whole: from its options to the tables."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.markup import escape

from ... import __version__
from ...errors import ConfigError
from . import machine, programs_agents, programs_report, replay, replay_report, transcripts
from .command import other, writable
from .own_server import own_server
from .programs_cases import CASES, chosen
from .programs_report import Findings, Overhead
from .programs_served import LANGUAGE, OnServer, Served, Side
from .progress import Progress
from .report import WIDTH
from .structured_report import targets_table
from .target import Target

OVERHEAD_ROUNDS = 20
PARTS = ("agents", "fork", "overhead", "transcripts")
"""What is measured besides the programs on servers."""


class Language(NamedTuple):
    """The language's part, handed in, since this room does not know it."""

    on_server: Callable[[str], OnServer]
    overhead: Callable[[str, Mapping[str, Any], int], Overhead]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """Traces to replay, with numbers that have commas between."""

    traces: Sequence[str]
    pools: str = "0.1,0.25,0.5"
    loads: str = "0.9,1.2"
    runs: int = 0
    scale: int = 4
    processes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Programs to measure: `names` of cases and `PARTS`, none for all; on the server at `url`, or one of our own."""

    names: Sequence[str] = ()
    model: str = "embedded"
    url: str = ""
    against: Sequence[str] = ()
    peers: str = "peers"
    rounds: int = 1


def measure(replays: Replays, programs: Programs | None, language: Language, out: str) -> None:
    """Measure, print tables and write JSON to `out` (empty: none). Ctrl-C ends it with what is known.

    Raises `ConfigError`, and `BosquetError` when a server does not start or a program fails.
    """
    path = writable(out) if out else None
    progress, about, found = Progress(), machine.facts(), Findings()
    with progress.waiting("reading traces"):
        todo = jobs(replays)
        played = replay.played(todo)
    cells: list[replay.Cell] = []
    if programs is not None:
        found.cases = chosen(programs.names, PARTS)
    try:
        if todo:
            _replay(todo, replays.processes, cells, progress)
        if programs is not None:
            _measure(found, programs, language, about, progress)
    finally:
        _show(about, played, cells, found)
        if path is not None:
            _write(path, about, played, cells, found)


def jobs(replays: Replays) -> list[replay.Job]:
    """What is to be replayed. Raises `ConfigError`."""
    loads, pools = _numbers("--loads", replays.loads), _numbers("--pools", replays.pools)
    return replay.jobs(replays.traces, replays.scale, replays.runs, loads, pools)


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text}: expected numbers with commas between, such as 0.1,0.25") from None


def _replay(todo: Sequence[replay.Job], processes: int, cells: list[replay.Cell], progress: Progress) -> None:
    with progress.bar("replays", len(todo)) as advance:
        for cell in replay.replayed(todo, processes):
            cells.append(cell)
            advance()
            what = f"{cell.trace}, load {cell.load:g}, pool {cell.pool:g}, {cell.policy}"
            progress.say(what, f"{cell.reuse:.1%} reused, mean run {cell.run_s.mean:,.1f} s")


def _measure(
    found: Findings, programs: Programs, language: Language, about: dict[str, Any], progress: Progress
) -> None:
    parts = [part for part in PARTS if not programs.names or part in programs.names]
    if "fork" in parts:
        found.fork = programs_agents.fork()
    if "overhead" in parts:
        with progress.waiting("compiling, and running on a back end that answers at once"):
            for case in CASES:
                if case.name != "react":  # it waits for its tools
                    found.overhead[case.name] = language.overhead(case.name, case.draw(0, LANGUAGE)[0], OVERHEAD_ROUNDS)
    if "transcripts" in parts:
        with progress.waiting("loops of a client that changes what it sends back"):
            found.transcripts = transcripts.measure()
    if "agents" in parts:
        with progress.waiting(f"agents with tools on {programs.model}"):
            played, model = programs_agents.trace(), programs_agents.loaded(programs.model)
            for row in programs_agents.measured(played, model):
                found.agents.append(row)
                progress.say(f"agents, {row.cell.policy}", f"mean run {row.cell.run_s.mean:.1f} s")
    if found.cases:
        _serve(found, programs, language, about, progress)


def _serve(found: Findings, programs: Programs, language: Language, about: dict[str, Any], progress: Progress) -> None:
    folder = Path(programs.peers)
    names = [name for text in programs.against for name in text.split(",")]
    others = [other(name, folder, about["flags"], progress) for name in names]
    with contextlib.ExitStack() as stack:
        for target in others:
            stack.callback(target.end)
        url = programs.url
        if not url:
            with progress.waiting(f"starting bosquet serve on {programs.model}"):
                url = stack.enter_context(own_server(programs.model))
        ours = Target(
            url, setting=f"bosquet serve on {programs.model}, as it comes" if not programs.url else "as it runs"
        )
        sides = [Side(ours, language.on_server(url)), Side(ours), *(Side(target) for target in others)]
        served = Served(sides, found.cases, programs.rounds, progress, found.readings)
        try:
            asyncio.run(served.run())
        finally:
            found.settings = {target.name: "; ".join(target.settings) for target in (ours, *others)}


def _show(
    about: dict[str, Any], played: Sequence[replay.Played], cells: Sequence[replay.Cell], found: Findings
) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    flags = " ".join(about["flags"])
    console.print(f"\n{escape(about['cpu'])}, {about['cores']} cores, {escape(flags)}", highlight=False)
    if cells:
        replay_report.show(played, cells, console)
    programs_report.show(found, console)
    if rows := [*replay_report.targets(cells), *programs_report.targets(found)]:
        console.print(targets_table(rows))


def _write(
    path: Path,
    about: dict[str, Any],
    played: Sequence[replay.Played],
    cells: Sequence[replay.Cell],
    found: Findings,
) -> None:
    document = {
        "format": 1,
        "bosquet": __version__,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": about,
        "replay": replay_report.document(played, cells),
        "programs": programs_report.document(found),
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
