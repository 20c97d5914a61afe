"""What the hit rate would be if the cache were larger or smaller, from the distances between uses of the same page.

A page is still there when its prefix is asked for again if fewer distinct pages were used since than fit: so one pass
over the uses gives the hit rate of every size at once (Mattson and others, 1970, "stack distance"). Only pages whose
mark falls into a sample are followed, and the sample is halved when it has grown too large (Waldspurger and others,
2015, "SHARDS"). Assumes the policy LRU; knows nothing of requests.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

MOST = 1024
"""Pages that are followed at a time: under half a megabyte, with what is counted of them."""

TELLS = 8
"""Pages of a sample that tell something of a cache."""

PER_OCTAVE = 8
"""Cache sizes that are told apart between one and twice as much."""


class Point(NamedTuple):
    pages: int
    hit_rate: float  # of the tokens in whole pages that were asked for


class ReuseDistances:
    """Told of every use of pages, in the order in which they happen."""

    def __init__(self, most: int = MOST) -> None:
        self.one_in = 1  # page of so many is followed
        self.asked = 0  # pages in all
        self._sampled = 0  # the same, as the sample has it
        self._most = most
        self._mask = 0
        self._time = 0
        self._used: dict[int, int] = {}  # mark → when
        self._times: list[int] = []  # the same times, in order
        self._needing: dict[int, int] = {}  # size → pages asked for that are there from this size on

    def __len__(self) -> int:
        return len(self._used)

    def ask(self, marks: Sequence[int]) -> None:
        """A prompt that begins with these pages is looked up; then they are used, its first page last, as it is evicted
        last."""
        mask = self._mask
        sample = [mark for mark in marks if not mark & mask]
        self.asked += len(marks)
        self._sampled += len(sample) * self.one_in
        for mark in sample:
            when = self._used.get(mark)
            if when is not None:
                newer = len(self._times) - bisect_right(self._times, when)
                pages = newer * self.one_in + 1
                self._needing[pages] = self._needing.get(pages, 0) + self.one_in
        self._use(sample)

    def fill(self, marks: Sequence[int]) -> None:
        """A prefix goes on with what was computed: used up to its end, though nobody asked for it."""
        mask = self._mask
        self._use([mark for mark in marks if not mark & mask])

    def _use(self, sample: list[int]) -> None:
        for mark in reversed(sample):
            when = self._used.get(mark)
            if when is not None:
                del self._times[bisect_right(self._times, when) - 1]
            self._time += 1
            self._used[mark] = self._time
            self._times.append(self._time)
        while len(self._used) > self._most:
            self._halve()

    def _halve(self) -> None:
        self.one_in *= 2
        self._mask = self.one_in - 1
        self._used = {mark: when for mark, when in self._used.items() if not mark & self._mask}
        self._times = sorted(self._used.values())

    def curve(self, up_to: int) -> list[Point]:
        """The hit rate by cache size, from the smallest that the sample can tell to at least `up_to`, or to where more
        would not help.

        What the sample has too few or too many of are the few pages that everybody uses, which are hits in all but the
        smallest caches; so they are put right there ("SHARDS-adj" in the paper).
        """
        needing: dict[int, float] = {}
        for pages, count in self._needing.items():
            size = _size_class(pages)
            needing[size] = needing.get(size, 0.0) + count
        largest = max(_size_class(max(1, up_to)), max(needing, default=0))
        points: list[Point] = []
        hits = float(self.asked - self._sampled)
        for size in range(largest + 1):
            hits += needing.get(size, 0.0)
            pages = pages_of(size)
            if points and points[-1].pages == pages:
                points.pop()
            if self.one_in == 1 or pages >= TELLS * self.one_in:
                points.append(Point(pages, min(1.0, max(0.0, hits / self.asked)) if self.asked else 0.0))
        return points


def _size_class(pages: int) -> int:
    """The first that holds so many."""
    size = math.ceil(PER_OCTAVE * math.log2(pages))
    return size if pages_of(size) >= pages else size + 1


def pages_of(size: int) -> int:
    """The largest cache of a size class."""
    return math.floor(2 ** (size / PER_OCTAVE))
