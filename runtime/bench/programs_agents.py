"""Agents that use tools, on a real model in this process; and what a fork costs in pages.

The engine with its scheduler, cache and kernels as a server has them, at the pace of the real clock; what agents say
and what their tools find is written beforehand, so that every policy has the same work. Wants torch for the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple

import numpy as np

from ...types import PAGE, Origin, Request, SamplingParams, TokenLogprob
from ..engine import Engine
from ..plan import Handle, Plan, Runner, Sampled, SampleRow, ScoreRow
from . import replay_policies
from .replay import Cell, cell
from .replay_optimum import Ids, reused
from .replay_policies import BASELINE, POLICIES, Policy
from .replay_simulation import Model, Pace, Replay, Scripted
from .replay_traces import Run, Stream, Trace, Turn

ABOUT = (
    "24 agents on one prompt of 320 tokens, 608 of their own, 6 answers of 32 and tools of 0.2 to 5 s, 64 tokens each"
)
AGENTS, COMMON, OWN, TURNS, ANSWER, FOUND = 24, 320, 608, 6, 32, 64
WAIT_S = (0.2, 5.0)
POOL = 0.4
"""The cache, as a share of what all agents would fill."""

FIRST_ID = 1000
"""Token ids from here on are used, in order; ids before it may mean something to a model."""


class Agents(NamedTuple):
    """One policy's agents. `prefix` is the share of the tokens that were ever computed before which were reused."""

    cell: Cell
    prefix: float


def trace(agents: int = AGENTS) -> Trace:
    """The agents' requests. Every number is a whole number of pages."""
    random, block = Random(1), PAGE
    runs = []
    common = np.arange(FIRST_ID, FIRST_ID + COMMON, dtype=np.int32)
    for agent in range(agents):
        length = OWN + TURNS * (ANSWER + FOUND)
        first = FIRST_ID + COMMON + agent * length
        talk: Ids = np.concatenate((common, np.arange(first, first + length, dtype=np.int32)))
        turns = []
        for turn in range(TURNS):
            asked = COMMON + OWN + turn * (ANSWER + FOUND)
            pause = random.uniform(*WAIT_S) if turn else 0.0
            turns.append(Turn(talk[:asked:block], talk[:0], talk[asked : asked + ANSWER], pause))
        runs.append(Run(f"agent {agent}", [Stream(None, turns)]))
    return Trace("agents", runs, block, 1, inferred=False)


def pool_pages(played: Trace) -> int:
    starts = np.concatenate([turn.starts for run in played.runs for turn in run.turns])
    return round(POOL * len(np.unique(starts)))


class Real(Scripted):
    """A model that computes everything, and whose draws are then replaced."""

    def __init__(self, runner: Runner) -> None:
        super().__init__()
        self._runner = runner

    def clock(self) -> float:
        return time.monotonic()

    def wait_until(self, when: float) -> None:
        time.sleep(max(0.0, when - time.monotonic()))

    def submit(self, plan: Plan) -> Handle:
        return _Drawn(self, self._runner.submit(plan))


class _Drawn:
    """A pass of `Real`."""

    def __init__(self, model: Real, handle: Handle) -> None:
        self._model = model
        self._handle = handle
        self._drawn: list[Sampled] = []

    def sample(self, draws: Sequence[SampleRow], scores: Sequence[ScoreRow]) -> None:
        self._handle.sample(draws, scores)
        self._drawn = self._model.written(draws)

    def result(self) -> tuple[list[Sampled], list[list[TokenLogprob]]]:
        return self._drawn, self._handle.result()[1]


def measured(played: Trace, model: Callable[[int], Scripted], told: Sequence[Policy] = POLICIES) -> Iterator[Agents]:
    """One policy after the other; `model` is made for a pool of so many pages."""
    pages = pool_pages(played)
    for policy in told:
        began = time.perf_counter()
        running = model(pages)
        engine = replay_policies.engine(policy, pages, running)
        pace = Pace(1.0, WAIT_S[1], round(pages / POOL))
        replay = Replay(
            played, pace, engine, running, live=len(played.runs), told=policy.told, ends=policy.ends, seed=1
        )  # fmt: skip
        seen = replay.run()
        engine.check_integrity()
        best, endless = sum(reused(replay.requests(), pages)), sum(reused(replay.requests(), None))
        took = time.perf_counter() - began
        found = cell(played.name, 0.0, POOL, policy.name, pages, seen, best, took)
        yield Agents(found, seen.cached_tokens / endless)


def loaded(name: str) -> Callable[[int], Real]:
    """A model as the engine loads it. Raises `ModelLoadError`."""
    import torch

    from ...kernels.cpu.library import default_threads
    from ...kernels.registry import load_ops
    from ..models.registry import load_model
    from ..models.source import resolve
    from ..precision import resolve_precision
    from ..runner import TorchRunner
    from ..settings import EngineConfig

    precision = resolve_precision(EngineConfig(model=name))
    native, stored = precision.kernels == "native", precision.weights == "stored"
    threads = default_threads()
    ops = load_ops(precision.kernels, threads=threads, storage=precision.weights)
    model = load_model(
        resolve(name, dtype="stored" if native else precision.weights), precision.compute, ops, stored=stored
    )
    torch.set_num_threads(1 if native else threads)
    return lambda pages: Real(TorchRunner(model, pages, precision.kv))


class Fork(NamedTuple):
    """Pages in use, the prefix's included, at the end of one branch and of all."""

    prefix: int
    branches: int
    tokens: int
    one: int
    all: int

    @property
    def ratio(self) -> float:
        return self.all / self.one


def fork(prefix: int = 4000, branches: int = 8, tokens: int = 32, own: int = 8) -> Fork:
    """Branches of a computed prefix, each with `own` tokens of its own and an answer of so many."""
    return Fork(prefix, branches, tokens, *(_most_pages(prefix, count, tokens, own) for count in (1, branches)))


def _most_pages(prefix: int, branches: int, tokens: int, own: int) -> int:
    model = Model()
    engine = replay_policies.engine(next(p for p in POLICIES if p is not BASELINE), 4 * prefix // PAGE, model)
    head = list(range(prefix))
    _ask(engine, model, 0, head, 1)
    _pages_until_idle(engine)
    for branch in range(branches):
        first = prefix + 1 + branch * own
        _ask(engine, model, 1 + branch, [*head, *range(first, first + own)], tokens)
    return _pages_until_idle(engine)


def _pages_until_idle(engine: Engine) -> int:
    """The most pages that were in use at once."""
    most = 0
    while not engine.idle:
        engine.step()
        stats = engine.stats()
        most = max(most, stats.pages_total - stats.pages_free)
    return most


def _ask(engine: Engine, model: Model, number: int, ids: list[int], tokens: int) -> None:
    model.answers[number] = (len(ids), list(range(10**6 + 1000 * number, 10**6 + 1000 * number + tokens)))
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=number)
    origin = Origin(program="fork", run="fork", step="", branch=str(number))
    engine.add(Request(id=str(number), ids=ids, sampling=sampling, origin=origin))
