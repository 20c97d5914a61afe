"""`bosquet bench structured` as a whole: from its options to the tables."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from ...errors import ConfigError
from . import machine, structured_report
from .command import writable
from .maskbench import Case, read_cases
from .own_server import own_server
from .progress import Progress
from .structured_cases import built_in
from .structured_compile import Subject, judged, open_model, some, timings, warm_up
from .structured_report import Findings
from .structured_streams import measure_server, passes
from .target import Target


def measure(
    data: str, *, limit: int, model: str, url: str, serve: bool, rounds: int, out: str, progress: Progress | None = None
) -> None:
    """Measure, print tables and write JSON to `out` (empty: none). Ctrl-C ends it with what is known.

    `data` is a file in the form of the MaskBench sample, empty for the built-in schemas; `limit` cases of it are taken
    (0: all). Schemas are compiled in this process, for `model`'s vocabulary. With `serve` the server at `url`, or one
    of our own, is asked as well, `rounds` times. Raises `ConfigError` and `ModelLoadError`.
    """
    cases = some(_cases(data), limit)
    path = writable(out) if out else None
    if serve and url:
        asyncio.run(_look(url))  # found out before the schemas are compiled, not after
    progress = progress or Progress()
    with progress.waiting(f"reading the vocabulary of {model}"):
        subject = open_model(model)
    about = f"{len(cases)} schemas of {data or 'the built-in set (--data FILE takes others)'}"
    found = Findings(about, subject.name, machine.facts())
    settings = {"limit": limit, "rounds": rounds}
    try:
        compile_all(found, subject, cases, progress)
        if serve:
            _serve(found, model, url, rounds, progress)
    finally:
        structured_report.show(found)
        if path is not None:
            structured_report.write(found, settings, path)


def compile_all(found: Findings, subject: Subject, cases: list[Case], progress: Progress) -> None:
    """What needs no server."""
    warm_up(subject)
    for mode, outcomes in (("strict", found.strict), ("relaxed", found.relaxed)):
        with progress.bar(f"schemas, {mode}", len(cases)) as advance:
            outcomes.extend(judged(subject, cases, strict=mode == "strict", on_case=advance))
        passed = sum(outcome.result == "pass" for outcome in outcomes)
        progress.say(f"schemas, {mode}", f"{passed} of {len(outcomes)} pass")
    with progress.waiting("compiling new schemas and many tools"):
        found.timings.extend(timings(subject))


def _serve(found: Findings, model: str, url: str, rounds: int, progress: Progress) -> None:
    with contextlib.ExitStack() as stack:
        if not url:
            with progress.waiting(f"starting bosquet serve on {model}"):
                url = stack.enter_context(own_server(model))
        with progress.bar("streams", passes(rounds)) as advance:
            found.served = asyncio.run(measure_server(Target(url), rounds, on_pass=advance))


async def _look(url: str) -> None:
    target = Target(url)
    try:
        await target.look()
    finally:
        target.client.close()
        await asyncio.sleep(0)  # connections are closed by the loop's next turn


def _cases(data: str) -> list[Case]:
    if not data:
        return built_in()
    try:
        cases = list(read_cases(Path(data)))
    except OSError as error:
        raise ConfigError(f"--data {data}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"--data {data}: a line is not in the form of the MaskBench sample, "
            f'{{"id": …, "schema": …, "tests": [{{"valid": …, "data": …}}]}}: {error!r}'
        ) from None
    if not cases:
        raise ConfigError(f"--data {data}: there is no schema in it")
    return cases
