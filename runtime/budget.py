"""How many tokens a pass may compute, on a device that sometimes has room for fewer. Pure numbers."""

from __future__ import annotations

RECOVERS = 64
"""Passes that fit before a larger one is tried again."""


class PassBudget:
    """`tokens` is what the next pass may compute, at most `most`."""

    def __init__(self, most: int) -> None:
        self.tokens = self._most = most
        self._fitted = 0

    def fitted(self) -> None:
        """A pass was computed."""
        if self.tokens < self._most:
            self._fitted += 1
            if self._fitted == RECOVERS:
                self.tokens, self._fitted = min(self._most, 2 * self.tokens), 0

    def shrink(self, tokens: int) -> bool:
        """There was no room for a pass of so many. False: no smaller one can be tried."""
        self._fitted = 0
        if tokens <= 1:
            return False
        self.tokens = min(self.tokens, tokens) // 2
        return True
