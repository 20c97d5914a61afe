"""A trace replayed on the real engine, scheduler and prefix cache, with a model that says what is written.

A fixed number of runs live at once; where one is over the next begins. A turn is asked for when the one before it has
been answered and the recorded pause is over. Pauses are stretched so that these runs, with a cache without bound, would
ask for `load` times what the model can compute. The clock of `Model` is simulated: passes and pauses move it, and
nothing waits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from ...errors import BosquetError
from ...types import PAGE, Origin, Output, Request, SamplingParams, TokenLogprob
from ..engine import Engine
from ..plan import Handle, Move, Plan, Sampled, SampleRow, ScoreRow
from .replay_optimum import Ids
from .replay_traces import Run, Stream, Trace, Turn

STEP_S, DECODE_S, PREFILL_S = 0.002, 0.0003, 0.00045
"""A pass takes the first, and one of the others for each row that decodes and for each token of a prefill."""

IDLE_S, PATIENCE_S = 0.1, 3600.0
"""How far the clock moves at most while nothing can be computed, and for how long that may last."""

TOGETHER = 8
"""Rows that are taken to share a pass, where pauses are stretched to a load."""


class Scripted:
    """A `Runner` that draws what is written: a request's seed is the number of its answer."""

    def __init__(self) -> None:
        self.answers: dict[int, tuple[int, Sequence[int]]] = {}  # number → length of the prompt, answer

    def clock(self) -> float:
        raise NotImplementedError

    def wait_until(self, when: float) -> None:
        raise NotImplementedError

    def submit(self, plan: Plan) -> Handle:
        raise NotImplementedError

    def move(self, moves: Sequence[Move]) -> None:
        assert not moves, "nothing is drafted, so nothing moves"

    def profile(self) -> dict[str, float]:
        return {}

    def written(self, draws: Sequence[SampleRow]) -> list[Sampled]:
        drawn = []
        for draw in draws:
            length, answer = self.answers[draw.seed]
            drawn.append(Sampled(answer[draw.position - length]))
        return drawn


class Model(Scripted):
    """It only takes time, on a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def clock(self) -> float:
        return self._now

    def wait_until(self, when: float) -> None:
        self._now = max(self._now, when)

    def submit(self, plan: Plan) -> Handle:
        prefill = sum(len(row.tokens) for row in plan.rows if len(row.tokens) > 1)
        decode = sum(len(row.tokens) == 1 for row in plan.rows)
        self._now += STEP_S + decode * DECODE_S + prefill * PREFILL_S
        return Pass(self)


class Pass:
    """A pass of `Model`, over as soon as it was begun."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._drawn: list[Sampled] = []

    def sample(self, draws: Sequence[SampleRow], scores: Sequence[ScoreRow]) -> None:
        self._drawn = self._model.written(draws)

    def result(self) -> tuple[list[Sampled], list[list[TokenLogprob]]]:
        return self._drawn, []


