"""How many tokens to draft: as long as each is likely to save more time than it takes.

A pass of M tokens takes about a + b·M seconds. A row without drafts yields one token, so R rows yield R / (a + b·R)
tokens a second. A draft token that is reached and accepted with probability q yields q tokens for b seconds more: worth
it while q / b exceeds the rate without it. At one row on a CPU, a is reading the weights and most of the pass, and q
may be small; at 32 rows b·R outweighs a, and next to nothing pays.

Probabilities are those measured for the source and the length of its match. Knows numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .draft import Source

MOST = 16
"""Tokens drafted for one row."""

WIDEST = 128
"""Tokens of the widest pass from which costs are learnt; wider ones are prompts."""

_FORGETS = 0.98  # weight of the past after one more pass
_WEIGHS = 20.0  # passes that the measurement at the start counts for
_MARGIN = 1.05  # by which a draft token must beat the rate without it
_LEARNS = 0.02  # weight of one more verdict on a draft token
_RETURNS = 0.0005  # how far an estimate drifts back to its prior in a pass in which it was not tried

_PRIORS: dict[Source, tuple[float, ...]] = {"forced": (1.0,), "text": (0.8,), "suffix": (0.4, 0.6, 0.75, 0.85)}
_LENGTHS = (5, 9, 17)  # matches shorter than these are of the first, second, third kind


class Costs:
    """seconds = a + b · tokens, fitted to the passes seen, older ones weighing less."""

    def __init__(self, measured: dict[int, float]) -> None:
        """`measured`: seconds of passes of so many tokens, at least two widths."""
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        for tokens, seconds in measured.items():
            self._add(tokens, seconds, _WEIGHS)

    def learn(self, tokens: int, seconds: float) -> None:
        for name in ("_n", "_x", "_y", "_xx", "_xy"):
            setattr(self, name, _FORGETS * getattr(self, name))
        self._add(tokens, seconds, 1.0)

    def _add(self, x: float, y: float, weight: float) -> None:
        self._n += weight
        self._x += weight * x
        self._y += weight * y
        self._xx += weight * x * x
        self._xy += weight * x * y

    @property
    def line(self) -> tuple[float, float]:
        """(a, b), neither negative."""
        spread = self._n * self._xx - self._x * self._x
        if spread <= 1e-9 * self._xx * self._n:
            return 0.0, self._y / max(self._x, 1e-12)
        b = max(0.0, (self._n * self._xy - self._x * self._y) / spread)
        a = (self._y - b * self._x) / self._n
        return (a, b) if a > 0 else (0.0, self._y / self._x)


@dataclass(slots=True)
class Tally:
    """What became of the drafts of one source."""

    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Arbiter:
    """`costs` None: nothing has been measured, and only what is certain is drafted."""

    costs: Costs | None = None
    tallies: dict[Source, Tally] = field(default_factory=lambda: {source: Tally() for source in _PRIORS})
    _chances: dict[Source, list[float]] = field(default_factory=lambda: {s: list(p) for s, p in _PRIORS.items()})
    _rows: int = 1

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
    def trusts_text(self) -> bool:
        """Whether a token of text that must come is likely enough to be written so."""
        return self._pays(self._chances["text"][0]) > 0

    def length(self, match: int) -> int:
        """How many tokens to draft after a match of so many, at most `MOST`."""
        return self._pays(self._chances["suffix"][_kind("suffix", match)])

    def _pays(self, chance: float) -> int:
        """How many tokens that are right with this chance, each if those before it are, raise the tokens a second
        when every row of the pass drafts so many."""
        if self.costs is None:
            return 0
        a, b = self.costs.line
        seconds, tokens, reached, count = a + b * self._rows, 1.0, chance, 0
        while count < MOST and reached * seconds >= _MARGIN * b * self._rows * tokens:
            seconds += b * self._rows
            tokens += reached
            reached *= chance
            count += 1
        return count

    def learn(self, source: Source, match: int, accepted: bool) -> None:
        """A draft token that was reached was right, or not."""
        tally = self.tallies[source]
        tally.drafted += 1
        tally.accepted += accepted
        chances = self._chances[source]
        kind = _kind(source, match)
        chances[kind] += _LEARNS * (accepted - chances[kind])


def _kind(source: Source, match: int) -> int:
    return 0 if source != "suffix" else sum(match >= length for length in _LENGTHS)
