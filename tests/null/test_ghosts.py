"""Ghosts against a plain list of all that ever left, marks against hashes of whole prefixes, and reuse distances
against caches of every size."""

from __future__ import annotations

import random
import tracemalloc
from collections import OrderedDict

import pytest

from bosquet.radix_cache import Ghosts, Lfu, Lru, Namespace, PagePool, RadixCache, ReuseDistances, snapshot
from bosquet.radix_cache.ghosts import GHOST_BYTES, EvictionCause
from bosquet.radix_cache.key import Key
from bosquet.radix_cache.marks import first_mark, marks_after, marks_of, marks_to
from bosquet.radix_cache.node import Node

PAGE = 16
SPACES = [Namespace("a"), Namespace("b")]


class Book:
    """A listener that writes down every prefix that left: namespace and all tokens up to the page's end."""

    def __init__(self) -> None:
        self.now = 0.0
        self.gone: OrderedDict[tuple[Namespace, tuple[int, ...]], tuple[EvictionCause, float, float]] = OrderedDict()

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    def inserted(self, node: Node, pages: object) -> None:
        pass

    def evicted(self, node: Node, pages: list[int], cause: EvictionCause) -> None:
        ids = tuple(node.prefix().ids())
        keep = len(node.pages) - len(pages)
        ends = [min(node.start + (i + 1) * PAGE, node.end) for i in range(keep, len(node.pages))]
        for end in reversed(ends):
            key = (node.namespace, ids[:end])
            self.gone.pop(key, None)
            self.gone[key] = (cause, self.now + 1, self.now + 1 - node.last_access)  # the tree looks at the clock next


def prompts(rng: random.Random) -> list[list[int]]:
    """Texts that share beginnings of all lengths."""
    found: list[list[int]] = []
    for _ in range(60):
        base = list(rng.choice(found))[: rng.randrange(1, 90)] if found and rng.random() < 0.7 else []
        found.append(base + [rng.randrange(3) for _ in range(rng.randrange(1, 60))])
    return found


