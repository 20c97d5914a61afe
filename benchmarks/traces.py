"""What noting costs: the engine's notes in a step, and the record of a request on both sides of the socket.

    PYTHONSAFEPATH=1 .venv/bin/python benchmarks/traces.py [--rows 1 32] [--steps 400]

An engine decodes with a model that takes no time, once as it is and once with notes that do nothing, in turn; the
medians of the steps are compared. A step of the embedded model on two cores takes about 6.5 ms for one row: the share
is of that. The rest is timed by itself.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bosquet.radix_cache.pool import PagePool
from bosquet.radix_cache.tree import RadixCache
from bosquet.runtime import wire
from bosquet.runtime.engine import Bounds, Engine
from bosquet.runtime.limits import Limits, Vocabulary
from bosquet.runtime.notes import Notes
from bosquet.runtime.plan import Move, Plan, Sampled, SampleRow, ScoreRow
from bosquet.runtime.server.request_metrics import RequestMetrics
from bosquet.runtime.server.trace_book import TraceBook
from bosquet.runtime.server.trace_records import RequestRecord
from bosquet.runtime.server.trace_store import TraceStore
from bosquet.runtime.trace import Trace
from bosquet.types import Request, SamplingParams, TokenLogprob

VOCABULARY = 1000
STEP_S = 0.0065
ROUNDS = 9


class Handle:
    """Draws a token for each row."""

    def sample(self, draws: list[SampleRow], scores: list[ScoreRow]) -> None:
        self._drawn = [Sampled(row.position % VOCABULARY) for row in draws]

    def result(self) -> tuple[list[Sampled], list[list[TokenLogprob]]]:
        return self._drawn, []


class Nothing:
    """A runner that takes no time."""

    def submit(self, plan: Plan) -> Any:
        return Handle()

    def move(self, moves: Sequence[Move]) -> None:
        raise AssertionError("nothing is drafted here")

    def profile(self) -> dict[str, float]:
        return {}


def engine(rows: int, tokens: int) -> Engine:
    """With so many rows that decode."""
    pages = rows * (tokens // 16 + 40)
    made = Engine(
        Nothing(),
        RadixCache(PagePool(pages)),
        Limits(4096, rows, 10.0),
        Bounds(VOCABULARY, 1 << 20, rows),
        Vocabulary([b"a"] * VOCABULARY, frozenset(), ()),
    )
    rng = random.Random(0)
    for row in range(rows):
        ids = [rng.randrange(VOCABULARY) for _ in range(100)]
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=0)
        made.add(Request(id=f"r{row}", ids=ids, sampling=sampling))
    made.step()
    return made


@contextmanager
def without_notes() -> Iterator[None]:
    kept = Notes.passed, Notes.drew
    Notes.passed = Notes.drew = lambda *args: None  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Notes.passed, Notes.drew = kept  # type: ignore[method-assign]


def steps(rows: int, count: int) -> float:
    """Seconds of a step, the median."""
    made = engine(rows, count + 2)
    spent = []
    for _ in range(count):
        began = time.perf_counter()
        made.step()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent)


def in_steps(rows: int, count: int) -> tuple[float, float]:
    """Of a step as it is, and of one without notes: medians of rounds in turn."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        found[0].append(steps(rows, count))
        with without_notes():
            found[1].append(steps(rows, count))
    return statistics.median(found[0]), statistics.median(found[1])


def one_trace() -> Trace:
    made = engine(1, 40)
    while not made.idle:
        made.step()
    return made.take_traces()[0]


def each(work: Callable[[], object], count: int = 2000) -> float:
    """Microseconds of one call, the median of five rounds."""
    rounds = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(count):
            work()
        rounds.append((time.perf_counter() - began) / count)
    return statistics.median(rounds) * 1e6


def records() -> dict[str, float]:
    """What a request costs, once, by where."""
    found = one_trace()
    store = TraceStore("", 64 << 20)
    book = TraceBook()
    book.sinks += [RequestMetrics().see, store.put]

    def keep() -> None:
        record = RequestRecord(id=found.request, prompt_tokens=100, completion_tokens=40, status=200)
        book.begin(record, lambda record: None)
        book.noted(found)
        book.over(found.request)

    message = wire.encode(wire.Outputs(1, [], [found]))
    costs = {
        f"engine: encode the record ({len(message)} bytes)": each(lambda: wire.encode(wire.Outputs(1, [], [found]))),
        "API process: decode it": each(lambda: wire.decode_from_engine(message)),
        "API process, event loop: join, count, hand over": each(keep),
    }
    store.close()
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    for rows in args.rows:
        noted, bare = in_steps(rows, args.steps)
        spent = noted - bare
        print(
            f"{rows:3} rows: {noted * 1e6:7.1f} µs a step with notes, {bare * 1e6:7.1f} without: "
            f"{spent * 1e6:+.2f} µs, {spent / STEP_S:+.3%} of a step of {STEP_S * 1e3:g} ms"
        )
    for name, cost in records().items():
        print(f"{cost:7.1f} µs a request: {name}")


if __name__ == "__main__":
    main()
