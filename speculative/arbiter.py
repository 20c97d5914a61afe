"""How many tokens to draft: as long as each is likely to save more time than it takes.

A pass of M tokens takes about a + b·M seconds. A row without drafts yields one token, so R rows yield R / (a + b·R)
tokens a second. A draft token that is reached and accepted with probability q yields q tokens for b seconds more: worth
it while q / b exceeds the rate without it. At one row on a CPU, a is reading the weights and most of the pass, and q
may be small; at 32 rows b·R outweighs a, and next to nothing pays.

A draft model adds its own pass to each token: d + e·R seconds. Of two sources the one that makes more tokens a second
drafts.

Probabilities are those measured for the source, and for the length of its match or, of a draft model, for the place in
the draft. What a text repeats is its own, so of what was said before, its own verdicts count beside everyone's. Knows
numbers only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from .draft import Source

MOST = 15
"""Tokens drafted for one row: with the one before them 16, which kernels take for a short row."""

WIDEST = 128
"""Tokens of the widest pass from which costs are learnt; wider ones are prompts."""

_FORGETS = 0.98  # weight of the past after one more pass
_WEIGHS = 0.05  # of a pass: what each width measured at the start counts for beside those seen
_MARGIN = 1.05  # by which a draft token must beat the rate without it
_BRANCH = 0.2  # that a second guess is right where the first is wrong, before anything is known
_LEARNS = 0.02  # weight of one more verdict on a draft token
_OTHERS = 4.0  # verdicts of a text's own that count as much as everyone's
_FADES = 0.99  # weight of a text's own verdicts after one more pass
_RETURNS = 0.0005  # how far an estimate drifts back to its prior in a pass in which it was not tried

_PRIORS: dict[Source, tuple[float, ...]] = {
    "forced": (1.0,),
    "text": (0.8,),
    "suffix": (0.4, 0.6, 0.75, 0.85),
    "model": (0.7, 0.65, 0.6, 0.55),
}
_LENGTHS = (5, 9, 17)  # matches shorter than these are of the first, second, third kind


class Worth(NamedTuple):
    """So many draft tokens a row make the most tokens a second: `rate`."""

    tokens: int
    rate: float


class Costs:
    """seconds = a + b · tokens. The measurement at the start tells the shape as long as passes of one width come, which
    say nothing about it; passes seen tell how fast the machine is now, and the shape too once their widths differ.
    Older ones weigh less."""

    def __init__(self, measured: dict[int, float]) -> None:
        """`measured`: seconds of passes of so many tokens, at least two widths."""
        self._start = _ZERO
        for tokens, seconds in measured.items():
            self._start = self._start.then(tokens, seconds, 1.0)
        self._seen = _ZERO
        self._line: tuple[float, float] | None = None

    def learn(self, tokens: int, seconds: float) -> None:
        self._seen = self._seen.then(tokens, seconds, _FORGETS)
        self._line = None

    @property
    def line(self) -> tuple[float, float]:
        """(a, b), neither negative."""
        if self._line is None:
            a, b = self._start.line()
            seen = self._seen
            if seen.passes and (expected := a * seen.passes + b * seen.tokens) > 0:
                a, b = seen.plus(self._start, _WEIGHS, seen.seconds / expected).line()
            self._line = a, b
        return self._line


class _Sums(NamedTuple):
    """What a least-squares line needs of passes."""

    passes: float
    tokens: float
    seconds: float
    squares: float
    products: float

    def then(self, tokens: int, seconds: float, keep: float) -> _Sums:
        """One pass more; those before weigh `keep` of what they did."""
        return _Sums(
            keep * self.passes + 1,
            keep * self.tokens + tokens,
            keep * self.seconds + seconds,
            keep * self.squares + tokens * tokens,
            keep * self.products + tokens * seconds,
        )

    def plus(self, other: _Sums, weight: float, slower: float) -> _Sums:
        """With others, which count for `weight` and took `slower` times as long."""
        return _Sums(
            self.passes + weight * other.passes,
            self.tokens + weight * other.tokens,
            self.seconds + weight * slower * other.seconds,
            self.squares + weight * other.squares,
            self.products + weight * slower * other.products,
        )

    def line(self) -> tuple[float, float]:
        spread = self.passes * self.squares - self.tokens * self.tokens
        if spread <= 1e-9 * self.squares * self.passes:
            return 0.0, self.seconds / max(self.tokens, 1e-12)
        b = max(0.0, (self.passes * self.products - self.tokens * self.seconds) / spread)
        a = (self.seconds - b * self.tokens) / self.passes
        return (a, b) if a > 0 else (0.0, self.seconds / max(self.tokens, 1e-12))


_ZERO = _Sums(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(slots=True)
class Tally:
    """What became of the drafts of one source."""

    drafted: int = 0
    accepted: int = 0


class Verdicts:
    """On the draft tokens of one text from what was said before, by the length of the match. Passes make them fade: a
    text that misled may come to repeat itself."""

    __slots__ = ("_reached", "_right")

    def __init__(self) -> None:
        self._reached = [0.0] * len(_PRIORS["suffix"])
        self._right = [0.0] * len(_PRIORS["suffix"])

    def fade(self) -> None:
        self._reached = [_FADES * number for number in self._reached]
        self._right = [_FADES * number for number in self._right]

    def learn(self, kind: int, accepted: bool) -> None:
        self._reached[kind] += 1
        self._right[kind] += accepted

    def beside(self, kind: int, everyone: float) -> float:
        """The chance of a token, where in all texts it is `everyone`."""
        return (_OTHERS * everyone + self._right[kind]) / (_OTHERS + self._reached[kind])

    def news(self, kind: int) -> float:
        """What one more says of other texts, from 1 down: the hundredth of one text says little."""
        return _OTHERS / (_OTHERS + self._reached[kind])


@dataclass(slots=True)
class Arbiter:
    """`costs` None: nothing has been measured, and only what is certain is drafted."""

    costs: Costs | None = None
    tallies: dict[Source, Tally] = field(default_factory=lambda: {source: Tally() for source in _PRIORS})
    _chances: dict[Source, list[float]] = field(default_factory=lambda: {s: list(p) for s, p in _PRIORS.items()})
    _rows: int = 1
    _branch: float = _BRANCH

    def begin(self, rows: int) -> None:
        """Before the drafts of a pass of so many rows."""
        self._rows = rows
        for source, chances in self._chances.items():
            for i, prior in enumerate(_PRIORS[source]):
                chances[i] += _RETURNS * (prior - chances[i])

    def passed(self, tokens: int, seconds: float) -> None:
        """A pass of so many tokens, each sequence's last among them, took so long."""
        if self.costs is not None and tokens <= WIDEST:
            self.costs.learn(tokens, seconds)

    @property
    def text(self) -> int:
        """How many tokens to draft of text that must come, and may be written with others."""
        return self._worth(lambda _: self._chances["text"][0]).tokens

    def suffix(self, match: int, own: Verdicts | None = None) -> Worth:
        """Of what followed a match of so many tokens, in a text that had such verdicts."""
        chance = self._chance(match, own)
        return self._worth(lambda _: chance)

    def _chance(self, match: int, own: Verdicts | None) -> float:
        kind = _kind("suffix", match)
        chance = self._chances["suffix"][kind]
        return chance if own is None else own.beside(kind, chance)

    def branch(self, match: int, own: Verdicts | None = None) -> int:
        """Tokens of a second guess that pay beside what `suffix` says of a match."""
        chain = self.suffix(match, own)
        if self.costs is None or not chain.tokens:
            return 0
        a, b = self.costs.line
        chance = self._chance(match, own)
        seconds = a + b * self._rows * (1 + chain.tokens)
        tokens = chain.rate * seconds / self._rows
        reached, count = (1 - chance) * self._branch, 0
        while count < MOST - chain.tokens and reached * seconds >= _MARGIN * b * self._rows * tokens:
            seconds += b * self._rows
            tokens += reached
            count += 1
            reached *= chance
        return count

    def model(self, drafting: Costs) -> Worth:
        """Of a draft model whose passes cost so much."""
        chances, (fixed, each) = self._chances["model"], drafting.line
        return self._worth(lambda at: chances[_kind("model", at)], fixed + each * self._rows)

    def saves(self, worth: Worth, more: int) -> float:
        """Seconds by which so many more tokens of one row come sooner than without drafts."""
        if self.costs is None or not worth.tokens:
            return 0.0
        a, b = self.costs.line
        return more * self._rows * ((a + b * self._rows) / self._rows - 1 / worth.rate)

    def _worth(self, chance: Callable[[int], float], drafting: float = 0.0) -> Worth:
        """Of tokens that are right with chance(i) if those before are, when every row of the pass drafts so many;
        `drafting` is what drafting one costs for all rows."""
        if self.costs is None:
            return Worth(0, 0.0)
        a, b = self.costs.line
        rows = self._rows
        seconds, tokens, reached, count = a + b * rows, 1.0, chance(0), 0
        more = b * rows + drafting
        while count < MOST and reached * seconds >= _MARGIN * more * tokens:
            seconds += more
            tokens += reached
            count += 1
            reached *= chance(count)
        return Worth(count, tokens * rows / max(seconds, 1e-12))

    def learn(self, source: Source, match: int, accepted: bool, rank: int = 0, own: Verdicts | None = None) -> None:
        """A draft token that was reached was right, or not. `match`: of a draft model, its place in the draft. `rank`:
        how many others stood in its place and were wrong. `own`: those of its text."""
        tally = self.tallies[source]
        tally.drafted += 1
        tally.accepted += accepted
        if rank:
            self._branch += _LEARNS * (accepted - self._branch)
            return
        chances = self._chances[source]
        kind, news = _kind(source, match), 1.0
        if own is not None and source == "suffix":
            news = own.news(kind)
            own.learn(kind, accepted)
        chances[kind] += _LEARNS * news * (accepted - chances[kind])


def _kind(source: Source, match: int) -> int:
    if source == "model":
        return min(match, len(_PRIORS["model"]) - 1)
    return 0 if source != "suffix" else sum(match >= length for length in _LENGTHS)
