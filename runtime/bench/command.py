"""`bosquet bench` as a whole: from its options to the tables."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path

from ...errors import BosquetError, ConfigError
from . import machine, report
from .own_server import own_server
from .peers.registry import installed
from .peers.started import Started
from .progress import Progress
from .session import Session
from .target import Target
from .workloads import chosen

OWN = "bosquet serve on the embedded model, as it comes"


def measure(
    workload: Sequence[str],
    *,
    url: str,
    against: Sequence[str],
    rounds: int,
    out: str,
    profile: bool,
    peers: str = "peers",
) -> None:
    """Measure the server at `url`, or one of our own, and those of `against` in turn: NAME=URL is one that runs, NAME a
    peer in the folder `peers`, which is started. Print tables, write JSON to `out` and a plot beside it; both may be
    empty. Ctrl-C ends it with what is known.

    Raises `ConfigError`, and `BosquetError` when a peer does not start or no request succeeded.
    """
    workloads = chosen(workload)
    path = writable(out) if out else None
    if rounds < 1:
        raise ConfigError("--rounds must be at least 1")
    progress = Progress()
    about = machine.facts()
    others = [other(name, Path(peers), about["flags"], progress) for text in against for name in text.split(",")]
    with contextlib.ExitStack() as stack:
        for target in others:
            stack.callback(target.end)
        if url:
            ours = Target(url)
        else:
            with progress.waiting("starting bosquet serve on the embedded model"):
                ours = Target(stack.enter_context(own_server()), setting=OWN)
        session = Session([ours, *others], workloads, rounds, profile, progress)
        try:
            asyncio.run(session.run())
        finally:
            if session.passes:
                report.show(session, about)
                if path is not None:
                    report.write(session, about, path)
    if not any(reading.good for reading in session.passes):
        raise BosquetError("no request succeeded")


def other(text: str, folder: Path, flags: Collection[str], progress: Progress) -> Target:
    name, equals, url = text.partition("=")
    if not equals:
        return Started(installed(name, folder, flags), folder, progress)
    if not (name and url):
        raise ConfigError(f"--against {text}: expected NAME=URL")
    return Target(url, name)


def writable(out: str) -> Path:
    """Found out before the measurement, not after it."""
    path = Path(out)
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"--out {out}: not a file in an existing folder")
    return path
