"""The engine as a whole on a model with random weights: planning ahead or not, and a workload of agents with the prefix
cache and without.

Of a decode step two things are asked. How long the device stands still between one pass's last work and the next one's
first, by events on its own stream; and how long a step takes beside the same pass without an engine. The host gap is
the larger of the two shares.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bosquet.radix_cache.pool import PagePool
from bosquet.radix_cache.tree import RadixCache
from bosquet.runtime.drafting import Drafter
from bosquet.runtime.engine import Bounds, Engine
from bosquet.runtime.gpu.port import Array, Download, Graph, Port
from bosquet.runtime.gpu.runner import GpuRunner
from bosquet.runtime.limits import Limits, Vocabulary
from bosquet.types import Request, SamplingParams

from .bed import Bed
from .floors import BIG, SMALL, TINY, Sizes
from .random_model import CONTEXT, model_of, runner_of
from .report import Finding, seconds, share
from .time_models import steps

Moment = Callable[[], float]


class MarkedPort:
    """A port that marks, on the device's own clock, when a recorded pass's input comes and when its draws are over."""

    def __init__(self, port: Port, tiny: bool) -> None:
        self.device = port.device
        self.begins: list[Any] = []
        self.ends: list[Any] = []
        self._port = port
        self._tiny = tiny

    def _mark(self) -> Any:
        if self._tiny:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def fill(self, target: Tensor, array: Array) -> None:
        self._port.fill(target, array)
        self.begins.append(self._mark())  # after the copy: what the host did for it may have kept the device waiting

    def download(self, tensor: Tensor) -> Download:
        arriving = self._port.download(tensor)
        if len(self.ends) < len(self.begins):
            self.ends.append(self._mark())
        return arriving

    def upload(self, array: Array) -> Tensor:
        return self._port.upload(array)

    def capture(self, work: Callable[[], Tensor]) -> Graph:
        return self._port.capture(work)

    def free_bytes(self) -> int:
        return self._port.free_bytes()

    def peak_bytes(self, work: Callable[[], object]) -> int:
        return self._port.peak_bytes(work)

    def reclaim(self) -> None:
        self._port.reclaim()

    def forget(self) -> None:
        self.begins.clear()
        self.ends.clear()

    def gaps(self) -> tuple[float, float]:
        """(seconds between passes, seconds in all), from the first pass's beginning to the last one's."""
        if not self._tiny:
            torch.cuda.synchronize()

        def apart(a: Any, b: Any) -> float:
            return float(b - a) if self._tiny else float(a.elapsed_time(b)) / 1e3

        between = sum(apart(end, begin) for end, begin in zip(self.ends, self.begins[1:], strict=False))
        return between, apart(self.begins[0], self.begins[-1])


def engine_of(
    bed: Bed, runner: GpuRunner, *, lag: int, reuse: bool = True, chunk: int = 2048, drafter: Drafter | None = None
) -> Engine:
    width = runner.model.shape.vocab_size
    return Engine(
        runner,
        RadixCache(PagePool(runner.pages)),
        Limits(bed.pick(chunk, 24), 64, 10.0),
        Bounds(width, runner.model.shape.context_length, 256),
        Vocabulary([b"x"] * width, frozenset(), ()),
        lag=lag,
        reuse=reuse,
        drafter=drafter,
    )


def prompt(length: int, width: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, width, length).tolist()


@contextmanager
def no_collection() -> Iterator[None]:
    """As a server runs: the collector is called when nothing else is to be done."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def run(bed: Bed) -> None:
    for name, sizes in ({"tiny": TINY} if bed.tiny else {"8B": BIG, "1B": SMALL}).items():
        made: list[tuple[MarkedPort, GpuRunner]] = []

        bed.case(f"{name}: a runner is made", partial(_start, bed, sizes, made), sets_up=True)
        if not made:
            continue
        port, runner = made.pop()
        for rows in bed.pick((1, 8, 64), (2,)):
            for lag in (1, 0):
                manner = "planned ahead" if lag else "one pass after the other"
                bed.case(f"{name}: {rows} streams, {manner}", partial(_streams, bed, port, runner, name, rows, lag))
        if name != "1B":
            for reuse in (True, False):
                with_or_without = "with the cache" if reuse else "without"
                bed.case(f"{name}: agents, {with_or_without}", partial(_agents, bed, runner, reuse))
        del port, runner
        gc.collect()
        bed.reclaim()


