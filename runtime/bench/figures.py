"""From readings to figures: rates, medians, ratios, percentiles. Knows nothing of how they are shown."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .passes import Pass
from .record_schema import is_valid
from .target import STAGE, Counters
from .workloads import Workload

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Row:
    """What one server did on one workload. Times in seconds; None where nothing was measured.

    `figure` is the median over the rounds of the workload's own metric; `lead` is how many times faster the first
    server was in the same round, its median too (1 for the first itself). `tokens_per_s` counts generated tokens.
    `ttft` and `tpot` hold the percentiles of `PERCENTILES` over the requests of all rounds.
    """

    workload: str
    server: str
    unit: str
    figure: float | None = None
    low: float | None = None
    high: float | None = None
    lead: float | None = None
    tokens_per_s: float | None = None
    ttft: tuple[float, ...] | None = None
    tpot: tuple[float, ...] | None = None
    cached_share: float | None = None
    requests: int = 0
    failed: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Where the mean step of a workload went, in milliseconds. `other` is what the engine counts in no part; `python`
    is all but the forward pass and sampling. `tokens` went through the model in a mean step."""

    workload: str
    server: str
    steps: int
    tokens: float
    total: float
    forward: float
    schedule: float
    masks: float
    sample: float
    stages: dict[str, float]  # of the forward pass, where the kernels tell

    @property
    def python(self) -> float:
        return self.total - self.forward - self.sample

    @property
    def other(self) -> float:
        return self.python - self.schedule - self.masks


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest of the sorted values; `values` is not empty."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def figure(workload: Workload, reading: Pass) -> float | None:
    """The workload's metric of one pass; None when nothing came back, or, for a duration, when something is missing."""
    good = reading.good
    if not good or (workload.metric == "seconds" and reading.errors):
        return None
    match workload.metric:
        case "output tok/s":
            return sum(answer.completion_tokens for answer in good) / reading.seconds
        case "prompt tok/s":
            return sum(answer.prompt_tokens - (answer.cached_tokens or 0) for answer in good) / reading.seconds
        case "seconds":
            return reading.seconds
        case "valid/s":
            return sum(is_valid(answer.text) for answer in good) / reading.seconds
        case "items/s":
            return len(good) / reading.seconds


def rows(
    workloads: Sequence[Workload],
    servers: Sequence[str],
    passes: Sequence[Pass],
    left_out: Mapping[tuple[str, str], str] | None = None,
) -> list[Row]:
    """A row for each workload and server of which there is a reading, or a reason in `left_out` why there is none;
    `servers[0]` is the one compared with."""
    found = []
    for workload in workloads:
        mine = [reading for reading in passes if reading.workload == workload.name]
        base = _by_round(workload, mine, servers[0])
        for server in servers:
            of_server = [reading for reading in mine if reading.server == server]
            if of_server:
                found.append(_row(workload, server, of_server, base, _by_round(workload, mine, server)))
            elif left_out and (workload.name, server) in left_out:
                found.append(Row(workload.name, server, workload.metric, notes=(left_out[workload.name, server],)))
    return found


def _by_round(workload: Workload, passes: Iterable[Pass], server: str) -> dict[int, float]:
    whole = {p.round: figure(workload, p) for p in passes if p.server == server and not p.streamed}
    return {round: value for round, value in whole.items() if value is not None}


def _row(workload: Workload, server: str, passes: Sequence[Pass], base: dict[int, float], own: dict[int, float]) -> Row:
    values = list(own.values())
    whole = [p for p in passes if not p.streamed]
    timed = [p for p in passes if p.streamed] if workload.has_streamed_pass else whole
    answers = [answer for p in timed for answer in p.good]
    firsts = [a.first if workload.has_streamed_pass else a.seconds for a in answers]
    rates = [sum(a.completion_tokens for a in p.good) / p.seconds for p in whole if p.good]
    return Row(
        workload=workload.name,
        server=server,
        unit=workload.metric,
        figure=statistics.median(values) if values else None,
        low=min(values, default=None),
        high=max(values, default=None),
        lead=_lead(workload, base, own),
        tokens_per_s=statistics.median(rates) if rates else None,
        ttft=_percentiles(firsts),
        tpot=_percentiles([answer.tpot for answer in answers]),
        cached_share=_cached_share(whole),
        requests=sum(len(p.answers) for p in passes),
        failed=sum(len(p.errors) for p in passes),
        notes=tuple(_notes(workload, passes)),
    )


def _lead(workload: Workload, base: dict[int, float], own: dict[int, float]) -> float | None:
    pairs = [(base[round], value) for round, value in own.items() if round in base and base[round] and value]
    ratios = [value / first if workload.metric == "seconds" else first / value for first, value in pairs]
    return statistics.median(ratios) if ratios else None


def _percentiles(values: Iterable[float | None]) -> tuple[float, ...] | None:
    known = [value for value in values if value is not None]
    return tuple(percentile(known, percent) for percent in PERCENTILES) if known else None


def _cached_share(passes: Sequence[Pass]) -> float | None:
    """Cached prompt tokens out of all, where each answer tells them."""
    answers = [answer for p in passes for answer in p.good]
    cached = [answer.cached_tokens for answer in answers if answer.cached_tokens is not None]
    prompt = sum(answer.prompt_tokens for answer in answers)
    return sum(cached) / prompt if prompt and len(cached) == len(answers) else None


def _notes(workload: Workload, passes: Sequence[Pass]) -> Iterable[str]:
    for message, count in Counter(error for p in passes for error in p.errors).most_common(3):
        yield f"{count} failed: {message}"
    good = [answer for p in passes for answer in p.good]
    if workload.schema is not None:
        invalid = sum(not is_valid(answer.text, workload.schema) for answer in good)
        if invalid:
            yield f"{invalid} of {len(good)} answers do not fit the schema"
    else:
        short = sum(answer.completion_tokens < answer.asked for answer in good)
        if short:
            yield f"{short} of {len(good)} answers are shorter than asked: ignore_eos has no effect there"


def step_times(workloads: Sequence[Workload], passes: Sequence[Pass]) -> list[StepTimes]:
    """The mean step of each workload and server, over the passes that read the engine's counters."""
    found: list[StepTimes] = []
    for workload in workloads:
        read = [p for p in passes if p.workload == workload.name and p.steps is not None and p.steps["steps"] > 0]
        found += [
            _step_times(workload.name, server, [p.steps or {} for p in read if p.server == server])
            for server in dict.fromkeys(p.server for p in read)
        ]
    return found


def _step_times(workload: str, server: str, grown: Sequence[Counters]) -> StepTimes:
    total = {name: sum(counters[name] for counters in grown) for name in grown[0]}
    steps = total["steps"]
    of = {name: 1000 * total[name] / steps for name in ("step", "forward", "schedule", "mask", "sample")}
    return StepTimes(
        workload=workload,
        server=server,
        steps=round(steps),
        tokens=total["tokens"] / steps,
        total=of["step"],
        forward=of["forward"],
        schedule=of["schedule"],
        masks=of["mask"],
        sample=of["sample"],
        stages={
            name.removeprefix(STAGE): 1000 * seconds / steps
            for name, seconds in total.items()
            if name.startswith(STAGE)
        },
    )
