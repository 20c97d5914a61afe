"""What the calls of one run did, and when: what a program's runs are learnt from.

A *step* is a `gen`, `select` or `act` as the program wrote it; a *request* is what a backend was asked for it, of which
an `act` makes several. Knows nothing of backends, and nothing of what is done with it.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

Clock = Callable[[], float]


@dataclass(slots=True, eq=False)
class Asked:
    """One request. `ended` is 0 until it has gone well."""

    began: float
    ended: float = 0.0
    tokens: int = 0


@dataclass(slots=True, eq=False)
class Step:
    """`place` counts the steps of its branch; `written` is when the program wrote it."""

    branch: str
    place: int
    name: str
    written: float
    asked: list[Asked] = field(default_factory=list)


class Lesson(NamedTuple):
    """What one request of a step (they are counted from 0) has shown: after which pause the run went on from its tokens
    (None: it did not), how many requests were left on the longest path, itself included, and how many tokens it has
    generated."""

    step: str
    request: int
    pause: float | None
    left: int
    tokens: int
    began: float


class Journal:
    """Written by a program's thread and by the language's loop; read when the run is over."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.steps: list[Step] = []
        self.forks: list[tuple[str, str, int]] = []  # branch, the step before the fork, branches
        self._clock = clock
        self._under_way: dict[str, Step] = {}
        self._parents: dict[str, tuple[str, int]] = {}  # branch → its parent, and the parent's steps at the fork

    def written(self, branch: str, place: int, name: str) -> Step:
        """The program has written a step."""
        step = Step(branch, place, name, self._clock())
        self.steps.append(step)
        return step

    def forked(self, branch: str, place: int, children: list[str]) -> None:
        """The program has forked a branch after so many of its steps."""
        before = next((step.name for step in reversed(self.steps) if step.branch == branch), "")
        self.forks.append((branch, before, len(children)))
        for child in children:
            self._parents[child] = (branch, place)

    def begin(self, step: Step) -> None:
        """The step's turn has come: from now on it is the one under way in its branch."""
        self._under_way[step.branch] = step

    def ask(self, branch: str) -> tuple[Step, Asked]:
        """A request for the step under way is sent."""
        step, asked = self._under_way[branch], Asked(self._clock())
        step.asked.append(asked)
        return step, asked

    def answered(self, asked: Asked, tokens: int) -> None:
        """The request went well."""
        asked.ended, asked.tokens = self._clock(), tokens

    def lessons(self) -> Iterator[Lesson]:
        """One for each request that went well. A request comes after another if it goes on from its tokens, or if its
        step was written once the other had ended, as it is when the program had to read the answer first."""
        ended = [(step, asked) for step in self.steps for asked in step.asked if asked.ended]
        ended.sort(key=lambda pair: -pair[1].began)
        first = {(step.branch, step.place): step.asked[0] for step in self.steps if step.asked}
        beginnings = self._beginnings(first)
        left: dict[int, int] = {}
        moments: list[float] = []  # negative times of writing of the requests seen so far, rising
        longest: list[int] = []  # the longest path from any of them up to there
        for step, asked in ended:
            later = [one for one in step.asked if one.began >= asked.ended][:1]
            following = [*later, *beginnings.get((step.branch, step.place), ())]
            if not later and (after := first.get((step.branch, step.place + 1))):
                following.append(after)
            after_it = bisect_right(moments, -asked.ended)
            known = [left.get(id(one), 1) for one in following]
            if after_it:
                known.append(longest[after_it - 1])
            left[id(asked)] = 1 + max(known, default=0)
            pause = min((max(0.0, one.began - asked.ended) for one in following), default=None)
            request = next(i for i, one in enumerate(step.asked) if one is asked)
            yield Lesson(step.name, request, pause, left[id(asked)], asked.tokens, asked.began)
            if request == 0:
                _remember(moments, longest, -step.written, left[id(asked)])

    def _beginnings(self, first: dict[tuple[str, int], Asked]) -> dict[tuple[str, int], list[Asked]]:
        """Step → the first requests of the branches forked right after it."""
        found: dict[tuple[str, int], list[Asked]] = {}
        for child in self._parents:
            asked = first.get((child, 1))
            branch, place = self._parents[child]
            while place == 0 and branch in self._parents:  # forked again before any step
                branch, place = self._parents[branch]
            if asked is not None:
                found.setdefault((branch, place), []).append(asked)
        return found


def _remember(moments: list[float], longest: list[int], moment: float, left: int) -> None:
    at = bisect_right(moments, moment)
    moments.insert(at, moment)
    longest.insert(at, max(left, longest[at - 1] if at else 0))
    for i in range(at + 1, len(longest)):
        longest[i] = max(longest[i], left)
