"""Whether an engine plans its next pass while one is under way, or waits for what that one finds.

Planning ahead hides the host's work behind the device's. But a draft goes on from a token that is known, so whoever
plans ahead drafts nothing. Which makes more tokens a second depends on the model, on how many sequences run and on what
is said, so both are tried and the better one is kept. Knows nothing of passes.
"""

from __future__ import annotations

from collections.abc import Callable

BLOCK = 32
"""Passes in one manner, before its pace is known."""

STAYS = 16
"""Blocks before the other manner is tried again."""


class Overlap:
    """`ahead` is how to go on now."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.ahead = True
        self._clock = clock
        self._paces: dict[bool, float] = {}  # tokens a second, by manner
        self._began = clock()
        self._passes = self._tokens = self._blocks = 0

    def passed(self, tokens: int) -> None:
        """A pass was taken in, and made so many tokens."""
        self._passes += 1
        self._tokens += tokens
        if self._passes == BLOCK:
            self._paces[self.ahead] = self._tokens / max(self._clock() - self._began, 1e-9)
            self._blocks += 1
            self._choose()
            self.restart()

    def restart(self) -> None:
        """What has been counted since the last block was no steady work: leave it out."""
        self._began, self._passes, self._tokens = self._clock(), 0, 0

    def _choose(self) -> None:
        if self._blocks % STAYS == 0 or len(self._paces) < 2:
            self.ahead = not self.ahead
        else:
            self.ahead = self._paces[True] >= self._paces[False]
