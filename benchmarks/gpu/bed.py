"""Where the cases of a part run: the device, the time that is left, and a clock for work on the device.

A case that fails is a line of the table, and the next one runs. After a fault that no later call on the device survives
(an illegal address, say), the process ends with `POISONED`, and is started again for what is left.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bosquet.runtime.gpu.port import CudaPort, HostPort, Port

from .floors import BIG, TINY, Sizes
from .journal import Journal
from .report import Countdown, Finding

POISONED = 3
FLUSH = 1 << 28  # bytes that push everything else out of a second-level cache

Work = Callable[[], object]


class Ceilings(NamedTuple):
    """Bytes and operations a second."""

    copy: float
    gemm: float
    gemm_fp8: float


class Bed:
    """One part's. `tiny`: in the interpreter, where no timing means anything."""

    def __init__(self, part: str, journal: Journal, seconds: float, tiny: bool) -> None:
        self.part = part
        self.tiny = tiny
        self.device = torch.device("cpu") if tiny else torch.device("cuda", torch.cuda.current_device())
        self.sizes: Sizes = TINY if tiny else BIG
        self._journal = journal
        self._countdown = Countdown(seconds, time.monotonic)
        entries = [entry for entry in journal.entries() if entry.part == part]
        self._begun = {entry.case for entry in entries}
        found = [(entry.case, entry.finding) for entry in entries if entry.finding is not None]
        self._failed_before = {case for case, finding in found if finding.facts.get("right") is False}
        self._ceilings: Ceilings | None = None

    def case(self, name: str, run: Callable[[], Finding], *, sets_up: bool = False) -> Finding | None:
        """Run a case and write down what it found; None where it found nothing. One that was begun before, in a process
        that has ended, is left out, unless it `sets_up` what later ones need and did not fail."""
        again = name in self._begun
        if again and (not sets_up or name in self._failed_before):
            return None
        if self._countdown.left <= 0:
            self._journal.found(self.part, name, Finding("-", verdict="skipped: the part's time is up"))
            return None
        self._journal.began(self.part, name)
        try:
            finding = run()
            self.wait()
        except Exception as error:
            self._failed(name, error)
            return None
        if not again:
            self._journal.found(self.part, name, finding)
        return finding

    def skip(self, name: str, why: str) -> None:
        if name not in self._begun:
            self._journal.found(self.part, name, Finding("-", verdict=f"skipped: {why}"))

    def _failed(self, name: str, error: Exception) -> None:
        said = " ".join(str(error).split())[:160]
        facts = {"right": False, "traceback": traceback.format_exc()}
        self._journal.found(
            self.part, name, Finding("-", verdict=f"FAILED {type(error).__name__}: {said}", facts=facts)
        )
        error.__traceback__ = None  # its frames hold tensors
        try:
            self.wait()
            self.reclaim()
        except Exception:
            sys.stdout.flush()
            os._exit(POISONED)  # at once: to close what is broken would fail too

    # ---- the device ------------------------------------------------------------------------------------------------

    def port(self) -> Port:
        return HostPort() if self.tiny else CudaPort(self.device)

    def wait(self) -> None:
        if not self.tiny:
            torch.cuda.synchronize()

    def reclaim(self) -> None:
        if not self.tiny:
            torch.cuda.empty_cache()

    def free_bytes(self) -> int:
        self.reclaim()
        return 1 << 30 if self.tiny else int(torch.cuda.mem_get_info()[0])

    def noise(self, *shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        made = torch.Generator(self.device).manual_seed(seed + 1)
        return torch.randn(*shape, generator=made, device=self.device).to(dtype)

    def numbers(self, values: Any, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(values).to(dtype).to(self.device)

    def pick(self, full: Any, tiny: Any) -> Any:
        return tiny if self.tiny else full

    # ---- its clock -------------------------------------------------------------------------------------------------

    def seconds(self, works: Sequence[Work], repeats: int = 20) -> float:
        """Of one of `works`, which are the same on different data: the median of recorded runs of all, each after the
        second-level cache has been emptied."""
        if self.tiny:
            began = time.perf_counter()
            works[0]()
            return time.perf_counter() - began
        replay = recorded(works)
        flush = torch.empty(FLUSH, dtype=torch.uint8, device=self.device)
        taken = event_seconds(replay, repeats, before=flush.zero_)
        return median(taken) / len(works)

    def ceilings(self) -> Ceilings:
        """What this device reaches, measured once a part."""
        if self._ceilings is None:
            self._ceilings = _measure(self) if not self.tiny else Ceilings(1e9, 1e9, 1e9)
        return self._ceilings


def recorded(works: Sequence[Work]) -> Work:
    """Work that is started with one call; recording it shows that nothing in it waits for the device."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for work in works:
            work()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for work in works:
            work()
    return graph.replay


def event_seconds(work: Work, repeats: int, before: Work | None = None) -> list[float]:
    """Seconds on the device, run by run."""
    marks = []
    for _ in range(repeats + 3):
        if before is not None:
            before()
        mark = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        mark[0].record()
        work()
        mark[1].record()
        marks.append(mark)
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in marks[3:]]


def _measure(bed: Bed) -> Ceilings:
    copy = _copy_rate(bed.noise(1 << 30))
    bed.reclaim()
    a, b = bed.noise(8192, 8192), bed.noise(8192, 8192, seed=1)
    found = Ceilings(copy, _gemm_rate(a, b), _fp8_rate(a, b))
    bed.reclaim()
    return found


def _copy_rate(source: Tensor) -> float:
    target = torch.empty_like(source)
    return 2 * source.nbytes / median(event_seconds(lambda: target.copy_(source), 15))


def _gemm_rate(a: Tensor, b: Tensor) -> float:
    out = torch.empty_like(a)
    return float(2 * len(a) ** 3 / median(event_seconds(lambda: torch.mm(a, b.T, out=out), 15)))


def _fp8_rate(a: Tensor, b: Tensor) -> float:
    """0 where this torch or device has no such product."""
    narrow = [x.to(torch.float8_e4m3fn) for x in (a, b)]
    one = torch.ones((), device=a.device)

    def product() -> Tensor:
        return torch._scaled_mm(narrow[0], narrow[1].T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    try:
        return float(2 * len(a) ** 3 / median(event_seconds(product, 15)))
    except (RuntimeError, TypeError):
        return 0.0
