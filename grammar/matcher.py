"""The matcher of every engine: what holds for all of them is done here, once, around an engine's own state.

Here are kept away from the engines: ids outside the vocabulary, special tokens and padding, bytes that are not UTF-8,
raw control characters in JSON, end tokens, and anything after an end token. So an engine sees only tokens of text, and
whether the output may end is asked of it, not left to it.

Knows nothing of any engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ..types import Relaxed
from .base import MaskRow
from .utf8 import INVALID
from .vocabulary import Alphabet

MAX_FORCED = 64
"""Tokens that `forced_tokens` looks ahead at most."""


class Core(Protocol):
    """An engine's state. Tokens given to it are tokens of text."""

    @property
    def completed(self) -> bool:
        """The text so far is a whole sentence of the grammar."""

    def accept(self, token: int) -> bool:
        """Take one token; False, with the state as it was, if it does not fit."""

    def fill(self, row: MaskRow) -> None:
        """Overwrite the bits of all tokens of text; the others may hold anything."""

    def forced_text(self) -> bytes:
        """Bytes that must come next; none where the engine does not say."""

    def rollback(self, n: int) -> None:
        """Undo the last n tokens, 1 ≤ n ≤ those accepted."""

    def fork(self) -> Core:
        """An independent copy."""


class TextMatcher:
    """One output on its way. See `base.Matcher`."""

    def __init__(self, core: Core, alphabet: Alphabet, states: list[int], *, ended: bool = False) -> None:
        self._core = core
        self._alphabet = alphabet
        self._states = states  # UTF-8 state at the start and after each token of text
        self._ended = ended

    @classmethod
    def start(cls, core: Core, alphabet: Alphabet) -> TextMatcher:
        return cls(core, alphabet, [0])

    @property
    def completed(self) -> bool:
        return self._ended or (self._states[-1] == 0 and self._core.completed)

    @property
    def terminated(self) -> bool:
        return self._ended

    def try_accept(self, ids: Sequence[int]) -> int:
        table, states = self._alphabet.next_state, self._states
        width = table.shape[1]
        for at, token in enumerate(ids):
            if self._ended or not 0 <= token < width:
                return at
            if token in self._alphabet.ends:
                if not self.completed:
                    return at
                self._ended = True
                continue
            state = int(table[states[-1], token])
            if state == INVALID or not self._core.accept(int(token)):
                return at
            states.append(state)
        return len(ids)

    def fill_mask(self, row: MaskRow) -> None:
        possible = self._alphabet.masks[self._states[-1]]
        if row.shape != possible.shape or row.dtype != np.int32:
            raise ValueError(f"a mask row is {list(possible.shape)} int32, not {list(row.shape)} {row.dtype}")
        if self._ended:
            raise ValueError("nothing may follow an end token: there is no mask")
        self._core.fill(row)
        np.bitwise_and(row, possible, out=row)
        if self.completed:
            np.bitwise_or(row, self._alphabet.end_mask, out=row)

    def rollback(self, n: int) -> None:
        accepted = len(self._states) - 1 + self._ended
        if not 0 <= n <= accepted:
            raise ValueError(f"{n} of {accepted} accepted tokens cannot be undone")
        if n and self._ended:
            self._ended = False
            n -= 1
        if n:
            self._core.rollback(n)
            del self._states[-n:]

    def fork(self) -> TextMatcher:
        return TextMatcher(self._core.fork(), self._alphabet, list(self._states), ended=self._ended)

    def forced_tokens(self) -> list[int]:
        """At most 64 of them; an end token may be the last."""
        forced: list[int] = []
        row = np.zeros_like(self._alphabet.masks[0])
        while len(forced) < MAX_FORCED and not self._ended:
            self.fill_mask(row)
            token = only_bit(row)
            if token is None or self.try_accept([token]) != 1:
                break
            forced.append(token)
        self.rollback(len(forced))
        return forced

    def forced_text(self) -> str:
        if self._ended or self._states[-1]:  # in the middle of a character
            return ""
        return self._core.forced_text().decode(errors="ignore")


def only_bit(row: MaskRow) -> int | None:
    """The one id whose bit is set; None when none or several are."""
    if np.count_nonzero(row) != 1:
        return None
    at = int(row.astype(bool).argmax())
    word = int(row[at]) & 0xFFFFFFFF
    return None if word & (word - 1) else at * 32 + word.bit_length() - 1


class TextCompiled:
    """A compiled grammar: a state at its start, which is copied for each output. Immutable."""

    def __init__(self, core: Core, alphabet: Alphabet, size_bytes: int, relaxed: tuple[Relaxed, ...] = ()) -> None:
        self._core = core
        self._alphabet = alphabet
        self.size_bytes = size_bytes
        self.relaxed = relaxed

    def matcher(self) -> TextMatcher:
        return TextMatcher.start(self._core.fork(), self._alphabet)

    def first_mask(self, row: MaskRow) -> None:
        """The mask at the start. Worked out on the state that is copied, so that every copy has it ready."""
        TextMatcher.start(self._core, self._alphabet).fill_mask(row)

    def with_relaxed(self, relaxed: tuple[Relaxed, ...]) -> TextCompiled:
        return TextCompiled(self._core, self._alphabet, self.size_bytes, relaxed)
