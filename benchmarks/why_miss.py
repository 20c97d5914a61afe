"""What explaining misses costs the engine: at admission, at the end of a request, on eviction, for a snapshot.

    PYTHONSAFEPATH=1 .venv/bin/python benchmarks/why_miss.py

The real tree and the real `WhyMiss`, without a model. A step at one row takes about 6.5 ms with the embedded model, so
one percent of it is 65 µs; what a request pays once is spread over its steps.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

from bosquet.radix_cache import Ghosts, Namespace, PagePool, RadixCache
from bosquet.runtime.cache_look import MOST_NODES, view_tree
from bosquet.runtime.miss import WhyMiss
from bosquet.runtime.runs import Runs
from bosquet.runtime.sequence import Sequence
from bosquet.types import PAGE, Origin, Request, SamplingParams

STEP_US, STEPS = 6500.0, 32
SHARED, REQUESTS, PROMPTS = 4096, 200, 20_000


def microseconds(work: Callable[[int], object], times: int = REQUESTS) -> float:
    """The median of single calls, in time of the processor: other programs do not count."""
    taken = []
    for i in range(times):
        began = time.thread_time()
        work(i)
        taken.append(time.thread_time() - began)
    return 1e6 * statistics.median(taken)


def sequence(name: str, ids: list[int], tenant: str = "") -> Sequence:
    request = Request(id=name, ids=ids, sampling=SamplingParams(max_tokens=1), origin=Origin(tenant=tenant))
    return Sequence(request, 0, 0, len(ids) + 1, None)


class Bed:
    """A cache with a shared prefix of `SHARED` tokens and many ways from its end."""

    def __init__(self) -> None:
        self.rng = random.Random(1)
        self.cache = RadixCache(PagePool(40_000), ghosts=Ghosts())
        self.why = WhyMiss(self.cache, time.monotonic)
        self.shared = [self.rng.randrange(49_152) for _ in range(SHARED)]
        for _ in range(600):
            self.put(self.shared + self.tail(400))
        for _ in range(600):
            self.put(self.tail(400))
        for _ in range(400):  # its sample is full, as it is in a server that has run for a minute
            self.why.reuse.fill([self.rng.getrandbits(62) for _ in range(25)])

    def tail(self, tokens: int) -> list[int]:
        return [self.rng.randrange(49_152) for _ in range(tokens)]

    def put(self, ids: list[int]) -> None:
        pages = self.cache.pool.take(-(-len(ids) // PAGE))
        self.cache.pool.give(self.cache.insert(sequence("", ids).namespace, ids, pages).duplicates)

    def admitted(self, sequences: list[Sequence]) -> float:
        """Of each, in microseconds: what is done beside matching."""

        def one(i: int) -> None:
            match = self.cache.match(sequences[i].namespace, sequences[i].key, sequences[i].match_limit)
            began = time.thread_time()
            self.why.admitted(sequences[i], match, 0, ())
            taken.append(time.thread_time() - began)

        taken: list[float] = []
        microseconds(one, len(sequences))
        return 1e6 * statistics.median(taken)


def snapshot_of(tenants: int) -> float:
    """Of a tree of many prompts that begin alike."""
    cache = RadixCache(PagePool(2 * PROMPTS))
    for i in range(PROMPTS):
        pages = cache.pool.take(2)
        cache.pool.give(cache.insert(Namespace(f"t{i % tenants}"), [*[7] * PAGE, *[i] * PAGE], pages).duplicates)
    runs = Runs(cache, time.monotonic)
    assert len(view_tree(cache, runs, 0.0).nodes) == MOST_NODES
    return microseconds(lambda i: view_tree(cache, runs, time.monotonic()), 100)


def main() -> None:
    bed = Bed()
    rows: list[tuple[str, float]] = []
    new = [sequence(f"a{i}", bed.tail(400)) for i in range(REQUESTS)]
    rows.append(("admission, 400 tokens like no other", bed.admitted(new)))
    known = [sequence(f"b{i}", list(bed.shared)) for i in range(REQUESTS)]
    rows.append((f"admission, {SHARED} tokens all cached", bed.admitted(known)))
    left = [sequence(f"c{i}", bed.shared + bed.tail(400)) for i in range(REQUESTS)]
    rows.append((f"admission, {SHARED} cached, then another way", bed.admitted(left)))
    node = bed.cache.match(known[0].namespace, known[0].key).node
    rows.append((f"end of a request of {SHARED} tokens", microseconds(lambda i: bed.why.kept(known[i], node))))
    rows.append(("evicting one page, with ghosts", microseconds(lambda i: bed.cache.evict(1))))
    ghosts, bed.cache.ghosts = bed.cache.ghosts, None
    rows.append(("evicting one page, without", microseconds(lambda i: bed.cache.evict(1))))
    bed.cache.ghosts = ghosts
    for name, taken in rows:
        print(f"{name:<48}{taken:9.1f} µs  {100 * taken / STEP_US:6.2f} % of a step at one row")
    worst = rows[2][1] + rows[3][1]
    share, name = 100 * worst / STEP_US / STEPS, f"a request of {STEPS} steps, at worst"
    print(f"{name:<48}{worst:9.1f} µs  {share:6.2f} % of its steps")
    for tenants in (4, PROMPTS):
        name = f"snapshot, {PROMPTS} prompts of {tenants} tenants"
        print(f"{name:<48}{snapshot_of(tenants):9.1f} µs  for {MOST_NODES} nodes, the most")


if __name__ == "__main__":
    main()
