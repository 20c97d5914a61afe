"""The replay of traces as a whole: every load and pool with every policy, a process for each core."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ...errors import ConfigError
from ..env import for_workers
from . import replay_optimum, replay_policies
from .replay_policies import BASELINE, POLICIES
from .replay_simulation import Model, Observed, Pace, Replay, pace
from .replay_traces import Trace, read

LIVE = 24
"""Runs that live at once."""

SEED = 1
"""Of the order of runs and of the offsets at which the first ones begin."""


class Job(NamedTuple):
    """One replay. `pool` is a share of the working set; `runs` limits their number, 0 takes all."""

    path: str
    scale: int
    runs: int
    load: float
    pool: float
    policy: int


class Spread(NamedTuple):
    mean: float
    p50: float
    p99: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What one replay has shown. `reuse` and `optimum` are shares of the prompts' tokens; `run_s` and `request_s` are
    seconds from the first request of a run to its last answer, and from a request to its answer; `shortened` prompts
    did not fit the pool. `replay_s` is what the replay itself took."""

    trace: str
    load: float
    pool: float
    policy: str
    pages: int
    reuse: float
    optimum: float
    run_s: Spread
    request_s: Spread
    longest_wait_s: float
    preemptions: int
    evicted_pages: int
    prompt_tokens: int
    computed_tokens: int
    shortened: int
    steps: int
    replay_s: float


@dataclass(frozen=True, slots=True)
class Played:
    """A trace as it is replayed at one load."""

    trace: str
    load: float
    runs: int
    requests: int
    inferred: bool
    scale: int
    pace: Pace


def jobs(paths: Sequence[str], scale: int, runs: int, loads: Sequence[float], pools: Sequence[float]) -> list[Job]:
    """Every trace, load, pool and policy. Raises `ConfigError` for what is no load or pool, and no trace."""
    if any(load <= 0 for load in loads):
        raise ConfigError("--loads: a load must be more than 0")
    if any(pool <= 0 for pool in pools):
        raise ConfigError("--pools: a pool must be more than 0")
    for path in paths:
        _trace(path, scale, runs)
    return [
        Job(path, scale, runs, load, pool, policy)
        for path in paths
        for load in loads
        for pool in pools
        for policy in range(len(POLICIES))
    ]


def played(todo: Iterable[Job]) -> list[Played]:
    """One for each trace and load, in the order of the jobs."""
    found = {}
    for job in todo:
        trace = _trace(job.path, job.scale, job.runs)
        about = (trace.name, job.load, len(trace.runs), trace.requests, trace.inferred, trace.scale)
        found[job.path, job.load] = Played(*about, _pace(job.path, job.scale, job.runs, job.load))
    return list(found.values())


def replayed(todo: Sequence[Job], processes: int = 0) -> Iterator[Cell]:
    """Cells as they become known, in no order. `processes` 0: one a core; 1: this one."""
    processes = processes or len(os.sched_getaffinity(0))
    if processes == 1:
        yield from map(replay, todo)
        return
    for_workers()
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        executor = ProcessPoolExecutor(processes, context, initializer=_ignore_ctrl_c)
        stack.callback(_abandon, executor)
        for done in as_completed([executor.submit(replay, job) for job in todo]):
            yield done.result()


def replay(job: Job) -> Cell:
    """Do one."""
    began = time.perf_counter()
    trace, policy = _trace(job.path, job.scale, job.runs), POLICIES[job.policy]
    at = _pace(job.path, job.scale, job.runs, job.load)
    pages = max(2, round(job.pool * at.working_set))
    model = Model()
    engine = replay_policies.engine(policy, pages, model)
    run = Replay(trace, at, engine, model, live=LIVE, told=policy.told, ends=policy.ends, seed=SEED)
    seen = run.run()
    engine.check_integrity()
    optimum = sum(replay_optimum.reused(run.requests(), pages))
    return cell(trace.name, job.load, job.pool, policy.name, pages, seen, optimum, time.perf_counter() - began)


def closed(cell: Cell, baseline: Cell) -> float | None:
    """Which share of the baseline's gap to the optimum is closed; None where there was none. Of the two orders of
    requests, the optimum of the one counts that allows more."""
    gap = max(cell.optimum, baseline.optimum) - baseline.reuse
    return None if cell.policy == BASELINE.name or gap <= 0 else (cell.reuse - baseline.reuse) / gap


def baseline_of(cell: Cell, cells: Iterable[Cell]) -> Cell | None:
    """What a cell is compared with, if it is known."""
    same = (cell.trace, cell.load, cell.pool, BASELINE.name)
    return next((other for other in cells if (other.trace, other.load, other.pool, other.policy) == same), None)


def cell(
    trace: str, load: float, pool: float, policy: str, pages: int, seen: Observed, optimum: int, replay_s: float
) -> Cell:
    """What was observed, in figures; `optimum` in tokens."""
    return Cell(
        trace=trace,
        load=load,
        pool=pool,
        policy=policy,
        pages=pages,
        reuse=seen.cached_tokens / seen.prompt_tokens,
        optimum=optimum / seen.prompt_tokens,
        run_s=_spread(seen.completions),
        request_s=_spread(seen.latencies),
        longest_wait_s=max(seen.waits),
        preemptions=seen.preemptions,
        evicted_pages=seen.evicted_pages,
        prompt_tokens=seen.prompt_tokens,
        computed_tokens=seen.computed_tokens,
        shortened=seen.shortened,
        steps=seen.steps,
        replay_s=replay_s,
    )


def _spread(values: Sequence[float]) -> Spread:
    ordered = sorted(values)
    last = len(ordered) - 1
    return Spread(sum(ordered) / len(ordered), ordered[last // 2], ordered[-(-last * 99 // 100)], ordered[last])


@lru_cache(4)
def _trace(path: str, scale: int, runs: int) -> Trace:
    return read(path, scale).first(runs, SEED)


@lru_cache(16)
def _pace(path: str, scale: int, runs: int, load: float) -> Pace:
    return pace(_trace(path, scale, runs), LIVE, load)


def _ignore_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the first process, which tells what is known


def _abandon(executor: ProcessPoolExecutor) -> None:
    executor.shutdown(wait=False, cancel_futures=True)
    for process in multiprocessing.active_children():
        process.terminate()