def _start(bed: Bed, sizes: Sizes, made: list[tuple[MarkedPort, GpuRunner]]) -> Finding:
    began = time.perf_counter()
    port = MarkedPort(bed.port(), bed.tiny)
    model = model_of(bed, sizes, "bfloat16", context=bed.pick(CONTEXT, 160))
    made.append((port, runner_of(bed, model, bed.pick(120_000, 600), port=port, noisy=False)))
    bed.wait()
    return Finding(seconds(time.perf_counter() - began))


def _streams(bed: Bed, port: MarkedPort, runner: GpuRunner, name: str, rows: int, lag: int) -> Finding:
    """Decode steps of so many requests, from when all have begun to when the first is over."""
    length, most = bed.pick((512, 160), (3, 3))
    sampling = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True)
    width = runner.model.shape.vocab_size
    for warm in bed.pick((True, False), (False,)):
        engine = engine_of(bed, runner, lag=lag, reuse=False)
        for i in range(rows):
            engine.add(Request(id=str(i), ids=prompt(length, width, i), sampling=sampling, speculation=()))
        told: set[str] = set()
        while len(told) < rows:
            told |= {output.request for output in engine.step()}
        if warm:
            while not engine.idle:
                engine.step()
    with no_collection():
        port.forget()
        began, passes, tokens = time.perf_counter(), 0, 0
        over = False
        while not over:
            outputs = engine.step()
            tokens += sum(len(output.tokens) for output in outputs)
            over = any(output.finish is not None for output in outputs)
            passes += 1
        taken = (time.perf_counter() - began) / passes
        idle, whole = port.gaps()
    while not engine.idle:
        engine.step()
    alone = steps(bed, runner, rows, length + most // 2, bed.pick(30, 1)).seconds
    gap = max(idle / whole, 1 - alone / taken) if whole else 0.0
    facts: dict[str, Any] = {
        "step_s": taken,
        "alone_s": alone,
        "idle": idle / max(whole, 1e-9),
        "tokens": tokens,
        "gap": gap,
    }
    if name == "8B" and lag:
        facts["figures"] = {f"host gap {rows}": gap}
    return Finding(
        seconds(taken), f"{seconds(alone)} without engine", share(alone / taken),
        f"gap {gap:.1%}: device idle {idle / max(whole, 1e-9):.1%}", facts,
    )  # fmt: skip


def _agents(bed: Bed, runner: GpuRunner, reuse: bool) -> Finding:
    """Agents that share a system prompt and grow by an observation a turn; each turn is a request."""
    agents, turns, shared, task, most, seen = bed.pick((16, 6, 1600, 60, 40, 80), (1, 2, 17, 1, 2, 1))
    width = runner.model.shape.vocab_size
    engine = engine_of(bed, runner, lag=1, reuse=reuse)
    system = prompt(shared, width, 0)
    texts = [[*system, *prompt(task, width, 1 + i)] for i in range(agents)]
    done = [0] * agents
    sampling = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True)

    def ask(i: int) -> None:
        engine.add(Request(id=f"{i}.{done[i]}", ids=list(texts[i]), sampling=sampling, speculation=()))

    latencies: list[float] = []
    asked = [0.0] * agents
    with no_collection():
        began = time.perf_counter()
        for i in range(agents):
            asked[i] = time.perf_counter()
            ask(i)
        while not engine.idle:
            for output in engine.step():
                i = int(output.request.split(".")[0])
                texts[i] += output.tokens
                if output.finish is None:
                    continue
                latencies.append(time.perf_counter() - asked[i])
                done[i] += 1
                if done[i] < turns:
                    texts[i] += prompt(seen, width, 1000 * i + done[i])
                    asked[i] = time.perf_counter()
                    ask(i)
        taken = time.perf_counter() - began
    stats = engine.stats()
    assert stats.finished == agents * turns, stats
    cached = stats.cached_tokens / stats.prompt_tokens
    said = f"{cached:.0%} cached, a turn {seconds(median(latencies))}"
    facts = {"seconds": taken, "cached": cached, "turn_s": median(latencies), "computed": stats.computed_tokens}
    return Finding(seconds(taken), f"{agents} agents, {turns} turns", "", said, facts)
