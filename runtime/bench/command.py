"""`bosquet bench` as a whole: from its options to the tables."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from ...errors import BosquetError, ConfigError
from . import machine, report
from .own_server import own_server
from .progress import Progress
from .session import Session
from .target import Target
from .workloads import chosen


def measure(workload: Sequence[str], *, url: str, against: Sequence[str], rounds: int, out: str, profile: bool) -> None:
    """Measure the server at `url`, or one of our own, and those of `against` (NAME=URL) in turn; print tables and write
    JSON to `out`, both empty for none. Ctrl-C ends it with what is known.

    Raises `ConfigError`, and `BosquetError` when no request succeeded.
    """
    workloads = chosen(workload)
    others = [_named(text) for text in against]
    path = writable(out) if out else None
    if rounds < 1:
        raise ConfigError("--rounds must be at least 1")
    progress = Progress()
    about = machine.facts()
    with contextlib.ExitStack() as stack:
        if not url:
            with progress.waiting("starting bosquet serve on the embedded model"):
                url = stack.enter_context(own_server())
        session = Session([Target(url), *others], workloads, rounds, profile, progress)
        try:
            asyncio.run(session.run())
        finally:
            if session.passes:
                report.show(session, about)
                if path is not None:
                    report.write(session, about, path)
    if not any(reading.good for reading in session.passes):
        raise BosquetError("no request succeeded")


def _named(text: str) -> Target:
    name, equals, url = text.partition("=")
    if not (name and equals and url):
        raise ConfigError(f"--against {text}: expected NAME=URL")
    return Target(url, name)


def writable(out: str) -> Path:
    """Found out before the measurement, not after it."""
    path = Path(out)
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"--out {out}: not a file in an existing folder")
    return path