@dataclass(slots=True)
class Observed:
    """What a replay has shown; seconds are those of the simulated clock.

    `admitted` has prompts and answers in the order of admission, as `replay_optimum` reads them again.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    preemptions: int = 0
    evicted_pages: int = 0
    shortened: int = 0
    steps: int = 0
    completions: list[float] = field(default_factory=list)  # of runs
    latencies: list[float] = field(default_factory=list)  # of requests
    waits: list[float] = field(default_factory=list)  # of requests, until they were admitted
    admitted: list[tuple[Turn, int]] = field(default_factory=list)  # with the length of the prompt


@dataclass(slots=True)
class _Live:
    """A request under way, and what happens when it is over."""

    turn: Turn
    length: int
    asked_at: float
    over: Callable[[], None]
    admitted: bool = False


class Replay:
    """One replay. `told`: requests bear the id of their run. `ends`: the engine is told when a run is over."""

    def __init__(
        self, trace: Trace, pace: Pace, engine: Engine, model: Scripted, *, live: int, told: bool, ends: bool, seed: int
    ) -> None:
        self._trace = trace
        self._engine = engine
        self._model = model
        self._live = live
        self._told = told
        self._ends = ends
        self._random = random.Random(seed)
        self._pace = pace
        self._most = (engine.stats().pages_total - 1) * PAGE  # tokens of a request
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._begun = 0
        self._asked = 0
        self._under_way: dict[str, _Live] = {}
        self._new: list[str] = []  # asked for, not yet admitted
        self.observed = Observed()

    def run(self) -> Observed:
        """Play all of it."""
        for _ in range(min(self._live, len(self._trace.runs))):
            self._at(self._model.clock() + self._random.random() * self._pace.length_s, self._begin)
        idle_s, steps = 0.0, 0
        while self._events or self._under_way:
            self._happen()
            began = self._model.clock()
            outputs = self._engine.step()
            self._note_admitted(began, outputs)
            for output in outputs:
                if output.finish is not None:
                    self._finish(output)
            before, steps = steps, self._engine.stats().steps
            if steps > before:
                idle_s = 0.0
            elif self._events:
                then = self._events[0][0]
                self._model.wait_until(min(then, began + IDLE_S) if self._under_way else then)
            else:  # it waits for its own clock, or for ever
                self._model.wait_until(began + IDLE_S)
                idle_s += IDLE_S
                if idle_s > PATIENCE_S:
                    raise BosquetError(f"the replay stands still: {len(self._under_way)} requests are not admitted")
        stats = self._engine.stats()
        seen = self.observed
        seen.computed_tokens, seen.steps = stats.computed_tokens, stats.steps
        seen.preemptions, seen.evicted_pages = stats.preemptions, stats.evicted_pages
        return seen

    def requests(self) -> Iterator[tuple[Ids, Ids]]:
        """Prompts, and what of their answers is computed, which the last token is not; in the order of admission."""
        block = self._trace.block
        return ((turn.prompt(block)[:length], turn.answer[:-1]) for turn, length in self.observed.admitted)

    # ---- what happens when -----------------------------------------------------------------------------------------

    def _at(self, when: float, what: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._events, (when, self._count, what))

    def _happen(self) -> None:
        while self._events and self._events[0][0] <= self._model.clock():
            heappop(self._events)[2]()

    def _begin(self) -> None:
        """The next run, if there is one."""
        if self._begun == len(self._trace.runs):
            return
        run = self._trace.runs[self._begun]
        self._begun += 1
        began, left = self._model.clock(), len(run.streams)

        def stream_over() -> None:
            nonlocal left
            left -= 1
            if not left:
                self.observed.completions.append(self._model.clock() - began)
                if self._ends:
                    self._engine.end_run("", run.name)
                self._begin()

        for stream in run.streams:
            if stream.after is None:
                self._ask(run, stream, 0, stream_over)

    def _ask(self, run: Run, stream: Stream, at: int, stream_over: Callable[[], None]) -> None:
        turn = stream.turns[at]

        def over() -> None:
            for other in run.streams:
                if stream is run.streams[0] and other.after == at:
                    self._ask(run, other, 0, stream_over)
            if at + 1 < len(stream.turns):
                pause = stream.turns[at + 1].pause_s * self._pace.stretch
                self._at(self._model.clock() + pause, lambda: self._ask(run, stream, at + 1, stream_over))
            else:
                stream_over()

        ids = turn.prompt(self._trace.block)[: self._most - len(turn.answer)].tolist()
        self.observed.shortened += len(ids) < turn.length(self._trace.block)
        number = self._asked
        self._asked += 1
        branch = run.streams.index(stream)
        self._model.answers[number] = (len(ids), turn.answer.tolist())
        request = Request(
            id=str(number),
            ids=ids,
            sampling=SamplingParams(max_tokens=len(turn.answer), ignore_eos=True, seed=number),
            origin=Origin("", self._trace.name, run.name, "", str(branch)) if self._told else Origin(),
        )
        self._engine.add(request)
        self._under_way[request.id] = _Live(turn, len(ids), self._model.clock(), over)
        self._new.append(request.id)

    def _note_admitted(self, now: float, outputs: Sequence[Output]) -> None:
        if not self._new:
            return
        inside = {sequence.request.id for sequence in self._engine.scheduler.running}
        inside.update(output.request for output in outputs)
        for name in [name for name in self._new if name in inside]:
            live = self._under_way[name]
            self.observed.waits.append(now - live.asked_at)
            self.observed.admitted.append((live.turn, live.length))
            self._new.remove(name)

    def _finish(self, output: Output) -> None:
        live = self._under_way.pop(output.request)
        del self._model.answers[int(output.request)]
        seen = self.observed
        seen.latencies.append(self._model.clock() - live.asked_at)
        seen.prompt_tokens += live.length
        seen.cached_tokens += output.cached_tokens
        live.over()


@dataclass(frozen=True, slots=True)
class Pace:
    """How a trace is played: pauses are multiplied by `stretch`, so that live runs ask for `load` times what the
    model can compute when nothing is computed twice.

    `length_s` is the mean length of a run that nothing holds up, and `working_set` the pages of whole blocks of the
    runs that live at once, the mean over time: what would have to be kept so that nothing is computed twice.
    """

    stretch: float
    length_s: float
    working_set: int


def pace(trace: Trace, live: int, load: float) -> Pace:
    known = set[int]()
    works = [_work_s(run, trace.block, known) for run in trace.runs]
    work, pauses = sum(works), sum(run.pauses_s for run in trace.runs)
    stretch = max(0.0, (live / load - 1) * work / pauses) if pauses else 0.0
    lengths = [work + stretch * run.pauses_s for work, run in zip(works, trace.runs, strict=True)]
    blocks = sum(length * run.blocks for length, run in zip(lengths, trace.runs, strict=True)) / sum(lengths)
    return Pace(stretch, sum(lengths) / len(lengths), round(live * blocks * trace.block / PAGE))


def _work_s(run: Run, block: int, known: set[int]) -> float:
    """Seconds of computing, of a model that shares its passes among `TOGETHER` rows; blocks in `known`, to which those
    of the run are added, are not computed again."""
    seconds = 0.0
    for turn in run.turns:
        new = set(turn.starts.tolist()) - known
        known |= new
        tokens = len(new) * block + len(turn.rest)
        seconds += tokens * PREFILL_S + len(turn.answer) * (DECODE_S + STEP_S / TOGETHER)
    return seconds
