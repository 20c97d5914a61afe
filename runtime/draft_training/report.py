"""What a draft is worth on this machine: how often its guesses are right, what they cost, and what that comes to.

Knows a speculator, held-out answers and times; nothing of training.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ...speculative.arbiter import Costs
from ...speculative.speculator import Speculator
from .lessons import Ints, Lessons

DEPTH = 5
"""Tokens that are guessed in a row."""

PAYS = 1.03
"""Times as many tokens a second below which a draft is not worth having."""

_AT_ONCE, _MOST, _TIMES = 64, 20_000, 50


class Worth(NamedTuple):
    """Entry i of `greedy` is the share of starts whose first i + 1 guesses are all right, of answers that always took
    the likeliest token; `all` is that of answers with drawn tokens too. Seconds are of one row: a pass is `fixed` +
    `token` for each token in it, and the first guess takes `begin`, each other one `step`."""

    greedy: list[float]
    all: list[float]
    starts: int
    fixed: float
    token: float
    begin: float
    step: float

    def tokens(self, guesses: int) -> float:
        """Expected of one pass, by greedy answers."""
        return 1 + sum(self._accepted[:guesses])

    def speedup(self, guesses: int) -> float:
        """Over passes of one token."""
        one = self.fixed + self.token
        drafting = self.begin + (guesses - 1) * self.step if guesses else 0.0
        return self.tokens(guesses) * one / (one + guesses * self.token + drafting)

    @property
    def best(self) -> int:
        """How many guesses give the most tokens a second."""
        return max(range(DEPTH + 1), key=self.speedup)

    @property
    def pays(self) -> bool:
        return self.speedup(self.best) >= PAYS

    @property
    def _accepted(self) -> list[float]:
        return self.greedy or self.all

    def document(self) -> dict[str, Any]:
        by_guesses = [{"tokens": self.tokens(n), "speedup": self.speedup(n)} for n in range(DEPTH + 1)]
        return {**self._asdict(), "by_guesses": by_guesses, "best": self.best, "pays": self.pays}


def judge(speculator: Speculator, lessons: Lessons, pass_seconds: dict[int, float]) -> Worth:
    """`pass_seconds`: of the target's passes, by tokens of one row."""
    fixed, token = Costs(pass_seconds).line
    hidden, tokens = lessons.judged(DEPTH, sure=False)
    begin, step = _times(speculator, hidden[:1]) if len(hidden) else (0.0, 0.0)
    greedy = _accepted(speculator, *lessons.judged(DEPTH, sure=True))
    return Worth(greedy, _accepted(speculator, hidden, tokens), len(hidden), fixed, token, begin, step)


def _accepted(speculator: Speculator, hidden: Tensor, tokens: Ints) -> list[float]:
    """Guesses are the likeliest tokens; empty without starts. Looks at `_MOST` starts, spread evenly."""
    if not len(hidden):
        return []
    spread = np.unique(np.linspace(0, len(hidden) - 1, _MOST, dtype=np.int64))
    right = np.zeros(DEPTH, np.int64)
    for at in range(0, len(spread), _AT_ONCE):
        part = spread[at : at + _AT_ONCE]
        right += _right(speculator, hidden[part], tokens[part])
    return [float(share) for share in right / len(spread)]


def _right(speculator: Speculator, hidden: Tensor, tokens: Ints) -> Ints:
    """Of how many starts the first 1, 2, … guesses are all right."""
    counts = np.zeros(DEPTH, np.int64)
    state, logits = speculator.begin(hidden, tokens[:, 0].tolist())
    for i in range(DEPTH):
        same = speculator.ids[logits.argmax(1)].numpy() == tokens[:, i + 1]
        going = np.flatnonzero(same)
        counts[i] = len(going)
        if not len(going) or i + 1 == DEPTH:
            break
        tokens = tokens[going]
        state, logits = speculator.step(state, going.tolist(), tokens[:, i + 1].tolist())
    return counts


def _times(speculator: Speculator, hidden: Tensor) -> tuple[float, float]:
    """Of the first guess and of one more, for one row."""
    token = int(speculator.ids[0])
    state, _ = speculator.begin(hidden, [token])
    return (
        _median(lambda: speculator.begin(hidden, [token])),
        _median(lambda: speculator.step(state, [0], [token])),
    )


def _median(run: Callable[[], object]) -> float:
    times = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def show(worth: Worth, console: Console) -> None:
    table = Table("guesses", "all right, greedy", "and drawn", "tokens a pass", "predicted speed")
    for guesses in range(1, DEPTH + 1):
        right = (f"{shares[guesses - 1]:.1%}" if shares else "–" for shares in (worth.greedy, worth.all))
        table.add_row(str(guesses), *right, f"{worth.tokens(guesses):.2f}", f"{worth.speedup(guesses):.2f} ×")
    console.print(table)
    one, draft = (worth.fixed + worth.token) * 1e3, (worth.begin * 1e3, worth.step * 1e3)
    console.print(
        f"{worth.starts:,} held-out places. One row here: a pass {one:.1f} ms and {worth.token * 1e3:.2f} ms "
        f"for each token more, the first guess {draft[0]:.2f} ms, another {draft[1]:.2f} ms.",
        highlight=False,
    )
    if worth.pays:
        said = f"Best with {worth.best} guesses: {worth.speedup(worth.best):.2f} times as many tokens a second."
    else:
        said = "This draft does not pay here."
    console.print(said, highlight=False)