@pytest.mark.parametrize("seed", range(12))
def test_a_random_tree_leaves_the_ghosts_that_the_book_has(seed: int):
    rng = random.Random(seed)
    book, ghosts = Book(), Ghosts(10_000)
    pool = PagePool(40)
    cache = RadixCache(pool, rng.choice([Lru, Lfu])(), clock=book.clock, listener=book, ghosts=ghosts)
    texts = prompts(rng)
    for _ in range(250):
        ns, ids = rng.choice(SPACES), rng.choice(texts)
        need = -(-len(ids) // PAGE)
        cache.evict(max(0, need - pool.free))
        if rng.random() < 0.02:
            cache.reset()
        taken = pool.take(need)
        pool.give(cache.insert(ns, ids, taken).duplicates)
        if rng.random() < 0.3:
            cache.evict(rng.randrange(1, 12))
        _follow_as_the_book(cache, ghosts, book, rng.choice(SPACES), rng.choice(texts))
    for node in (view.node for view in snapshot(cache, 1000).nodes):
        if node.parent is not None:
            data = node.prefix().data
            assert marks_to(node, node.end) == marks_after(first_mark(node.namespace), data)


def _follow_as_the_book(cache: RadixCache, ghosts: Ghosts, book: Book, ns: Namespace, ids: list[int]) -> None:
    match = cache.match(ns, ids)
    boundary = match.length // PAGE * PAGE
    known = marks_to(match.node, boundary)
    last = known[-1] if known else first_mark(ns)
    tokens, ghost = ghosts.follow(last, Key.of(ids[boundary:]).data)

    expected, first = 0, None  # whole pages as long as each of them left, then the longest part of a page that left
    while expected + PAGE <= len(ids) - boundary:
        entry = book.gone.get((ns, tuple(ids[: boundary + expected + PAGE])))
        if entry is None:
            break
        expected, first = expected + PAGE, first or entry
    for size in range(min(PAGE - 1, len(ids) - boundary - expected), 0, -1):
        entry = book.gone.get((ns, tuple(ids[: boundary + expected + size])))
        if entry is not None:
            expected, first = expected + size, first or entry
            break
    assert (tokens, ghost and tuple(ghost)) == (expected, first and pytest.approx(first))


def test_a_ring_keeps_the_newest_and_no_more():
    ghosts = Ghosts(100)
    pool = PagePool(400)
    cache = RadixCache(pool, ghosts=ghosts)
    for i in range(300):
        cache.insert(SPACES[0], [i] * PAGE, pool.take(1))
    cache.evict(300)  # LRU: in the order in which they came
    assert len(ghosts) == 100
    there = [
        ghosts.find(marks_after(first_mark(SPACES[0]), Key.of([i] * PAGE).data)[0]) is not None for i in range(300)
    ]
    assert there == [False] * 200 + [True] * 100


def test_what_leaves_twice_is_remembered_by_its_last_time():
    ghosts = Ghosts(3)
    book = Book()
    pool = PagePool(8)
    cache = RadixCache(pool, clock=book.clock, ghosts=ghosts)
    for ids in ([1] * PAGE, [2] * PAGE, [1] * PAGE, [3] * PAGE):
        cache.insert(SPACES[0], ids, pool.take(1))
        cache.evict(1)
    first = marks_after(first_mark(SPACES[0]), Key.of([1] * PAGE).data)[0]
    ghost = ghosts.find(first)
    assert ghost is not None
    assert ghost.left > 5
    assert len(ghosts) == 3


def test_memory_is_as_stated():
    """Twice as many as the ring holds, the growth of the index counted at its worst."""
    most = 2_000
    pool = PagePool(1)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        ghosts = Ghosts(most)
        cache = RadixCache(pool, ghosts=ghosts)
        tracemalloc.reset_peak()
        for i in range(2 * most):
            cache.insert(SPACES[0], [i] * PAGE, pool.take(1))
            cache.evict(1)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert len(ghosts) == most
    assert peak <= GHOST_BYTES * most + 20_000  # the tree itself


def test_marks_tell_namespaces_apart():
    data = Key.of(range(64)).data
    assert not set(marks_after(first_mark(SPACES[0]), data)) & set(marks_after(first_mark(SPACES[1]), data))


def test_a_node_without_pages_of_its_own_has_no_mark():
    pool = PagePool(4)
    cache = RadixCache(pool)
    node = cache.insert(SPACES[0], [1, 2, 3], pool.take(1)).node
    assert [*marks_of(node), *marks_to(node, 3)] == []


def test_a_snapshot_is_capped_and_says_what_it_leaves_out():
    pool = PagePool(3000)
    cache = RadixCache(pool)
    for i in range(700):
        cache.insert(SPACES[i % 2], [i] * PAGE, pool.take(1))
        cache.insert(
            SPACES[i % 2], [*[i] * PAGE, *[7] * PAGE], [*cache.match(SPACES[i % 2], [i] * PAGE).pages, *pool.take(1)]
        )
    seen = snapshot(cache, 300)
    assert len(seen.nodes) == 300
    for place, view in enumerate(seen.nodes):
        assert view.parent < place
        assert view.parent == -1 or view.node.parent is seen.nodes[view.parent].node
        shown = sum(other.parent == place for other in seen.nodes)
        assert view.hidden == len(view.node.children) - shown
    only = snapshot(cache, 300, SPACES[1])
    assert {view.node.namespace for view in only.nodes} == {SPACES[1]}


# ---- reuse distances -------------------------------------------------------------------------------------------------


def walks(rng: random.Random, count: int) -> list[list[int]]:
    """Paths through a tree of pages: a mark stands for all before it."""
    return [
        [hash(rng_path[: i + 1]) for i in range(len(rng_path))]
        for rng_path in (
            tuple(min(int(rng.paretovariate(1.1)), 5) for _ in range(rng.randrange(1, 7))) for _ in range(count)
        )
    ]


def lru_hits(requests: list[list[int]], size: int) -> int:
    """A plain LRU cache of pages, in which a request's first page is the last to go."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for pages in requests:
        hits += sum(page in held for page in pages)
        for page in reversed(pages):
            held.pop(page, None)
            held[page] = None
        while len(held) > size:
            held.popitem(last=False)
    return hits


@pytest.mark.parametrize("seed", range(5))
def test_the_curve_is_that_of_lru_caches(seed: int):
    requests = walks(random.Random(seed), 300)
    reuse = ReuseDistances()
    for pages in requests:
        reuse.ask(pages)
    asked = sum(map(len, requests))
    assert (reuse.asked, reuse.one_in) == (asked, 1)
    for point in reuse.curve(200):
        assert point.hit_rate == pytest.approx(lru_hits(requests, point.pages) / asked), point.pages


def test_pages_that_were_filled_count_as_used_and_not_as_asked_for():
    reuse = ReuseDistances()
    reuse.ask([16, 32])
    reuse.fill([16, 32, 48, 64])
    reuse.ask([16, 32, 48])
    rates = [point.hit_rate for point in reuse.curve(8)][:4]
    assert rates == pytest.approx([1 / 5, 2 / 5, 3 / 5, 3 / 5])


def test_a_sample_gives_nearly_the_same_curve():
    rng = random.Random(7)
    requests = walks(rng, 6000)
    whole, part = ReuseDistances(100_000), ReuseDistances(256)
    for pages in requests:
        whole.ask(pages)
        part.ask(pages)
    assert (part.one_in > 4, len(part) <= 256, whole.one_in) == (True, True, 1)
    exact = {point.pages: point.hit_rate for point in whole.curve(4096)}
    wrong = [abs(exact[point.pages] - point.hit_rate) for point in part.curve(4096) if point.pages in exact]
    assert len(wrong) > 20
    assert max(wrong) < 0.05
