"""How many tokens a pass may compute, on a device that sometimes has room for fewer. Pure numbers."""

from __future__ import annotations

RECOVERS = 64
"""Passes that fit before a larger one is tried again."""

TRIES = 3
"""Of a pass of a single token, one after the other: memory may come free meanwhile."""


class PassBudget:
    """`tokens` is what the next pass may compute, at most `most`."""

    def __init__(self, most: int) -> None:
        self.tokens = self._most = most
        self._fitted = self._failed = 0

    def fitted(self) -> None:
        """A pass was computed."""
        self._failed = 0
        if self.tokens < self._most:
            self._fitted += 1
            if self._fitted == RECOVERS:
                self.tokens, self._fitted = min(self._most, 2 * self.tokens), 0

    def shrink(self, tokens: int) -> bool:
        """There was no room for a pass of so many. False: nothing is left to be tried."""
        self._fitted = 0
        self._failed += tokens <= 1
        self.tokens = max(1, min(self.tokens, tokens) // 2)
        return self._failed < TRIES
