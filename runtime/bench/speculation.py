"""`bosquet bench speculation` as a whole: from its options to the tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...errors import BosquetError, ConfigError
from ...types import DRAFT_SOURCES
from ..settings import EngineConfig
from . import machine, speculation_report
from .command import writable
from .progress import Progress
from .speculation_bed import Bed, open_bed
from .speculation_cases import EDITS, Case, cases, conversations
from .speculation_identity import GROUPS, TIGHT_TOKENS, judge
from .speculation_report import Findings, Result

CACHE_TOKENS = 32_768
"""All prompts of a case stay in the cache, and both sides find the same there."""

PROMPTS, FEW_PROMPTS = 100, 10
"""Of each group whose answers are compared."""


def measure(
    only: Sequence[str],
    *,
    sources: Sequence[str],
    model: str,
    draft_model: str,
    transcripts: str,
    rounds: int,
    quick: bool,
    identity: bool,
    out: str,
    progress: Progress | None = None,
) -> None:
    """Measure, print tables, write JSON to `out` (empty: none) and plots beside it. Ctrl-C ends it with what is known.

    `only` are names of cases and `sources` what may draft; empty: all. With `identity` answers with drafts and without
    are compared as well. Raises `ConfigError`, `ModelLoadError`, and `BosquetError` when an answer differs.
    """
    chosen = pick(cases(conversations(Path(transcripts) if transcripts else EDITS)), only)
    for source in sources:
        if source not in DRAFT_SOURCES:
            raise ConfigError(f"no source {source!r}; there are {', '.join(DRAFT_SOURCES)}")
    path = writable(out) if out else None
    progress = progress or Progress()
    about = machine.facts()
    config = EngineConfig(model=model, draft_model=draft_model, cache_tokens=CACHE_TOKENS)
    with progress.waiting(f"loading {model}"):
        bed = open_bed(config, tuple(sources) or DRAFT_SOURCES)
    found = Findings(bed.model, about, bed.pass_seconds)
    try:
        for case in chosen:
            found.results.append(run(bed, case, 1 if quick else min(rounds, case.rounds), quick, progress))
        if identity:
            compare(found, bed, config, FEW_PROMPTS if quick else PROMPTS, progress)
    finally:
        found.line = line(bed)
        speculation_report.show(found)
        if path is not None:
            settings = {"rounds": rounds, "quick": quick, "sources": bed.sources, "draft_model": draft_model}
            speculation_report.write(found, settings, path)
    if found.differing:
        raise BosquetError(f"{found.differing} answers are not the same with drafts and without")


def pick(known: Sequence[Case], only: Sequence[str]) -> list[Case]:
    """The cases of these names, with any number of streams. Raises `ConfigError`."""
    names = [case.name for case in known]
    for name in only:
        if name not in names:
            raise ConfigError(f"no case {name!r}; there are {', '.join(dict.fromkeys(names))}")
    return [case for case in known if not only or case.name in only]


def run(bed: Bed, case: Case, rounds: int, quick: bool, progress: Progress) -> Result:
    """Both sides of a case, in turn."""
    asks = case.asks(bed.speech, case.few if quick else case.count)
    with progress.bar(case.full_name, 2 * rounds) as advance:
        pairs = bed.compare(asks, case.at_once, rounds, case.full_name, advance)
    counted = [
        bed.forced(ask.grammar, answer)
        for ask, answer in zip(asks, pairs[0].off.answers, strict=True)
        if ask.grammar is not None
    ]
    total = sum(count for _, count in counted)
    result = Result(case, pairs, sum(forced for forced, _ in counted) / total if total else None, line(bed))
    progress.say(case.full_name, f"{result.ratio:.2f}×, {result.on_tokens_per_s:.0f} tok/s with drafts")
    return result


def line(bed: Bed) -> tuple[float, float]:
    """What a pass costs now: seconds, and seconds a token."""
    drafter = bed.engine.scheduler.drafter
    assert drafter is not None
    assert drafter.arbiter.costs is not None
    return drafter.arbiter.costs.line


def compare(found: Findings, bed: Bed, config: EngineConfig, prompts: int, progress: Progress) -> None:
    """Answers with drafts and without, of all groups."""
    tight = EngineConfig(model=config.model, draft_model=config.draft_model, cache_tokens=TIGHT_TOKENS)
    for group in GROUPS:
        with progress.waiting(f"comparing answers, {group.name}"):
            verdict = judge(open_bed(tight, bed.sources) if group.tight else bed, group, prompts)
        found.verdicts.append(verdict)
        progress.say(f"{group.name} answers", f"{verdict.same} of {verdict.prompts} the same")
