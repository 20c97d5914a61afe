"""Whole passes of models with random weights: decoding for several batches and contexts, and prefill."""

from __future__ import annotations

import gc
import time
from functools import partial
from statistics import median
from typing import NamedTuple

from bosquet.runtime.gpu.runner import GpuHandle, GpuRunner
from bosquet.runtime.plan import Plan, SampleRow
from bosquet.types import Row, SamplingParams

from .bed import Bed
from .floors import MODELS, TINY, Sizes, decode_bytes, prefill_flops, rows_that_fit, token_bytes
from .random_model import CONTEXT, dealt, model_of, runner_of
from .report import Finding, seconds, share

GREEDY = SamplingParams(temperature=0)
CASES = ((1, 1024), (64, 8192), (1, 8192), (8, 8192), (1, 32_768), (8, 32_768), (64, 1024), (8, 1024), (64, 32_768))
STORAGES = ("bfloat16", "fp8", "int4")
KEPT = 12 << 30  # bytes for recordings, activations and fragments
STEPS = 20


class Step(NamedTuple):
    """Seconds of a decode step, and what the host needed of them."""

    seconds: float
    host: float


def run(bed: Bed) -> None:
    models = {"tiny": TINY} if bed.tiny else MODELS
    for name, sizes in models.items():
        for storage in STORAGES if not bed.tiny else STORAGES[:1]:
            _model(bed, name, sizes, storage)
            gc.collect()
            bed.reclaim()


def _model(bed: Bed, name: str, sizes: Sizes, storage: str) -> None:
    """All cases of one model, over one cache."""
    label, per_token = f"{name} {storage}", token_bytes(sizes)
    made: list[GpuRunner] = []

    def start() -> Finding:
        began = time.perf_counter()
        model = model_of(bed, sizes, storage, context=bed.pick(CONTEXT, 64))
        bed.wait()
        free, wanted = bed.free_bytes(), bed.pick([(r, c) for r, c in CASES], [(2, 32)])
        fitting = [r * c for r, c in wanted if rows_that_fit(free, KEPT if not bed.tiny else 0, r, c, per_token)]
        made.append(runner_of(bed, model, max(fitting)))
        return Finding(seconds(time.perf_counter() - began), facts={"tokens": max(fitting), "free": free})

    bed.case(f"{label}: weights and noise are made", start, sets_up=True)
    if not made:
        return
    runner = made[0]
    for rows, context in CASES if not bed.tiny else ((2, 32),):
        case = f"{label}: decode {rows} x {context}"
        if rows * context > 16 * runner.pages:
            bed.skip(case, "no memory for so many keys and values")
        else:
            bed.case(case, partial(_decode, bed, runner, name, sizes, storage, rows, context))
    if storage == "bfloat16" or name != "1B":
        for length in bed.pick((8192,), (3,)):
            bed.case(f"{label}: prefill of {length}", partial(_prefill, bed, runner, label, sizes, length))
    if storage == "bfloat16":
        for rows in bed.pick((1, 8), (1,)):
            bed.case(f"{label}: decode {rows} x 1024 without recordings", partial(_without, bed, runner, rows))
    made.clear()


# ---- decoding --------------------------------------------------------------------------------------------------------


def decoding(runner: GpuRunner, rows: int, context: int) -> tuple[Plan, list[SampleRow]]:
    """The last of `context` tokens of each row, taken from the pass before."""
    pages = dealt(runner, rows, context)
    plan = Plan([Row((-1 - i,), context - 1, pages[i], (0,)) for i in range(rows)], draws=list(range(rows)))
    return plan, [SampleRow(i, GREEDY, 0, 0, context) for i in range(rows)]


def steps(bed: Bed, runner: GpuRunner, rows: int, context: int, count: int) -> Step:
    """Passes that each take what the one before it drew; nobody waits but for the last. The median of three runs."""
    plan, draws = decoding(runner, rows, context)

    def one() -> GpuHandle:
        handle = runner.submit(plan)
        handle.sample(draws, [])
        return handle

    for _ in range(1 if bed.tiny else 3):
        handle = one()
    handle.result()
    taken: list[Step] = []
    for _ in range(1 if bed.tiny else 3):
        host, began = 0.0, time.perf_counter()
        for _ in range(count):
            before = time.perf_counter()
            handle = one()
            host += time.perf_counter() - before
        handle.result()
        taken.append(Step((time.perf_counter() - began) / count, host / count))
    return Step(*(median(each) for each in zip(*taken, strict=True)))


def _decode(bed: Bed, runner: GpuRunner, name: str, sizes: Sizes, storage: str, rows: int, context: int) -> Finding:
    step = steps(bed, runner, rows, context, bed.pick(STEPS, 1))
    floor = decode_bytes(sizes, storage, rows, context) / bed.ceilings().copy
    key = f"{name} {storage} {rows}x{context}"
    near = floor / step.seconds
    figures = {f"decode {key}": near, f"step {key}": 1 / near, f"rate {key}": rows / step.seconds}
    facts = {"step_s": step.seconds, "host_s": step.host, "floor_s": floor, "figures": figures}
    return Finding(
        f"{rows / step.seconds:,.0f} tok/s", f"{rows / floor:,.0f} tok/s of bytes", share(near),
        f"step {seconds(step.seconds)}, host {seconds(step.host)}", facts,
    )  # fmt: skip


def _without(bed: Bed, runner: GpuRunner, rows: int) -> Finding:
    """The same passes queued kernel by kernel, and recorded."""
    context = bed.pick(1024, 32)
    recorded = steps(bed, runner, rows, context, bed.pick(STEPS, 1))
    plain = runner_of(bed, runner.model, rows * context, graphs=False)  # type: ignore[arg-type]
    queued = steps(bed, plain, rows, context, bed.pick(STEPS, 1))
    assert not len(plain.graphs)
    facts = {"recorded_s": recorded.seconds, "queued_s": queued.seconds, "queued_host_s": queued.host}
    times = f"{queued.seconds / recorded.seconds:.2f}x"
    return Finding(seconds(queued.seconds), f"{seconds(recorded.seconds)} recorded", times, "", facts)


# ---- prefill ---------------------------------------------------------------------------------------------------------


def _prefill(bed: Bed, runner: GpuRunner, label: str, sizes: Sizes, length: int) -> Finding:
    """One prompt: in one pass, and in chunks of 2,048."""
    pages = dealt(runner, 1, length)[0]
    tokens = [(i * 7919) % sizes.vocabulary for i in range(length)]

    def whole(chunk: int) -> float:
        began = time.perf_counter()
        for start in range(0, length, chunk):
            last = min(start + chunk, length) - start
            handle = runner.submit(Plan([Row(tokens[start : start + last], start, pages, (last - 1,))], draws=[0]))
            handle.sample([SampleRow(0, GREEDY, 0, 0, start + last)], [])
        handle.result()
        return time.perf_counter() - began

    taken = {}
    for chunk in (length, bed.pick(2048, 2)):
        if not bed.tiny:
            whole(chunk)
        taken[chunk] = median(whole(chunk) for _ in range(1 if bed.tiny else 3))
    best = taken[length]
    rate, ceiling = prefill_flops(sizes, length) / best, bed.ceilings().gemm
    facts = {"seconds": taken, "rate": rate, "figures": {f"prefill {label} {length}": rate / ceiling}}
    said = "; ".join(f"{seconds(value)} by {chunk}" for chunk, value in taken.items())
    against = f"{ceiling / 1e12:.0f} TFLOP/s of GEMM"
    return Finding(f"{length / best:,.0f} tok/s", against, share(rate / ceiling), said, facts)
