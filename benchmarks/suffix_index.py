"""What the index behind suffix drafts costs, beside a suffix automaton that does the same (decision 12).

    PYTHONSAFEPATH=1 .venv/bin/python benchmarks/suffix_index.py [--tokens 8000] [--fresh 0.5]

The text is random words, of which a share is fresh and the rest quotes of what stood before.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable

from bosquet.speculative.suffix import SuffixIndex

ROUNDS = 5


class Automaton:
    """Blumer et al., 1985: states with transitions, suffix links, lengths, and where each first ended."""

    def __init__(self) -> None:
        self.next: list[dict[int, int]] = [{}]
        self.link, self.length, self.end = [-1], [0], [0]
        self.last = 0

    def add(self, token: int) -> None:
        new = self._state({}, self.length[self.last] + 1, self.length[self.last] + 1)
        at = self.last
        while at != -1 and token not in self.next[at]:
            self.next[at][token] = new
            at = self.link[at]
        if at != -1:
            found = self.next[at][token]
            if self.length[at] + 1 == self.length[found]:
                self.link[new] = found
            else:
                copy = self._state(dict(self.next[found]), self.length[at] + 1, self.end[found])
                self.link[copy] = self.link[found]
                while at != -1 and self.next[at].get(token) == found:
                    self.next[at][token] = copy
                    at = self.link[at]
                self.link[found] = self.link[new] = copy
        self.last = new

    def _state(self, transitions: dict[int, int], length: int, end: int) -> int:
        self.next.append(transitions)
        self.length.append(length)
        self.end.append(end)
        self.link.append(0)
        return len(self.next) - 1


def automaton(ids: list[int]) -> object:
    made = Automaton()
    for token in ids:
        made.add(token)
    return made


def index(ids: list[int]) -> object:
    made = SuffixIndex(len(ids))
    made.extend(ids)
    return made


def text(tokens: int, fresh: float) -> list[int]:
    rng = random.Random(1)
    ids: list[int] = []
    while len(ids) < tokens:
        if ids and rng.random() >= fresh:
            start = rng.randrange(len(ids))
            ids += ids[start : start + rng.randrange(5, 60)]
        else:
            ids += [rng.randrange(20_000) for _ in range(30)]
    return ids[:tokens]


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of the suffix index and of an automaton.")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--fresh", type=float, default=0.5)
    options = parser.parse_args()
    ids = text(options.tokens, options.fresh)
    kinds: dict[str, Callable[[list[int]], object]] = {"automaton": automaton, "index": index}
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        for name, make in kinds.items():
            began = time.perf_counter()
            make(ids)
            seconds[name].append(time.perf_counter() - began)
    for name, make in kinds.items():
        tracemalloc.start()
        kept = make(ids)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        del kept
        each = statistics.median(seconds[name]) / len(ids)
        print(f"{name:10} {1e6 * each:5.2f} µs and {size / len(ids):4.0f} bytes a token")


if __name__ == "__main__":
    main()
